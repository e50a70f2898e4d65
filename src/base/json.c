/* The field table is the schema: one checker serves HTTP bodies, control messages and manifests. */
#include "base/json.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/str.h"

static const char *const kind_names[] = {
	[JSON_KIND_STRING] = "a string",
	[JSON_KIND_INT] = "an integer",
	[JSON_KIND_BOOL] = "true or false",
	[JSON_KIND_OBJECT] = "an object",
	[JSON_KIND_ARRAY] = "an array",
	[JSON_KIND_STRINGS] = "an array of strings",
	[JSON_KIND_MAP] = "an object whose values are strings",
};

static void problem_add(json_t *problems, const char *field, const char *hint, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

static void problem_add(json_t *problems, const char *field, const char *hint, const char *fmt, ...)
{
	char text[256];
	va_list ap;
	json_t *p;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	p = json_pack("{s:s,s:s}", "field", field, "problem", text);
	if (hint)
		json_object_set_new(p, "hint", json_string(hint));
	json_array_append_new(problems, p);
}

static bool all_strings(const json_t *v)
{
	json_t *item;
	const char *key;
	size_t i;

	if (json_is_array(v)) {
		json_array_foreach ((json_t *)(uintptr_t)v, i, item)
			if (!json_is_string(item))
				return false;
		return true;
	}
	json_object_foreach ((json_t *)(uintptr_t)v, key, item)
		if (!json_is_string(item))
			return false;
	return true;
}

static bool kind_fits(const json_t *v, enum json_kind kind)
{
	switch (kind) {
	case JSON_KIND_STRING:
		return json_is_string(v);
	case JSON_KIND_INT:
		return json_is_integer(v);
	case JSON_KIND_BOOL:
		return json_is_boolean(v);
	case JSON_KIND_OBJECT:
		return json_is_object(v);
	case JSON_KIND_ARRAY:
		return json_is_array(v);
	case JSON_KIND_STRINGS:
		return json_is_array(v) && all_strings(v);
	case JSON_KIND_MAP:
		return json_is_object(v) && all_strings(v);
	}
	return false;
}

static void check_range(const json_t *v, const struct json_field *f, json_t *problems)
{
	const char *unit = "";
	int64_t n;

	switch (f->kind) {
	case JSON_KIND_INT:
		n = json_integer_value(v);
		break;
	case JSON_KIND_STRING:
		n = (int64_t)json_string_length(v);
		unit = " bytes";
		break;
	case JSON_KIND_ARRAY:
	case JSON_KIND_STRINGS:
		n = (int64_t)json_array_size(v);
		unit = " elements";
		break;
	case JSON_KIND_OBJECT:
	case JSON_KIND_MAP:
		n = (int64_t)json_object_size(v);
		unit = " members";
		break;
	default:
		return;
	}
	if (n < f->min || n > f->max)
		problem_add(problems, f->name, NULL, "is %lld%s; must be %lld to %lld%s",
			    (long long)n, unit, (long long)f->min, (long long)f->max, unit);
}

static void check_choice(const json_t *v, const struct json_field *f, json_t *problems)
{
	const char *s = json_string_value(v);
	char list[160] = "";
	size_t n = 0;

	for (; f->choices[n]; n++) {
		size_t at = strlen(list);

		if (strcmp(s, f->choices[n]) == 0)
			return;
		snprintf(list + at, sizeof(list) - at, "%s%s", n ? ", " : "", f->choices[n]);
	}
	problem_add(problems, f->name, str_nearest(s, f->choices, n), "must be one of: %s", list);
}

static const struct json_field *field_find(const struct json_field *fields, size_t n,
					   const char *name)
{
	for (size_t i = 0; i < n; i++)
		if (strcmp(fields[i].name, name) == 0)
			return &fields[i];
	return NULL;
}

static void unknown_add(const struct json_field *fields, size_t n, const char *name,
			json_t *problems)
{
	const char *names[64];

	for (size_t i = 0; i < n && i < ARRAY_SIZE(names); i++)
		names[i] = fields[i].name;
	problem_add(problems, name,
		    str_nearest(name, names, n < ARRAY_SIZE(names) ? n : ARRAY_SIZE(names)),
		    "is not a known field");
}

int json_check(const json_t *obj, const struct json_field *fields, size_t n, json_t *problems)
{
	size_t before = json_array_size(problems);
	const char *key;
	json_t *v;

	if (!json_is_object(obj)) {
		problem_add(problems, "", NULL, "must be an object");
		return 1;
	}
	json_object_foreach ((json_t *)(uintptr_t)obj, key, v) {
		const struct json_field *f = field_find(fields, n, key);

		if (!f)
			unknown_add(fields, n, key, problems);
		else if (json_is_null(v) && f->nullable)
			continue;
		else if (!kind_fits(v, f->kind))
			problem_add(problems, key, NULL, "must be %s", kind_names[f->kind]);
		else if (f->choices)
			check_choice(v, f, problems);
		else
			check_range(v, f, problems);
	}
	for (size_t i = 0; i < n; i++)
		if (fields[i].required && !json_object_get(obj, fields[i].name))
			problem_add(problems, fields[i].name, NULL, "is required");
	return (int)(json_array_size(problems) - before);
}

json_t *json_parse(const char *text, size_t len, struct err *e)
{
	json_error_t je;
	json_t *v = json_loadb(text, len, JSON_REJECT_DUPLICATES, &je);

	if (!v)
		err_set(e, "json_malformed", EINVAL, "line %d, column %d: %s", je.line, je.column,
			je.text);
	return v;
}

const char *json_get_str(const json_t *obj, const char *name, const char *absent)
{
	const json_t *v = json_object_get(obj, name);

	return json_is_string(v) ? json_string_value(v) : absent;
}

int64_t json_get_int(const json_t *obj, const char *name, int64_t absent)
{
	const json_t *v = json_object_get(obj, name);

	return json_is_integer(v) ? json_integer_value(v) : absent;
}

bool json_get_bool(const json_t *obj, const char *name, bool absent)
{
	const json_t *v = json_object_get(obj, name);

	return json_is_boolean(v) ? json_boolean_value(v) : absent;
}
