/*
 * The target of a request: whatever is accepted is UTF-8 without NUL, inside the text that was
 * given, and finds at most one route.
 */
#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "api/range.h"
#include "api/uri.h"
#include "base/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const char *s, const struct uri *u, size_t size)
{
	assert(s >= u->text && s <= u->text + size);
	assert(utf8_valid(s, strlen(s)));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text = malloc(size + 1);
	uint64_t offset = 0, length = 0;
	struct uri u;

	if (!text)
		return 0;
	memcpy(text, data, size);
	text[size] = '\0';
	if (uri_parse(text, &u, NULL) == 0) {
		assert(u.n_segments >= 1 && u.n_segments <= URI_SEGMENTS_MAX);
		assert(u.n_params <= URI_PARAMS_MAX);
		for (size_t i = 0; i < u.n_segments; i++)
			check(u.segments[i], &u, size);
		for (size_t i = 0; i < u.n_params; i++) {
			check(u.params[i].name, &u, size);
			if (*u.params[i].value)
				check(u.params[i].value, &u, size);
		}
		uri_free(&u);
	}
	if (range_parse(text, 1000, &offset, &length) == RANGE_PART)
		assert(length > 0 && offset < 1000 && length <= 1000 - offset);
	free(text);
	return 0;
}
