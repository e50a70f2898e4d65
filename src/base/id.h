/* Public identifiers: a prefix and 20 random characters of [0-9a-z], about 103 bits: "sbx_…". */
#ifndef CLOCHE_BASE_ID_H
#define CLOCHE_BASE_ID_H

#include <stdbool.h>

#define ID_LEN 25 /* "sbx_" + 20 + NUL */

/* Makes an id with a three-letter prefix ("sbx"). Aborts only when the kernel has no entropy. */
void id_new(const char prefix[4], char out[ID_LEN]);

/* Whether s is a well-formed id with that prefix. */
bool id_valid(const char prefix[4], const char *s);

#endif
