/* The API's parsers and encoders: targets, ranges, routes, error answers, lines of a stream. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "api/errors.h"
#include "api/ndjson.h"
#include "api/range.h"
#include "api/route.h"
#include "api/uri.h"
#include "base/base64.h"
#include "base/err.h"
#include "base/json.h"
#include "base/utf8.h"
#include "proto/agent.h"
#include "sandbox/agent_conn.h"

/* ---- targets ---- */

static void target_is_decoded(void **state)
{
	struct uri u;

	(void)state;
	assert_int_equal(uri_parse("/v1/a%2Fb/%C3%BC?x=1+2%2B&y&=z&x=%26", &u, NULL), 0);
	assert_int_equal(u.n_segments, 3);
	assert_string_equal(u.segments[1], "a/b");
	assert_string_equal(u.segments[2], "ü");
	assert_int_equal(u.n_params, 4);
	assert_string_equal(u.params[0].value, "1 2+");
	assert_string_equal(u.params[1].name, "y");
	assert_string_equal(u.params[1].value, "");
	assert_string_equal(u.params[2].name, "");
	assert_string_equal(u.params[3].value, "&");
	uri_free(&u);
	assert_int_equal(uri_parse("/", &u, NULL), 0);
	assert_int_equal(u.n_segments, 1);
	assert_string_equal(u.segments[0], "");
	uri_free(&u);
}

static void bad_targets(void **state)
{
	static const char *const bad[] = { "",	   "x",	   "*",		"http://h/", "/%",
					   "/%4",  "/%g0", "/%00",	"/?a=%00",   "/%ff",
					   "/%C3", "/?%",  "/%ed%a0%80" };
	char many[512] = "/?";
	struct uri u;
	struct err e;

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		assert_int_equal(uri_parse(bad[i], &u, &e), -EINVAL);
		assert_string_equal(e.code, "uri_malformed");
	}
	for (size_t i = 0; i <= URI_PARAMS_MAX; i++)
		memcpy(many + 2 + i * 4, "a=b&", 5);
	assert_int_equal(uri_parse(many, &u, &e), -EINVAL);
}

/* ---- routes ---- */

static const struct route *find(const char *method, const char *target, const char *param[2],
				struct uri *u, char allow[64], struct err *e)
{
	assert_int_equal(uri_parse(target, u, e), 0);
	return route_find(method, u, param, allow, e);
}

static void routes_match(void **state)
{
	const char *param[2] = { 0 };
	const struct route *r;
	char allow[64];
	struct uri u;
	struct err e;

	(void)state;
	r = find("GET", "/v1/sandboxes/a%2Fb/processes/p1/output?x=1", param, &u, allow, &e);
	assert_non_null(r);
	assert_string_equal(r->pattern, "/v1/sandboxes/{sandbox}/processes/{process}/output");
	assert_string_equal(param[0], "a/b");
	assert_string_equal(param[1], "p1");
	uri_free(&u);
	assert_non_null(find("HEAD", "/healthz", param, &u, allow, &e));
	uri_free(&u);
	assert_null(find("PUT", "/v1/sandboxes", param, &u, allow, &e));
	assert_string_equal(e.code, "method_not_allowed");
	assert_string_equal(allow, "GET, HEAD, POST");
	uri_free(&u);
	assert_null(find("GET", "/v1/sandboxes/", param, &u, allow, &e));
	assert_string_equal(e.code, "route_not_found");
	assert_string_equal(allow, "");
	uri_free(&u);
}

/* Known fault 41: whatever is not a GET needs more than a read-only key. */
static void writes_need_a_role(void **state)
{
	(void)state;
	for (size_t i = 0; i < api_routes_n; i++) {
		const struct route *r = &api_routes[i];

		assert_true(strcmp(r->method, "GET") == 0 || r->role > KEY_READ_ONLY);
		assert_true(r->role == KEY_ADMIN || !strstr(r->pattern, "/v1/keys"));
		assert_true(strlen(r->summary) > 5);
		for (size_t k = 0; k < i; k++)
			assert_false(strcmp(r->pattern, api_routes[k].pattern) == 0 &&
				     strcmp(r->method, api_routes[k].method) == 0);
	}
}

