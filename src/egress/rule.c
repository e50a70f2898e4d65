/*
 * text is cut into target and port first (brackets mark an IPv6 address), then the target is
 * tried as a range and as a name. No state.
 */
#include "egress/rule.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/str.h"

/* Points *port at the port's text, or leaves it NULL. Fills target without brackets. */
static int split(const char *text, char target[RULE_TEXT_MAX], const char **port)
{
	const char *end, *first = strchr(text, ':');
	size_t n = strlen(text);

	*port = NULL;
	if (n >= RULE_TEXT_MAX)
		return -EINVAL;
	if (text[0] == '[') {
		end = strchr(text, ']');
		if (!end || (end[1] && end[1] != ':'))
			return -EINVAL;
		if (end[1])
			*port = end + 2;
		n = (size_t)(end - text) - 1;
		text++;
	} else if (first && !strchr(first + 1, ':')) {
		*port = first + 1;
		n = (size_t)(first - text);
	}
	memcpy(target, text, n);
	target[n] = '\0';
	return 0;
}

static int fail(char problem[160], const char *why)
{
	snprintf(problem, 160, "%s", why);
	return -EINVAL;
}

static int parse_name(const char *target, struct rule *r, char problem[160])
{
	const char *name = target;

	r->kind = RULE_NAME;
	if (strcmp(target, "*") == 0) {
		r->kind = RULE_ANY;
		return 0;
	}
	if (strncmp(target, "*.", 2) == 0) {
		r->kind = RULE_BELOW;
		name += 2;
	}
	if (strchr(name, '*'))
		return fail(problem, "a wildcard is only possible as the whole first label: "
				     "*.example.com");
	for (const char *c = name; *c; c++)
		if ((unsigned char)*c >= 0x80)
			return fail(problem, "must be ASCII; write the name in punycode (xn--…)");
	if (strstr(name, "://") || strchr(name, '/'))
		return fail(problem, "must be a host, not a URL or a path");
	if (hostname_normalise(name, strlen(name), r->name) < 0)
		return fail(problem, "is neither a host name, an address nor a range");
	return 0;
}

int rule_parse(const char *text, struct rule *out, char problem[160], char hint[64])
{
	char target[RULE_TEXT_MAX];
	struct rule r = { 0 };
	const char *port;
	int64_t n = 0;
	int ret;

	hint[0] = '\0';
	if (strstr(text, "://"))
		return fail(problem, "must be a host, not a URL");
	if (split(text, target, &port) < 0)
		return fail(problem, "is not a rule: write HOST, HOST:PORT or [IPv6]:PORT");
	if (port && str_to_int(port, 1, 65535, &n) < 0)
		return fail(problem, "has a bad port: write a number from 1 to 65535");
	r.port = (uint16_t)n;
	ret = ip_range_parse(target, &r.range);
	if (ret == -ERANGE) {
		ip_range_format(&r.range, hint);
		return fail(problem, "has bits set beyond its prefix length");
	}
	if (ret == 0)
		r.kind = RULE_RANGE;
	else if (text[0] == '[' || strchr(target, ':'))
		return fail(problem, "is not an IPv6 address or range");
	else if (parse_name(target, &r, problem) < 0)
		return -EINVAL;
	*out = r;
	return 0;
}

static bool port_fits(const struct rule *r, uint16_t port)
{
	return r->port == 0 || port == 0 || r->port == port;
}

bool rule_match_name(const struct rule *r, const char *name, uint16_t port)
{
	if (!port_fits(r, port))
		return false;
	switch (r->kind) {
	case RULE_NAME:
		return strcmp(r->name, name) == 0;
	case RULE_BELOW:
		return hostname_below(name, r->name);
	case RULE_ANY:
		return true;
	case RULE_RANGE:
		return false;
	}
	return false;
}

bool rule_match_addr(const struct rule *r, const struct ip *a, uint16_t port)
{
	if (!port_fits(r, port))
		return false;
	return r->kind == RULE_ANY || (r->kind == RULE_RANGE && ip_in_range(a, &r->range));
}
