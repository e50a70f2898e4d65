/*
 * The kept end of a byte stream: what was written last, addressed by offsets from the stream's
 * start. Memory is mapped apart from the heap and not inherited by forked children.
 */
#ifndef CLOCHE_AGENT_RING_H
#define CLOCHE_AGENT_RING_H

#include <stddef.h>
#include <stdint.h>

#define RING_MIN (64u << 10)

/* Zero-initialise. cap is 0 or a power of two >= RING_MIN; end - start <= cap. */
struct ring {
	uint8_t *data;
	size_t cap;
	uint64_t start, end; /* offsets of the oldest byte kept and of the next one */
};

void ring_free(struct ring *r); /* keeps the offsets: start becomes end */

/* Doubles the memory (RING_MIN at first). 0 or -ENOMEM, r unchanged. */
int ring_grow(struct ring *r);

/* Appends n <= cap bytes; the oldest make room. */
void ring_write(struct ring *r, const void *p, size_t n);

/* The bytes at offset `at` (start <= at <= end) that lie together: their number, 0 at the end. */
size_t ring_peek(const struct ring *r, uint64_t at, const uint8_t **p);

#endif
