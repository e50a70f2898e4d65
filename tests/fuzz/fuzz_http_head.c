/*
 * HTTP/1 heads and bodies. First byte: 0 request, 1 response, else chunked body with that cut.
 * A body must end at the same byte however it arrives.
 */
#include <stdint.h>
#include <stdlib.h>

#include "egress/http_head.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void body(const char *p, size_t n, size_t cut)
{
	struct http_head h = { .framing = HTTP_BODY_CHUNKED };
	struct http_body whole, parts;
	long a, b = 0, r = 0;

	http_body_init(&whole, &h);
	http_body_init(&parts, &h);
	a = http_body_feed(&whole, p, n, NULL, NULL);
	for (size_t at = 0; at < n && !parts.done; at += cut) {
		r = http_body_feed(&parts, p + at, n - at < cut ? n - at : cut, NULL, NULL);
		if (r < 0)
			break;
		b += r;
	}
	if (r < 0 ? a >= 0 : a != b)
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	static struct http_head h;
	const char *p = (const char *)data + 1, *problem = NULL;
	const struct slice get = { "GET", 3 };
	long r = 0;

	if (n < 1)
		return 0;
	n--;
	if (data[0] == 0)
		r = http_request_parse(p, n, &h, &problem);
	else if (data[0] == 1)
		r = http_response_parse(p, n, get, &h, &problem);
	else
		body(p, n, data[0]);
	if (r < 0 && !problem)
		abort();
	if (r > 0 && ((size_t)r > n || p[r - 1] != '\n'))
		abort();
	return 0;
}
