/* Byte at offset o lies at data[o % cap]; cap is a power of two, so growing re-lays the bytes. */
#include "agent/ring.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

void ring_free(struct ring *r)
{
	if (r->data)
		munmap(r->data, r->cap);
	r->data = NULL;
	r->cap = 0;
	r->start = r->end;
}

static void put(struct ring *r, uint64_t at, const uint8_t *p, size_t n)
{
	size_t i = at & (r->cap - 1), first = r->cap - i < n ? r->cap - i : n;

	memcpy(r->data + i, p, first);
	memcpy(r->data, p + first, n - first);
}

int ring_grow(struct ring *r)
{
	struct ring bigger = { .cap = r->cap ? r->cap * 2 : RING_MIN,
			       .start = r->start,
			       .end = r->end };
	uint64_t at = r->start;
	const uint8_t *p;
	size_t n;

	bigger.data =
		mmap(NULL, bigger.cap, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (bigger.data == MAP_FAILED)
		return -ENOMEM;
	/* Without it each command's fork would copy page tables for all kept output: only slower.
	 */
	(void)madvise(bigger.data, bigger.cap, MADV_DONTFORK);
	while ((n = ring_peek(r, at, &p))) {
		put(&bigger, at, p, n);
		at += n;
	}
	if (r->data)
		munmap(r->data, r->cap);
	*r = bigger;
	return 0;
}

void ring_write(struct ring *r, const void *p, size_t n)
{
	put(r, r->end, p, n);
	r->end += n;
	if (r->end - r->start > r->cap)
		r->start = r->end - r->cap;
}

size_t ring_peek(const struct ring *r, uint64_t at, const uint8_t **p)
{
	uint64_t left = r->end - at;
	size_t i;

	if (left == 0)
		return 0;
	i = at & (r->cap - 1);
	*p = r->data + i;
	return left < r->cap - i ? (size_t)left : r->cap - i;
}
