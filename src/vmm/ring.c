/* Byte k of all ever written is at data[k % cap]. */
#include "vmm/ring.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"

int ring_init(struct ring *r, size_t cap)
{
	r->data = malloc(cap);
	if (!r->data)
		return -ENOMEM;
	r->cap = cap;
	r->total = 0;
	pthread_mutex_init(&r->lock, NULL);
	return 0;
}

void ring_destroy(struct ring *r)
{
	if (!r->data)
		return;
	free(r->data);
	r->data = NULL;
	pthread_mutex_destroy(&r->lock);
}

void ring_put(struct ring *r, const void *p, size_t n)
{
	const char *from = p;

	pthread_mutex_lock(&r->lock);
	while (n) {
		size_t at = (size_t)(r->total % r->cap);
		size_t part = n < r->cap - at ? n : r->cap - at;

		memcpy(r->data + at, from, part);
		r->total += part;
		from += part;
		n -= part;
	}
	pthread_mutex_unlock(&r->lock);
}

int ring_read_tail(struct ring *r, size_t max, struct buf *out, uint64_t *dropped)
{
	uint64_t have, from;
	int err = 0;

	pthread_mutex_lock(&r->lock);
	have = r->total < r->cap ? r->total : r->cap;
	from = r->total - (have < max ? have : max);
	*dropped = from;
	while (err == 0 && from < r->total) {
		size_t at = (size_t)(from % r->cap);
		uint64_t left = r->total - from;
		size_t part = left < r->cap - at ? (size_t)left : r->cap - at;

		err = buf_add(out, r->data + at, part);
		from += part;
	}
	pthread_mutex_unlock(&r->lock);
	return err;
}
