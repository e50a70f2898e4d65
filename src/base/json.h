/*
 * Helpers over jansson: strict checking of an object against a table of fields, and short ways
 * to read values that were checked. All strings are UTF-8; NUL inside a string is refused.
 */
#ifndef CLOCHE_BASE_JSON_H
#define CLOCHE_BASE_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"

struct err;

CLEANUP_DEFINE(json_t *, cleanup_json, json_decref)
#define _cleanup_json_ _cleanup_(cleanup_json)

enum json_kind {
	JSON_KIND_STRING, /* min..max: bytes */
	JSON_KIND_INT,	  /* min..max: value */
	JSON_KIND_BOOL,
	JSON_KIND_OBJECT,  /* min..max: members */
	JSON_KIND_ARRAY,   /* min..max: elements */
	JSON_KIND_STRINGS, /* array of strings; min..max: elements */
	JSON_KIND_MAP,	   /* object of strings; min..max: members */
};

struct json_field {
	const char *name;
	enum json_kind kind;
	bool required;
	bool nullable; /* null counts as absent */
	int64_t min, max;
	const char *const *choices; /* NULL, or the strings allowed, NULL-terminated */
};

/*
 * Checks that obj is an object whose members are all in fields[n] and fit. Every problem is
 * appended to `problems` as {"field":…,"problem":…,"hint"?:nearest field name}; returns their
 * number.
 */
int json_check(const json_t *obj, const struct json_field *fields, size_t n, json_t *problems);

/* Parses text of len bytes; on failure the message names line, column and the cause. */
json_t *json_parse(const char *text, size_t len, struct err *e);

/* Values with a default when the member is absent or null. Borrowed pointers. */
const char *json_get_str(const json_t *obj, const char *name, const char *absent);
int64_t json_get_int(const json_t *obj, const char *name, int64_t absent);
bool json_get_bool(const json_t *obj, const char *name, bool absent);

#endif
