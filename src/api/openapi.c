/*
 * The description of the API (OpenAPI 3.1), made from the route table and the field tables, so it
 * cannot say anything else than what the router and the checks do.
 */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "api/handlers.h"
#include "api/request.h"
#include "api/shapes.h"

static void set(json_t *o, const char *name, json_t *v)
{
	json_object_set_new(o, name, v);
}

static json_t *type_json(const char *type, bool nullable)
{
	return nullable ? json_pack("[s,s]", type, "null") : json_string(type);
}

static void set_range(json_t *o, const struct json_field *f, const char *low, const char *high)
{
	if (f->min > INT64_MIN && !(f->min == 0 && f->kind != JSON_KIND_INT))
		set(o, low, json_integer(f->min));
	if (f->max < INT64_MAX)
		set(o, high, json_integer(f->max));
}

static json_t *choices_json(const struct json_field *f)
{
	json_t *v = json_array();

	for (size_t i = 0; f->choices[i]; i++)
		json_array_append_new(v, json_string(f->choices[i]));
	if (f->nullable)
		json_array_append_new(v, json_null());
	return v;
}

static json_t *field_json(const struct json_field *f)
{
	static const char *const types[] = {
		[JSON_KIND_STRING] = "string", [JSON_KIND_INT] = "integer",
		[JSON_KIND_BOOL] = "boolean",  [JSON_KIND_OBJECT] = "object",
		[JSON_KIND_ARRAY] = "array",   [JSON_KIND_STRINGS] = "array",
		[JSON_KIND_MAP] = "object",
	};
	json_t *o = json_object();

	set(o, "type", type_json(types[f->kind], f->nullable));
	if (f->kind == JSON_KIND_INT)
		set_range(o, f, "minimum", "maximum");
	if (f->kind == JSON_KIND_STRING && !f->choices)
		set_range(o, f, "minLength", "maxLength");
	if (f->kind == JSON_KIND_STRINGS || f->kind == JSON_KIND_ARRAY)
		set_range(o, f, "minItems", "maxItems");
	if (f->kind == JSON_KIND_MAP)
		set_range(o, f, "minProperties", "maxProperties");
	if (f->choices)
		set(o, "enum", choices_json(f));
	if (f->kind == JSON_KIND_STRINGS)
		set(o, "items", json_pack("{s:s}", "type", "string"));
	if (f->kind == JSON_KIND_MAP)
		set(o, "additionalProperties", json_pack("{s:s}", "type", "string"));
	return o;
}

static json_t *shape_json(const struct shape *s)
{
	json_t *properties = json_object(), *required = json_array();

	for (size_t i = 0; i < s->n; i++) {
		set(properties, s->fields[i].name, field_json(&s->fields[i]));
		if (s->fields[i].required)
			json_array_append_new(required, json_string(s->fields[i].name));
	}
	return json_pack("{s:s,s:o,s:o,s:b}", "type", "object", "properties", properties,
			 "required", required, "additionalProperties", 0);
}

static json_t *shape_ref(const char *name)
{
	char ref[96];

	snprintf(ref, sizeof(ref), "#/components/schemas/%s", name);
	return json_pack("{s:s}", "$ref", ref);
}

static json_t *content_json(const char *type, json_t *schema)
{
	return json_pack("{s:{s:o}}", type, "schema", schema);
}

static json_t *list_json(const char *name)
{
	return json_pack("{s:s,s:{s:{s:s,s:o},s:{s:[s,s]}},s:[s,s]}", "type", "object",
			 "properties", "data", "type", "array", "items", shape_ref(name),
			 "nextCursor", "type", "string", "null", "required", "data", "nextCursor");
}

static json_t *answer_json(const struct route *r)
{
	json_t *content = NULL;

	if (r->answer)
		content = content_json("application/json", r->flags & ROUTE_LIST
								   ? list_json(r->answer->name)
								   : shape_ref(r->answer->name));
	else if (!(r->flags & (ROUTE_BYTES | ROUTE_NDJSON)))
		content = content_json("application/json", json_pack("{s:s}", "type", "object"));
	else
		content = json_object();
	if (r->flags & ROUTE_NDJSON)
		set(content, "application/x-ndjson",
		    json_pack("{s:{s:s}}", "schema", "type", "string"));
	if (r->flags & ROUTE_BYTES)
		set(content, "application/octet-stream", json_object());
	return json_pack("{s:{s:s,s:o},s:{s:s,s:o}}", "2XX", "description", "Done", "content",
			 content, "default", "description", "An error of the catalogue", "content",
			 content_json("application/json", shape_ref("Error")));
}

