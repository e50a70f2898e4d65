/*
 * A growable byte buffer. Zero-initialise it; release it with buf_free() or _cleanup_buf_.
 * Growth doubles; a buffer never shrinks until freed. Functions return 0 or -ENOMEM and leave the
 * buffer as it was on failure. data is always followed by a NUL that len does not count.
 */
#ifndef CLOCHE_BASE_BUF_H
#define CLOCHE_BASE_BUF_H

#include <stddef.h>

#include "base/cleanup.h"

struct buf {
	char *data; /* NULL while nothing was ever put in */
	size_t len; /* bytes in use */
	size_t cap; /* bytes allocated */
};

#define _cleanup_buf_ _cleanup_(buf_free)

void buf_free(struct buf *b);
void buf_clear(struct buf *b); /* len = 0, memory kept */

/* Room for n more bytes beyond len (plus the NUL). */
int buf_reserve(struct buf *b, size_t n);
int buf_add(struct buf *b, const void *p, size_t n);
int buf_str(struct buf *b, const char *s);
int buf_printf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Drops the first n bytes (n <= len). */
void buf_consume(struct buf *b, size_t n);

/* Hands over the memory (never NULL: an empty buffer gives ""), or NULL when out of memory. */
char *buf_steal(struct buf *b);

#endif
