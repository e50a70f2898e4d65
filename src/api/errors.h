/* The error catalogue: what a code means to an HTTP client. */
#ifndef CLOCHE_API_ERRORS_H
#define CLOCHE_API_ERRORS_H

#include <jansson.h>
#include <stdbool.h>

struct err;

struct api_error {
	const char *code;
	int status;
	bool retryable;
	const char *message, *fix; /* used where the failing place gave none */
};

/* The entry of a code; NULL when it is not in the catalogue. */
const struct api_error *api_error_find(const char *code);

/* The entry of a code, "internal" for one that is not in the catalogue. */
const struct api_error *api_error_get(const char *code);

/*
 * {"error":{code,message,fix,details,retryable,requestId}} for e. details may be NULL; the caller
 * keeps its reference. An error that is not in the catalogue becomes "internal" without its words,
 * which are logged with the request id. NULL when out of memory.
 */
json_t *api_error_json(const struct err *e, json_t *details, const char *request_id);

#endif
