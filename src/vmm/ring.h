/*
 * A bounded byte ring that keeps the newest bytes. Any thread; one writer and any readers take its
 * lock for a copy each.
 */
#ifndef CLOCHE_VMM_RING_H
#define CLOCHE_VMM_RING_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

struct buf;

struct ring {
	pthread_mutex_t lock;
	char *data;
	size_t cap;
	uint64_t total; /* bytes ever written */
};

/* 0 or -ENOMEM; cap > 0. */
int ring_init(struct ring *r, size_t cap);
void ring_destroy(struct ring *r); /* safe on a zeroed ring */

void ring_put(struct ring *r, const void *p, size_t n);

/*
 * Appends the newest bytes, at most max, to out; *dropped is set to how many were written before
 * them and are not in out. 0 or -ENOMEM.
 */
int ring_read_tail(struct ring *r, size_t max, struct buf *out, uint64_t *dropped);

#endif
