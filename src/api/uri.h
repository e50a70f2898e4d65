/* The target of a request: path segments and query parameters, decoded. */
#ifndef CLOCHE_API_URI_H
#define CLOCHE_API_URI_H

#include <stddef.h>

struct err;

#define URI_SEGMENTS_MAX 16
#define URI_PARAMS_MAX 64
#define URI_LEN_MAX 16384

struct uri_param {
	const char *name, *value;
};

/* Strings point into text, which the struct owns; release with uri_free(). */
struct uri {
	char *text;
	const char *segments[URI_SEGMENTS_MAX];
	size_t n_segments;
	struct uri_param params[URI_PARAMS_MAX];
	size_t n_params;
};

/*
 * Parses an origin-form target ("/v1/x?a=b"). Segments are split before they are decoded, so an
 * encoded slash stays inside its segment; '+' is a space in the query only. Decoded text is UTF-8
 * without NUL or it is refused ("uri_malformed").
 */
int uri_parse(const char *target, struct uri *out, struct err *e);
void uri_free(struct uri *u); /* safe on a zeroed struct */

#endif
