/* Base64 (RFC 4648, with padding, no line breaks). */
#ifndef CLOCHE_BASE_BASE64_H
#define CLOCHE_BASE_BASE64_H

#include <stddef.h>

struct buf;

/* Appends the encoding of p[n] to b. 0 or -ENOMEM. */
int base64_encode(struct buf *b, const void *p, size_t n);

/* Appends the bytes text[n] encodes. 0, -ENOMEM, or -EINVAL (b unchanged) when it is not base64. */
int base64_decode(struct buf *b, const char *text, size_t n);

#endif
