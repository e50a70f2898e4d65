/* A header block on its way from one HTTP/2 session to the other. */
#ifndef CLOCHE_EGRESS_H2_HEADERS_H
#define CLOCHE_EGRESS_H2_HEADERS_H

#include <nghttp2/nghttp2.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

struct swap_target;

#define H2_FIELDS_MAX 256
#define H2_BLOCK_MAX (128u << 10)

struct h2_field {
	size_t name, name_len, value, value_len; /* places in text */
	uint8_t flags;				 /* NGHTTP2_NV_FLAG_NO_INDEX is kept */
};

struct h2_headers {
	struct buf text;
	struct h2_field *fields;
	size_t n;
};

void h2_headers_clear(struct h2_headers *h); /* wipes; the struct can be used again */

/* Appends a field. -EMSGSIZE when the block grows beyond its bounds, -ENOMEM. */
int h2_headers_add(struct h2_headers *h, const uint8_t *name, size_t name_len, const uint8_t *value,
		   size_t value_len, uint8_t flags);

/* The value of a field (its length in *len), or NULL. */
const char *h2_headers_get(const struct h2_headers *h, const char *name, size_t *len);

/* Copies h to out with secrets put in. -EACCES when a placeholder may not leave, -ENOMEM. */
int h2_headers_swap(const struct h2_headers *h, struct swap_target *t, struct h2_headers *out);

/* The block as nghttp2 wants it; free() it. It points into h. NULL when out of memory. */
nghttp2_nv *h2_headers_nv(const struct h2_headers *h);

#endif