static json_t *parameter_json(const char *name, const char *in, bool required, json_t *schema)
{
	return json_pack("{s:s,s:s,s:b,s:o}", "name", name, "in", in, "required", required,
			 "schema", schema);
}

static json_t *parameters_json(const struct route *r)
{
	json_t *list = json_array(), *string = json_pack("{s:s}", "type", "string");
	const char *p = r->pattern;
	char name[32];

	while ((p = strchr(p, '{'))) {
		snprintf(name, sizeof(name), "%.*s", (int)strcspn(p + 1, "}"), p + 1);
		json_array_append_new(list,
				      parameter_json(name, "path", true, json_incref(string)));
		p++;
	}
	for (size_t i = 0; r->query && i < r->query->n; i++)
		json_array_append_new(list, parameter_json(r->query->fields[i].name, "query",
							   r->query->fields[i].required,
							   field_json(&r->query->fields[i])));
	if (r->flags & ROUTE_METADATA)
		json_array_append_new(list, json_pack("{s:s,s:s,s:s,s:b,s:o}", "name", "metadata",
						      "in", "query", "description",
						      "metadata.KEY=VALUE, any number of them",
						      "required", 0, "schema",
						      json_pack("{s:s}", "type", "object")));
	if (strcmp(r->method, "POST") == 0 && !r->upload)
		json_array_append_new(list, parameter_json("Idempotency-Key", "header", false,
							   json_incref(string)));
	json_decref(string);
	return list;
}

/* "POST /v1/sandboxes/{sandbox}/stop" → "post_v1_sandboxes_sandbox_stop" */
static void operation_id(const struct route *r, char out[128])
{
	size_t n = 0;

	for (const char *m = r->method; *m && n < 127; m++)
		out[n++] = (char)tolower((unsigned char)*m);
	for (const char *p = r->pattern; *p && n < 127; p++)
		if (*p == '/')
			out[n++] = '_';
		else if (isalnum((unsigned char)*p))
			out[n++] = *p;
	out[n] = '\0';
}

static json_t *route_json(const struct route *r)
{
	char id[128];
	json_t *o;

	operation_id(r, id);
	o = json_pack("{s:s,s:s,s:o,s:o,s:s}", "operationId", id, "summary", r->summary,
		      "parameters", parameters_json(r), "responses", answer_json(r), "x-role",
		      r->flags & ROUTE_OPEN ? "none" : key_role_name(r->role));
	if (r->body)
		set(o, "requestBody",
		    json_pack("{s:o}", "content",
			      content_json("application/json", shape_ref(r->body->name))));
	if (r->upload)
		set(o, "requestBody",
		    json_pack("{s:{s:{}}}", "content", "application/octet-stream"));
	if (r->flags & ROUTE_OPEN)
		set(o, "security", json_array());
	return o;
}

static json_t *paths_json(void)
{
	json_t *paths = json_object();

	for (size_t i = 0; i < api_routes_n; i++) {
		const struct route *r = &api_routes[i];
		json_t *path = json_object_get(paths, r->pattern);
		char method[8] = "";

		if (!path) {
			path = json_object();
			set(paths, r->pattern, path);
		}
		for (size_t k = 0; r->method[k] && k < sizeof(method) - 1; k++)
			method[k] = (char)tolower((unsigned char)r->method[k]);
		set(path, method, route_json(r));
	}
	return paths;
}

static json_t *schemas_json(void)
{
	json_t *o = json_object();

	for (size_t i = 0; shapes_all[i]; i++)
		set(o, shapes_all[i]->name, shape_json(shapes_all[i]));
	set(o, "Error",
	    json_pack("{s:s,s:{s:{s:s,s:{s:{s:s},s:{s:s},s:{s:s},s:{s:s},s:{s:s},s:{s:s}},"
		      "s:[s,s,s,s,s,s]}},s:[s]}",
		      "type", "object", "properties", "error", "type", "object", "properties",
		      "code", "type", "string", "message", "type", "string", "fix", "type",
		      "string", "details", "type", "object", "retryable", "type", "boolean",
		      "requestId", "type", "string", "required", "code", "message", "fix",
		      "details", "retryable", "requestId", "required", "error"));
	return o;
}

json_t *openapi_document(const char *version)
{
	return json_pack("{s:s,s:{s:s,s:s},s:[{s:[]}],s:o,s:{s:o,s:{s:{s:s,s:s}}}}", "openapi",
			 "3.1.0", "info", "title", "Cloche", "version", version, "security", "key",
			 "paths", paths_json(), "components", "schemas", schemas_json(),
			 "securitySchemes", "key", "type", "http", "scheme", "bearer");
}

int openapi_get(struct request *r, struct err *e)
{
	return request_json(r, 200, openapi_document(r->api->version), e);
}
