/*
 * Every check notes what is wrong and goes on, so that a client learns all of it at once. What
 * json_check() refused already (a wrong type) is skipped here: the getters give the default then.
 */
#include "api/check.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "api/errors.h"
#include "api/request.h"
#include "base/str.h"
#include "base/utf8.h"

#define LEASE_MIN_S 10
#define LEASE_MAX_S (366LL * 24 * 3600)

static void problem_add(struct request *r, const char *code, const char *field, const char *fmt,
			va_list ap) __attribute__((format(printf, 4, 0)));

static void problem_add(struct request *r, const char *code, const char *field, const char *fmt,
			va_list ap)
{
	char text[256];
	json_t *p;

	vsnprintf(text, sizeof(text), fmt, ap);
	p = json_pack("{s:s,s:s}", "field", field, "problem", text);
	if (p && code)
		json_object_set_new(p, "code", json_string(code));
	json_array_append_new(r->problems, p);
}

void request_problem(struct request *r, const char *field, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	problem_add(r, NULL, field, fmt, ap);
	va_end(ap);
}

void request_problem_code(struct request *r, const char *code, const char *field, const char *fmt,
			  ...)
{
	va_list ap;

	va_start(ap, fmt);
	problem_add(r, code, field, fmt, ap);
	va_end(ap);
}

/* "vcpus is 99; must be 1 to 32" for every problem, cut where the message is full. */
static void problems_text(const json_t *problems, char *out, size_t size)
{
	size_t i, n = 0;
	json_t *p;

	json_array_foreach ((json_t *)(uintptr_t)problems, i, p) {
		int w = snprintf(out + n, size - n, "%s%s %s", i ? "; " : "",
				 json_get_str(p, "field", "?"), json_get_str(p, "problem", ""));

		if (w < 0 || (size_t)w >= size - n)
			return;
		n += (size_t)w;
	}
}

int request_check_problems(struct request *r, struct err *e)
{
	size_t n = json_array_size(r->problems);
	const char *code = NULL;
	char text[400] = "";

	if (n == 0)
		return 0;
	if (n == 1)
		code = json_get_str(json_array_get(r->problems, 0), "code", NULL);
	problems_text(r->problems, text, sizeof(text));
	json_decref(r->details);
	r->details = json_pack("{s:O}", "fields", r->problems);
	/* Codes are literals of the catalogue, which outlive the problem. */
	if (code)
		return err_set(e, api_error_get(code)->code, EINVAL, "%s", text);
	return err_set(e, "validation_failed", EINVAL, "%s", text);
}

static const struct json_field *field_find(const struct shape *shape, const char *name)
{
	for (size_t i = 0; shape && i < shape->n; i++)
		if (strcmp(shape->fields[i].name, name) == 0)
			return &shape->fields[i];
	return NULL;
}

/* A parameter's text as the type its field has; left a string when it does not look like one. */
static json_t *param_value(const struct json_field *f, const char *text)
{
	int64_t n;

	if (f && f->kind == JSON_KIND_INT && str_to_int(text, INT64_MIN, INT64_MAX, &n) == 0)
		return json_integer(n);
	if (f && f->kind == JSON_KIND_BOOL && strcmp(text, "true") == 0)
		return json_true();
	if (f && f->kind == JSON_KIND_BOOL && strcmp(text, "false") == 0)
		return json_false();
	return json_string(text);
}

void check_query(struct request *r)
{
	const struct shape *shape = r->route->query;
	_cleanup_json_ json_t *metadata = json_object();

	for (size_t i = 0; i < r->uri.n_params; i++) {
		const char *name = r->uri.params[i].name, *value = r->uri.params[i].value;
		bool match = r->route->flags & ROUTE_METADATA && strncmp(name, "metadata.", 9) == 0;
		json_t *into = match ? metadata : r->query;
		const char *key = match ? name + 9 : name;

		if (json_object_get(into, key))
			request_problem(r, name, "is given twice");
		json_object_set_new(into, key, param_value(field_find(shape, name), value));
	}
	json_check(r->query, shape ? shape->fields : NULL, shape ? shape->n : 0, r->problems);
	if (json_object_size(metadata))
		json_object_set(r->query, "metadata", metadata);
}

int check_body(struct request *r, struct err *e)
{
	const struct shape *shape = r->route->body;

	if (r->text.len) {
		r->body = json_parse(r->text.data, r->text.len, e);
		if (!r->body)
			return -EINVAL;
	} else {
		r->body = json_object();
	}
	json_check(r->body, shape ? shape->fields : NULL, shape ? shape->n : 0, r->problems);
	return 0;
}

static bool alnum(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

void check_name(struct request *r, const char *field, const char *name)
{
	if (!name)
		return;
	for (const char *c = name; *c; c++)
		if (!alnum(*c) && (c == name || !strchr("._-", *c))) {
			request_problem(r, field,
					"must be letters, digits, '.', '_', '-', and "
					"begin with a letter or digit");
			return;
		}
	if (id_valid("sbx", name))
		request_problem(r, field, "must not look like an id");
}

void check_lease(struct request *r, const char *field)
{
	json_t *v = json_object_get(r->body, field);
	int64_t n = json_integer_value(v);

	if (!json_is_integer(v))
		return;
	if (n < LEASE_MIN_S)
		request_problem_code(r, "lease_too_short", field, "is %lld; must be at least %d",
				     (long long)n, LEASE_MIN_S);
	else if (n > LEASE_MAX_S)
		request_problem(r, field, "is %lld; must be at most %lld, or null for never",
				(long long)n, LEASE_MAX_S);
}

/* The member's path as details show it: "env.PATH". */
static void member_problem(struct request *r, const char *field, const char *key, const char *what)
{
	char name[160];

	snprintf(name, sizeof(name), "%s.%.100s", field, key);
	/* A cut may have split a character; then name the object only. */
	request_problem(r, utf8_valid(name, strlen(name)) ? name : field, "%s", what);
}

void check_env(struct request *r, const char *field)
{
	json_t *env = json_object_get(r->body, field), *v;
	const char *key;

	json_object_foreach (env, key, v) {
		bool ok = key[0] && !(key[0] >= '0' && key[0] <= '9');

		for (const char *c = key; ok && *c; c++)
			ok = alnum(*c) || *c == '_';
		if (!ok)
			member_problem(r, field, key,
				       "must be a name of letters, digits and '_', not beginning "
				       "with a digit");
	}
}

void check_metadata(struct request *r, const char *field)
{
	json_t *metadata = json_object_get(r->body, field), *v;
	const char *key;

	json_object_foreach (metadata, key, v) {
		if (!key[0] || strlen(key) > 64)
			member_problem(r, field, key, "must be a key of 1 to 64 bytes");
		if (json_string_length(v) > 512)
			member_problem(r, field, key, "must have a value of at most 512 bytes");
	}
}

void check_path(struct request *r, const char *field, const char *path)
{
	if (path && path[0] != '/')
		request_problem(r, field, "must be an absolute path");
}

int check_mode(struct request *r, const char *field, const char *text)
{
	int mode = 0;

	if (!text)
		return -1;
	if (!*text || strlen(text) > 5 || strspn(text, "01234567") != strlen(text)) {
		request_problem(r, field, "must be an octal mode such as \"0644\"");
		return -1;
	}
	for (const char *c = text; *c; c++)
		mode = mode * 8 + (*c - '0');
	if (mode > 07777) {
		request_problem(r, field, "must be an octal mode of at most \"7777\"");
		return -1;
	}
	return mode;
}
