/* The Range header of one file (RFC 9110, one range of bytes). */
#ifndef CLOCHE_API_RANGE_H
#define CLOCHE_API_RANGE_H

#include <stdint.h>

enum range_kind {
	RANGE_WHOLE, /* no header, or one to be ignored: several ranges, another unit, nonsense */
	RANGE_PART,  /* *offset, *length */
	RANGE_IMPOSSIBLE, /* behind the end */
};

/* header may be NULL. The part is within size bytes and not empty. */
enum range_kind range_parse(const char *header, uint64_t size, uint64_t *offset, uint64_t *length);

#endif
