/* Small string helpers. */
#ifndef CLOCHE_BASE_STR_H
#define CLOCHE_BASE_STR_H

#include <stddef.h>
#include <stdint.h>

/* The candidate nearest to word by edit distance if near enough to suggest, else NULL. */
const char *str_nearest(const char *word, const char *const *candidates, size_t n);

/*
 * Parses the whole of s as a decimal integer within min..max (leading '-' only when min < 0).
 * Returns 0, -EINVAL when s is not a number, -ERANGE when outside.
 */
int str_to_int(const char *s, int64_t min, int64_t max, int64_t *out);

#endif