/* ---- ranges ---- */

static void ranges(void **state)
{
	static const struct {
		const char *header;
		enum range_kind kind;
		uint64_t offset, length;
	} cases[] = {
		{ NULL, RANGE_WHOLE, 0, 0 },
		{ "bytes=0-0", RANGE_PART, 0, 1 },
		{ "bytes=3-", RANGE_PART, 3, 7 },
		{ "bytes=-3", RANGE_PART, 7, 3 },
		{ "bytes=-30", RANGE_PART, 0, 10 },
		{ "bytes=2-30", RANGE_PART, 2, 8 },
		{ "bytes=9-9223372036854775807", RANGE_PART, 9, 1 },
		{ "bytes=10-", RANGE_IMPOSSIBLE, 0, 0 },
		{ "bytes=-0", RANGE_IMPOSSIBLE, 0, 0 },
		{ "bytes=0-1,3-4", RANGE_WHOLE, 0, 0 },
		{ "bytes=2-1", RANGE_WHOLE, 0, 0 },
		{ "bytes=-", RANGE_WHOLE, 0, 0 },
		{ "bytes=", RANGE_WHOLE, 0, 0 },
		{ "bytes=1-x", RANGE_WHOLE, 0, 0 },
		{ "bytes=+1-2", RANGE_WHOLE, 0, 0 },
		{ "bytes=99999999999999999999-", RANGE_WHOLE, 0, 0 },
		{ "chars=0-1", RANGE_WHOLE, 0, 0 },
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		uint64_t offset = 0, length = 0;

		assert_int_equal(range_parse(cases[i].header, 10, &offset, &length), cases[i].kind);
		assert_int_equal(offset, cases[i].offset);
		assert_int_equal(length, cases[i].length);
	}
	assert_int_equal(range_parse("bytes=-1", 0, &(uint64_t){ 0 }, &(uint64_t){ 0 }),
			 RANGE_IMPOSSIBLE);
}

/* ---- errors ---- */

static void errors_are_mapped(void **state)
{
	_cleanup_json_ json_t *v = NULL, *unknown = NULL;
	const json_t *error;
	struct err e;

	(void)state;
	err_set(&e, "name_taken", EEXIST, "a sandbox named \"x\" exists");
	v = api_error_json(&e, NULL, "req_1");
	error = json_object_get(v, "error");
	assert_string_equal(json_get_str(error, "code", ""), "name_taken");
	assert_string_equal(json_get_str(error, "message", ""), "a sandbox named \"x\" exists");
	assert_true(strlen(json_get_str(error, "fix", "")) > 10);
	assert_string_equal(json_get_str(error, "requestId", ""), "req_1");
	assert_int_equal(api_error_get("name_taken")->status, 409);
	assert_true(api_error_get("capacity_memory")->retryable);

	err_set(&e, "of_another_module", EIO, "with a private detail");
	unknown = api_error_json(&e, NULL, "req_2");
	error = json_object_get(unknown, "error");
	assert_string_equal(json_get_str(error, "code", ""), "internal");
	assert_null(strstr(json_get_str(error, "message", ""), "private"));
	assert_int_equal(api_error_get("of_another_module")->status, 500);
	assert_string_equal(api_error_get(NULL)->code, "internal");
}

/* A message that quotes a client's bytes and was cut in a character still makes an answer. */
static void a_cut_message_is_still_an_answer(void **state)
{
	_cleanup_json_ json_t *v = NULL;
	struct err e;

	(void)state;
	err_set(&e, "not_found", ENOENT, "no file %s", "/x\xc3");
	v = api_error_json(&e, NULL, "req_1");
	assert_non_null(v);
	assert_true(strlen(json_get_str(json_object_get(v, "error"), "message", "")) > 5);
}

