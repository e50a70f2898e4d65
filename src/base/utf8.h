/* UTF-8 (RFC 3629): no overlong forms, no surrogates, nothing above U+10FFFF. */
#ifndef CLOCHE_BASE_UTF8_H
#define CLOCHE_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>

struct buf;

/*
 * The length of the longest prefix of p[n] that is valid. *cut tells why it ended early: true
 * when what follows is the beginning of one more character whose rest is missing, false when it
 * is wrong, or nothing follows. cut may be NULL.
 */
size_t utf8_prefix(const void *p, size_t n, bool *cut);

/* Whether all of p[n] is valid. */
bool utf8_valid(const void *p, size_t n);

/* Appends p[n] with every wrong byte replaced by U+FFFD. 0 or -ENOMEM. */
int utf8_repair(struct buf *out, const void *p, size_t n);

#endif
