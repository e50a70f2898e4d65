/*
 * Network slots: a network namespace with one tap and no uplink (proto/slot.h), pinned at
 * RUN/netns/ID so that a restarted broker finds it again. Its firewall sends every TCP connection
 * and every DNS query of the guest to sockets inside the namespace; everything else is rejected at
 * once, and frames with another source than the guest's are dropped. Nothing is ever forwarded:
 * a slot in which no socket listens is a slot in which nothing passes.
 *
 * A slot serves one sandbox and is destroyed after it. Needs root. Calls move the calling thread
 * into the namespace and back; no other thread may count on sharing it meanwhile.
 */
#ifndef CLOCHE_BROKER_SLOT_H
#define CLOCHE_BROKER_SLOT_H

#include <stddef.h>

#include "base/cleanup.h"
#include "proto/slot.h"

struct err;

#define SLOT_ID_MAX 32

struct slot {
	char id[SLOT_ID_MAX + 1]; /* [a-z0-9_-] */
	char *pin;		  /* path of the pinned namespace */
	int netns;
	int tap; /* the guest's side: read and write frames; -1 when found again or taken */
};

/* Makes run_dir/netns once. */
int slot_prepare(const char *run_dir, struct err *e);

/* A new slot, complete but without sockets. */
int slot_make(const char *run_dir, const char *id, struct slot **out, struct err *e);

/* The slot that a former broker made; tap is -1, for its VMM holds it. */
int slot_find(const char *run_dir, const char *id, struct slot **out, struct err *e);

/*
 * Opens the sockets of proto/slot.h inside the slot, for egress; fails with EADDRINUSE while
 * another process has them. They are closed by who got them: when egress dies they are gone and
 * the guest's connections are refused, until it is given new ones.
 */
int slot_listen(const struct slot *s, int fds[SLOT_SOCKETS], struct err *e);

/* Unpins it and closes its descriptors; the kernel ends it when its last user is gone. NULL-safe.
 */
void slot_destroy(struct slot *s);

/* Forgets it and leaves it in place. NULL-safe. */
void slot_free(struct slot *s);
CLEANUP_DEFINE(struct slot *, cleanup_slot, slot_destroy)

/* Destroys every pinned slot for which keep(ctx, id) is 0; returns how many, or negative. */
int slot_sweep(const char *run_dir, int (*keep)(void *ctx, const char *id), void *ctx,
	       struct err *e);

/* Ready slots. slot_pool_fill() makes at most `most` new ones and belongs in idle time. */
struct slot_pool;

int slot_pool_new(const char *run_dir, unsigned size, struct slot_pool **out, struct err *e);
void slot_pool_free(struct slot_pool *p); /* destroys what is ready */
int slot_pool_fill(struct slot_pool *p, unsigned most, struct err *e);
unsigned slot_pool_ready(const struct slot_pool *p);

/* A ready slot, or one made now when none is. */
int slot_pool_take(struct slot_pool *p, struct slot **out, struct err *e);

#endif
