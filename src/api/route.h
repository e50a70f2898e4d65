/*
 * The routes: one table says what exists, who may use it, which fields it takes and gives. The
 * router, the validation and /openapi.json all read it.
 */
#ifndef CLOCHE_API_ROUTE_H
#define CLOCHE_API_ROUTE_H

#include <stddef.h>

#include "base/json.h"
#include "store/store.h"

struct err;
struct request;
struct uri;

#define ROUTE_PARAMS_MAX 2

/* A kind of JSON object: what it is called and which fields it has. */
struct shape {
	const char *name;
	const struct json_field *fields;
	size_t n;
};

enum route_flag {
	ROUTE_OPEN = 1,	    /* needs no key */
	ROUTE_METADATA = 2, /* takes query parameters metadata.KEY=VALUE */
	ROUTE_LIST = 4,	    /* answers {"data":[…],"nextCursor":…} of its shape */
	ROUTE_NDJSON = 8,   /* may answer, or always answers, application/x-ndjson */
	ROUTE_BYTES = 16,   /* answers a raw body */
	ROUTE_LARGE = 32,   /* takes JSON of up to JSON_BODY_LARGE, for a command's input */
};

/* A raw body that is taken piece by piece; the request's handle() then finishes. */
struct upload_ops {
	int (*begin)(struct request *r, struct err *e);
	int (*data)(struct request *r, const void *p, size_t n, struct err *e);
};

typedef int (*route_fn)(struct request *r, struct err *e);

struct route {
	const char *method;
	const char *pattern; /* "/v1/sandboxes/{sandbox}" */
	enum key_role role;  /* the least that is needed */
	unsigned flags;
	route_fn handle;
	route_fn check; /* or NULL: what the field tables cannot say, by request_problem() */
	const struct shape *query, *body;
	const struct shape *answer; /* or NULL: not described */
	const struct upload_ops *upload;
	const char *summary;
};

extern const struct route api_routes[];
extern const size_t api_routes_n;

/*
 * The route for a method and a path, with its parameters. NULL and e ("route_not_found",
 * "method_not_allowed") when there is none; *allow then tells the methods that the path has, as
 * in "GET, PUT", or is "". HEAD finds GET's route.
 */
const struct route *route_find(const char *method, const struct uri *uri,
			       const char *param[ROUTE_PARAMS_MAX], char allow[64], struct err *e);

#endif
