#include "api/range.h"

#include <stdbool.h>
#include <string.h>

#include "base/str.h"

/* The number in [p, end), or -1. */
static int64_t number(const char *p, const char *end)
{
	char text[24];
	size_t n = (size_t)(end - p);
	int64_t v;

	if (n == 0 || n >= sizeof(text))
		return -1;
	memcpy(text, p, n);
	text[n] = '\0';
	return str_to_int(text, 0, INT64_MAX, &v) ? -1 : v;
}

enum range_kind range_parse(const char *header, uint64_t size, uint64_t *offset, uint64_t *length)
{
	const char *dash, *end;
	int64_t first, last;

	if (!header || strncmp(header, "bytes=", 6) != 0 || strchr(header, ','))
		return RANGE_WHOLE;
	header += 6;
	dash = strchr(header, '-');
	end = header + strlen(header);
	if (!dash)
		return RANGE_WHOLE;
	first = number(header, dash);
	last = number(dash + 1, end);
	if (dash == header) { /* the last so many bytes */
		if (last < 0)
			return RANGE_WHOLE;
		if (last == 0 || size == 0)
			return RANGE_IMPOSSIBLE;
		*length = (uint64_t)last < size ? (uint64_t)last : size;
		*offset = size - *length;
		return RANGE_PART;
	}
	if (first < 0 || (last < 0 && dash + 1 != end) || (last >= 0 && last < first))
		return RANGE_WHOLE;
	if ((uint64_t)first >= size)
		return RANGE_IMPOSSIBLE;
	*offset = (uint64_t)first;
	*length = size - (uint64_t)first;
	if (last >= 0 && (uint64_t)(last - first) + 1 < *length)
		*length = (uint64_t)(last - first) + 1;
	return RANGE_PART;
}
