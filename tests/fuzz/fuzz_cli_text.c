/*
 * What a hostile sandbox or daemon says, as the command line takes it: escaped text holds nothing
 * that a terminal acts on and is UTF-8; a path that counts as inside has no component that leads
 * out.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/utf8.h"
#include "cli/path.h"
#include "cli/term.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_escape(const char *text)
{
	struct buf b = { 0 };

	if (term_escape(&b, text) < 0)
		abort();
	for (size_t i = 0; i < b.len; i++) {
		unsigned char c = (unsigned char)b.data[i];

		if (c < 0x20 || c == 0x7f || (c == 0xc2 && (unsigned char)b.data[i + 1] < 0xa0))
			abort();
	}
	if (!utf8_valid(b.data ? b.data : "", b.len))
		abort();
	buf_free(&b);
}

static void check_path(const char *text)
{
	if (path_is_inside(text) &&
	    (text[0] == '/' || strstr(text, "/../") || strstr(text, "//") ||
	     strncmp(text, "../", 3) == 0 || strcmp(text, "..") == 0 ||
	     (strlen(text) > 2 && strcmp(text + strlen(text) - 3, "/..") == 0)))
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text = malloc(size + 1);
	struct place p;
	int64_t ms;

	if (!text)
		return 0;
	memcpy(text, data, size);
	text[size] = '\0';
	check_escape(text);
	check_path(text);
	(void)clock_parse_rfc3339(text, &ms);
	if (place_parse(text, &p, NULL) == 0)
		place_free(&p);
	free(text);
	return 0;
}