/* Every code that the agent can send has an entry, with words of its own. */
static void the_agents_codes_are_known(void **state)
{
#define CODE(name) #name,
	static const char *const codes[] = { AGENT_ERROR_CODES(CODE) "stream_broken",
					     "agent_timeout", "agent_protocol", "agent_error" };

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(codes); i++)
		if (!api_error_find(codes[i]))
			fail_msg("%s is not in errors.def", codes[i]);
}

/* ---- lines ---- */

static json_t *line_take(struct ndjson *n)
{
	char *p = n->out.data + n->taken, *end = memchr(p, '\n', n->out.len - n->taken);
	json_t *v;

	assert_non_null(end);
	v = json_loadb(p, (size_t)(end - p), JSON_ALLOW_NUL, NULL);
	assert_non_null(v);
	n->taken = (size_t)(end + 1 - n->out.data);
	return v;
}

static void expect(struct ndjson *n, const char *type, int64_t offset, const char *text)
{
	_cleanup_json_ json_t *v = line_take(n);

	assert_string_equal(json_get_str(v, "type", ""), type);
	assert_int_equal(json_get_int(v, "offset", -1), offset);
	assert_string_equal(json_get_str(v, "data", "(none)"), text);
}

static void split_characters_are_joined(void **state)
{
	struct ndjson n = { .cursors = true };
	_cleanup_json_ json_t *v = NULL;

	(void)state;
	assert_int_equal(ndjson_output(&n, false, 0, "a\xc3", 2), 0);
	expect(&n, "stdout", 0, "a");
	assert_int_equal(ndjson_output(&n, true, 0, "e", 1), 0);
	expect(&n, "stderr", 0, "e");
	assert_int_equal(ndjson_output(&n, false, 2, "\xbc\xe2", 2), 0);
	v = line_take(&n);
	assert_string_equal(json_get_str(v, "data", ""), "ü");
	assert_int_equal(json_get_int(v, "offset", -1), 1);
	/* What is held back is not behind the cursor. */
	assert_string_equal(json_get_str(v, "cursor", ""), "3.1");
	assert_int_equal(ndjson_output(&n, false, 4, "\x82", 1), 0);
	assert_int_equal(n.out.len, n.taken);
	assert_int_equal(ndjson_output(&n, false, 5, "\xac", 1), 0);
	expect(&n, "stdout", 3, "€");
	ndjson_free(&n);
}

static void expect_base64(struct ndjson *n, int64_t offset, const char *text)
{
	_cleanup_json_ json_t *v = line_take(n);

	assert_int_equal(json_get_int(v, "offset", -1), offset);
	assert_string_equal(json_get_str(v, "base64", "(none)"), text);
}

static void bytes_that_are_no_text(void **state)
{
	const struct agent_exit x = { .code = 3 };
	_cleanup_json_ json_t *v = NULL;
	struct ndjson n = { 0 };

	(void)state;
	assert_int_equal(ndjson_output(&n, false, 0,
				       "a\xff"
				       "b",
				       3),
			 0);
	expect_base64(&n, 0, "Yf9i");
	/* A character whose rest never comes is shown at the end, as bytes. */
	assert_int_equal(ndjson_output(&n, false, 3, "x\xe2\x82", 3), 0);
	expect(&n, "stdout", 3, "x");
	assert_int_equal(ndjson_exit(&n, &x), 0);
	expect_base64(&n, 4, "4oI=");
	v = line_take(&n);
	assert_string_equal(json_get_str(v, "type", ""), "exit");
	assert_int_equal(json_get_int(v, "code", -1), 3);
	assert_true(json_is_null(json_object_get(v, "signal")));
	ndjson_free(&n);
}

