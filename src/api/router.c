/*
 * Patterns are matched against decoded segments, so a parameter may hold any character. The table
 * is small enough to be walked; the first match wins, and no two patterns of one method overlap.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "api/route.h"
#include "api/uri.h"
#include "base/err.h"

/* Whether the pattern is the path's; fills param. */
static bool pattern_match(const char *pattern, const struct uri *uri,
			  const char *param[ROUTE_PARAMS_MAX])
{
	size_t n_params = 0;
	const char *p = pattern;

	for (size_t i = 0; i < uri->n_segments; i++) {
		size_t len;

		if (*p++ != '/')
			return false;
		len = strcspn(p, "/");
		if (*p == '{') {
			if (!uri->segments[i][0] || n_params == ROUTE_PARAMS_MAX)
				return false;
			param[n_params++] = uri->segments[i];
		} else if (strlen(uri->segments[i]) != len ||
			   memcmp(uri->segments[i], p, len) != 0) {
			return false;
		}
		p += len;
	}
	return *p == '\0';
}

const struct route *route_find(const char *method, const struct uri *uri,
			       const char *param[ROUTE_PARAMS_MAX], char allow[64], struct err *e)
{
	size_t n = 0;

	if (strcmp(method, "HEAD") == 0)
		method = "GET";
	allow[0] = '\0';
	for (size_t i = 0; i < api_routes_n; i++) {
		const struct route *route = &api_routes[i];
		const char *found[ROUTE_PARAMS_MAX] = { 0 };

		if (!pattern_match(route->pattern, uri, found))
			continue;
		if (strcmp(route->method, method) == 0) {
			memcpy(param, found, sizeof(found));
			return route;
		}
		n += (size_t)snprintf(allow + n, 64 - n, "%s%s", n ? ", " : "", route->method);
		if (strcmp(route->method, "GET") == 0)
			n += (size_t)snprintf(allow + n, 64 - n, ", HEAD");
	}
	if (n)
		err_set(e, "method_not_allowed", EINVAL, "this route takes %s, not %.20s", allow,
			method);
	else
		err_set(e, "route_not_found", ENOENT, "there is no such route");
	return NULL;
}
