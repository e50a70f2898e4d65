/*
 * The target is copied once and decoded in place: decoding never makes text longer. Each piece is
 * ended by a NUL where its separator was.
 */
#include "api/uri.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/utf8.h"

static int malformed(struct err *e, const char *why)
{
	return err_set(e, "uri_malformed", EINVAL, "the request's target %s", why);
}

static int hex(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return -1;
}

/* Decodes s in place. */
static int decode(char *s, int plus_is_space, struct err *e)
{
	char *out = s, *start = s;

	for (; *s; s++) {
		if (*s == '+' && plus_is_space) {
			*out++ = ' ';
		} else if (*s != '%') {
			*out++ = *s;
		} else {
			int high = hex(s[1]), low = high < 0 ? -1 : hex(s[2]);

			if (low < 0)
				return malformed(e, "has a % without two hex digits");
			if (high == 0 && low == 0)
				return malformed(e, "has an encoded NUL");
			*out++ = (char)(high << 4 | low);
			s += 2;
		}
	}
	*out = '\0';
	return utf8_valid(start, (size_t)(out - start)) ? 0 : malformed(e, "is not UTF-8");
}

static int parse_path(char *path, struct uri *u, struct err *e)
{
	char *rest = path + 1;

	for (;;) {
		char *segment = strsep(&rest, "/");

		if (u->n_segments == URI_SEGMENTS_MAX)
			return malformed(e, "has too many path segments");
		if (decode(segment, 0, e))
			return -EINVAL;
		u->segments[u->n_segments++] = segment;
		if (!rest)
			return 0;
	}
}

static int parse_query(char *query, struct uri *u, struct err *e)
{
	char *pair;

	while ((pair = strsep(&query, "&"))) {
		char *value = pair, *name;

		if (!*pair)
			continue;
		if (u->n_params == URI_PARAMS_MAX)
			return malformed(e, "has too many query parameters");
		name = strsep(&value, "=");
		if (decode(name, 1, e) || (value && decode(value, 1, e)))
			return -EINVAL;
		u->params[u->n_params].name = name;
		u->params[u->n_params++].value = value ? value : "";
	}
	return 0;
}

int uri_parse(const char *target, struct uri *out, struct err *e)
{
	struct uri u = { 0 };
	char *query;
	int r;

	if (target[0] != '/')
		return malformed(e, "does not begin with /");
	if (strlen(target) > URI_LEN_MAX)
		return malformed(e, "is too long");
	u.text = strdup(target);
	if (!u.text)
		return err_errno(e, ENOMEM, "parse the request's target");
	query = strchr(u.text, '?');
	if (query)
		*query++ = '\0';
	r = parse_path(u.text, &u, e);
	if (r == 0 && query)
		r = parse_query(query, &u, e);
	if (r) {
		uri_free(&u);
		return r;
	}
	*out = u;
	return 0;
}

void uri_free(struct uri *u)
{
	free(u->text);
	memset(u, 0, sizeof(*u));
}