static void a_gap_is_not_glued(void **state)
{
	struct ndjson n = { 0 };
	_cleanup_json_ json_t *v = NULL;

	(void)state;
	assert_int_equal(ndjson_output(&n, false, 0, "a\xc3", 2), 0);
	expect(&n, "stdout", 0, "a");
	assert_int_equal(ndjson_dropped(&n, false, 2, 10), 0);
	expect_base64(&n, 1, "ww==");
	v = line_take(&n);
	assert_string_equal(json_get_str(v, "type", ""), "dropped");
	assert_int_equal(json_get_int(v, "bytes", 0), 10);
	assert_int_equal(ndjson_output(&n, false, 12, "z", 1), 0);
	expect(&n, "stdout", 12, "z");
	ndjson_free(&n);
}

static void any_cut_gives_the_same_bytes(void **state)
{
	static const char text[] = "ä\xff€\xf0\x9f\x98\x80 z\xe2\x82\0\xf0\x9f";
	size_t total = sizeof(text) - 1;

	(void)state;
	for (size_t cut = 0; cut <= total; cut++) {
		struct ndjson n = { 0 };
		_cleanup_buf_ struct buf all = { 0 };
		const struct agent_exit x = { 0 };

		ndjson_output(&n, false, 0, text, cut);
		ndjson_output(&n, false, cut, text + cut, total - cut);
		ndjson_exit(&n, &x);
		while (n.taken < n.out.len) {
			_cleanup_json_ json_t *v = line_take(&n);
			const json_t *data = json_object_get(v, "data");
			const char *b64 = json_get_str(v, "base64", NULL);

			if (data || b64)
				assert_int_equal(json_get_int(v, "offset", -1), all.len);
			if (data)
				buf_add(&all, json_string_value(data), json_string_length(data));
			else if (b64)
				base64_decode(&all, b64, strlen(b64));
		}
		assert_int_equal(all.len, total);
		assert_memory_equal(all.data, text, total);
		ndjson_free(&n);
	}
}

static void cursors(void **state)
{
	static const char *const bad[] = { "",	    ".",   "1",
					   "1.",    ".1",  "-1.0",
					   "1.2.3", "a.b", "99999999999999999999.0" };
	uint64_t at[2];

	(void)state;
	assert_int_equal(ndjson_cursor_parse("12.345", at), 0);
	assert_int_equal(at[0], 12);
	assert_int_equal(at[1], 345);
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
		assert_int_equal(ndjson_cursor_parse(bad[i], at), -EINVAL);
}

static void utf8(void **state)
{
	static const char *const bad[] = {
		"\xc0\x80", "\xe0\x80\x80", "\xed\xa0\x80",	   "\xf4\x90\x80\x80",
		"\x80",	    "\xff",	    "\xf8\x88\x80\x80\x80"
	};
	_cleanup_buf_ struct buf b = { 0 };
	bool cut;

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		assert_int_equal(utf8_prefix(bad[i], strlen(bad[i]), &cut), 0);
		assert_false(cut);
	}
	assert_true(utf8_valid("aü€😀", strlen("aü€😀")));
	assert_true(utf8_valid("\xf4\x8f\xbf\xbf", 4));
	assert_int_equal(utf8_prefix("a\xf0\x9f\x98", 4, &cut), 1);
	assert_true(cut);
	assert_int_equal(utf8_repair(&b, "a\xff\xc3", 3), 0);
	assert_string_equal(b.data, "a\xef\xbf\xbd\xef\xbf\xbd");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(target_is_decoded),
		cmocka_unit_test(bad_targets),
		cmocka_unit_test(routes_match),
		cmocka_unit_test(writes_need_a_role),
		cmocka_unit_test(ranges),
		cmocka_unit_test(errors_are_mapped),
		cmocka_unit_test(a_cut_message_is_still_an_answer),
		cmocka_unit_test(the_agents_codes_are_known),
		cmocka_unit_test(split_characters_are_joined),
		cmocka_unit_test(bytes_that_are_no_text),
		cmocka_unit_test(a_gap_is_not_glued),
		cmocka_unit_test(any_cut_gives_the_same_bytes),
		cmocka_unit_test(cursors),
		cmocka_unit_test(utf8),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
