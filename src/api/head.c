/*
 * What is decided before a body is read: may this request be made at all, and by which route is it
 * answered. A client without a valid key learns nothing, not even which routes there are.
 */
#include <errno.h>
#include <string.h>

#include "api/check.h"
#include "api/dispatch.h"
#include "api/request.h"

static bool host_is_local(const char *name, size_t n)
{
	static const char *const local[] = { "localhost", "127.0.0.1", "[::1]" };

	for (size_t i = 0; i < ARRAY_SIZE(local); i++)
		if (strlen(local[i]) == n && strncasecmp(name, local[i], n) == 0)
			return true;
	return n > 10 && strncasecmp(name + n - 10, ".localhost", 10) == 0;
}

static int check_host(struct request *r, struct err *e)
{
	const char *host = request_in(r, "Host");
	const char *port;
	size_t n;

	if (!host || (!r->api->loopback && !r->api->hosts_n))
		return 0;
	port = strrchr(host, ':');
	n = port && !strchr(port, ']') ? (size_t)(port - host) : strlen(host);
	if (host_is_local(host, n))
		return 0;
	for (size_t i = 0; i < r->api->hosts_n; i++)
		if (strlen(r->api->hosts[i]) == n && strncasecmp(r->api->hosts[i], host, n) == 0)
			return 0;
	return err_set(e, "host_not_allowed", EACCES, "the Host header names another site");
}

static int check_key(struct request *r, struct err *e)
{
	const char *auth = request_in(r, "Authorization");

	if (!auth)
		return err_set(e, "key_missing", EACCES, "the request carries no API key");
	if (strncasecmp(auth, "Bearer ", 7) != 0)
		return err_set(e, "key_missing", EACCES,
			       "the Authorization header is not of the form Bearer clk_…");
	return store_key_find(r->api->store, auth + 7, &r->key, e);
}

static int check_role(struct request *r, struct err *e)
{
	if (r->key.role >= r->route->role)
		return 0;
	return err_set(e, "role_insufficient", EACCES,
		       "the key's role is %s; this needs at least %s", key_role_name(r->key.role),
		       key_role_name(r->route->role));
}

static bool route_is_open(const struct route *route)
{
	return route && route->flags & ROUTE_OPEN;
}

int request_head(struct request *r, struct err *e)
{
	struct err none = { 0 };
	char allow[64];

	if (uri_parse(r->target, &r->uri, e))
		return -EINVAL;
	if (check_host(r, e))
		return -EACCES;
	r->route = route_find(r->method, &r->uri, r->param, allow, &none);
	/* Without a key nothing is said, not even which routes there are. */
	if (!route_is_open(r->route) && check_key(r, e))
		return -EACCES;
	if (!r->route) {
		*e = none;
		return allow[0] ? request_header(r, "Allow", allow, e) ?: -EINVAL : -ENOENT;
	}
	if (!route_is_open(r->route) && check_role(r, e))
		return -EACCES;
	check_query(r);
	if (!r->route->upload)
		return 0;
	if (request_check_problems(r, e))
		return -EINVAL;
	return r->route->upload->begin(r, e);
}
