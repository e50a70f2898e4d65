/*
 * Host names in one form: ASCII, lower case, no trailing dot, labels of 1..63 of [a-z0-9_-], at
 * most 253 bytes, and never something that a resolver could take for an address (a last label of
 * digits only, or 0x…). Everything that compares names compares this form.
 */
#ifndef CLOCHE_EGRESS_HOSTNAME_H
#define CLOCHE_EGRESS_HOSTNAME_H

#include <stdbool.h>
#include <stddef.h>

#define HOSTNAME_LEN 254 /* 253 and NUL */

/* Brings the n bytes at s to the form above. 0, or -EINVAL when they are not a host name. */
int hostname_normalise(const char *s, size_t n, char out[HOSTNAME_LEN]);

/* Whether name (normalised) is below suffix (normalised, "example.com"), at any depth. */
bool hostname_below(const char *name, const char *suffix);

#endif
