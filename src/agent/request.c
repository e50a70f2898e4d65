/* One table a kind of operation; json_check() does the rest. Rules between members come last. */
#include "agent/request.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "proto/agent.h"

#define DAY_MS (24LL * 3600 * 1000)
#define FIELDS(...)                 \
	(const struct json_field[]) \
	{                           \
		__VA_ARGS__         \
	}
/* clang-format off */
#define OP(name_, ...) \
	{ name_, FIELDS(F_OP, __VA_ARGS__), ARRAY_SIZE(FIELDS(F_OP, __VA_ARGS__)) }
#define F_OP { "op", JSON_KIND_STRING, true, false, 1, 32 }
#define F_ID { "processId", JSON_KIND_STRING, true, false, 1, 64 }
#define F_PATH(name_) { name_, JSON_KIND_STRING, true, false, 1, PATH_MAX - 1 }
#define F_USER { "user", JSON_KIND_STRING, false, true, 1, 64 }
#define F_BOOL(name_) { name_, JSON_KIND_BOOL, false, true }
#define F_INT(name_, required_, min_, max_) \
	{ name_, JSON_KIND_INT, required_, !(required_), min_, max_ }
/* clang-format on */

static const struct {
	const char *name;
	const struct json_field *fields;
	size_t n;
} ops[OP_COUNT] = {
	[OP_HELLO] = { "hello", FIELDS(F_OP), 1 },
	[OP_ADOPT] = OP("adopt", { "hostname", JSON_KIND_STRING, true, false, 1, 63 },
			F_INT("wallMs", true, 0, INT64_MAX / 1000000),
			{ "entropy", JSON_KIND_STRING, true, false, 44, 4096 },
			{ "env", JSON_KIND_MAP, false, true, 0, 1000 },
			F_INT("generation", true, 0, INT64_MAX)),
	[OP_EXEC] = OP("exec", { "argv", JSON_KIND_STRINGS, false, true, 1, 8192 },
		       { "command", JSON_KIND_STRING, false, true, 1, AGENT_ARGV_BYTES_MAX },
		       { "cwd", JSON_KIND_STRING, false, true, 1, PATH_MAX - 1 },
		       { "env", JSON_KIND_MAP, false, true, 0, 4096 }, F_USER, F_BOOL("stdin"),
		       F_INT("timeoutMs", false, 1, 366 * DAY_MS), F_BOOL("background"),
		       { "tty", JSON_KIND_OBJECT, false, true, 2, 2 }),
	[OP_ATTACH] = OP("attach", F_ID, F_INT("stdoutOffset", false, 0, INT64_MAX),
			 F_INT("stderrOffset", false, 0, INT64_MAX), F_BOOL("follow")),
	[OP_PS] = { "ps", FIELDS(F_OP), 1 },
	[OP_PROCESS] = OP("process", F_ID),
	[OP_SIGNAL] = OP("signal", F_ID, F_INT("signal", true, 1, 64)),
	[OP_KILL] = OP("kill", F_ID),
	[OP_STDIN] = OP("stdin", F_ID, F_INT("offset", true, 0, INT64_MAX), F_BOOL("eof")),
	[OP_FORGET] = OP("forget", F_ID),
	[OP_FILE_READ] = OP("file.read", F_PATH("path"), F_INT("offset", false, 0, INT64_MAX),
			    F_INT("length", false, 0, INT64_MAX), F_USER),
	[OP_FILE_WRITE] = OP("file.write", F_PATH("path"), F_INT("mode", false, 0, 07777),
			     F_INT("size", false, 0, INT64_MAX), F_BOOL("makeParents"), F_USER),
	[OP_FILE_LIST] = OP("file.list", F_PATH("path"), F_INT("depth", false, 1, 16),
			    F_INT("limit", false, 1, AGENT_LIST_MAX), F_USER),
	[OP_FILE_STAT] = OP("file.stat", F_PATH("path"), F_USER),
	[OP_FILE_MKDIR] = OP("file.mkdir", F_PATH("path"), F_INT("mode", false, 0, 07777),
			     F_BOOL("parents"), F_USER),
	[OP_FILE_MOVE] = OP("file.move", F_PATH("from"), F_PATH("to"), F_BOOL("overwrite"), F_USER),
	[OP_FILE_REMOVE] = OP("file.remove", F_PATH("path"), F_BOOL("recursive"), F_USER),
	[OP_SYNC] = { "sync", FIELDS(F_OP), 1 },
	[OP_STOP] = OP("stop", F_INT("timeoutMs", false, 0, 600000)),
};

static const struct json_field tty_fields[] = { F_INT("rows", true, 1, 1000),
						F_INT("cols", true, 1, 1000) };

/* "argv must be …; cwd is required" from json_check()'s list. */
static int refuse(struct err *e, const json_t *problems)
{
	char text[400];
	size_t at = 0, i;
	json_t *p;

	text[0] = '\0';
	json_array_foreach ((json_t *)(uintptr_t)problems, i, p) {
		const char *hint = json_get_str(p, "hint", NULL);
		int n = snprintf(text + at, sizeof(text) - at, "%s%s %s%s%s%s", i ? "; " : "",
				 json_get_str(p, "field", ""), json_get_str(p, "problem", ""),
				 hint ? " (did you mean " : "", hint ? hint : "", hint ? "?)" : "");

		at += (size_t)n;
		if (at >= sizeof(text))
			break;
	}
	return err_set(e, "bad_request", EINVAL, "%s", text);
}

static void add_problem(json_t *problems, const char *field, const char *problem)
{
	json_array_append_new(problems, json_pack("{s:s,s:s}", "field", field, "problem", problem));
}

static size_t strings_bytes(const json_t *v)
{
	size_t sum = 0, i;
	const char *key;
	json_t *item;

	json_array_foreach ((json_t *)(uintptr_t)v, i, item)
		sum += json_string_length(item) + 1;
	json_object_foreach ((json_t *)(uintptr_t)v, key, item)
		sum += strlen(key) + json_string_length(item) + 2;
	return sum;
}

static int check_exec(const json_t *o, json_t *problems, struct err *e)
{
	const json_t *argv = json_object_get(o, "argv"), *env = json_object_get(o, "env");
	const char *command = json_get_str(o, "command", NULL), *key;
	bool has_argv = argv && !json_is_null(argv);
	const json_t *tty = json_object_get(o, "tty");
	json_t *item;
	size_t bytes;

	if (has_argv == !!command)
		add_problem(problems, "argv", "or command is required, and not both");
	if (tty && !json_is_null(tty))
		json_check(tty, tty_fields, ARRAY_SIZE(tty_fields), problems);
	json_object_foreach ((json_t *)(uintptr_t)env, key, item)
		if (!*key || strchr(key, '='))
			add_problem(problems, "env", "has a name that is empty or contains '='");
	bytes = strings_bytes(argv) + strings_bytes(env) + (command ? strlen(command) : 0);
	if (bytes > AGENT_ARGV_BYTES_MAX)
		return err_set(e, "too_large", E2BIG,
			       "argv and env are %zu bytes; at most %u are taken", bytes,
			       AGENT_ARGV_BYTES_MAX);
	return 0;
}

static void check_paths(const json_t *o, json_t *problems)
{
	static const char *const names[] = { "path", "from", "to", "cwd" };

	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		const char *s = json_get_str(o, names[i], NULL);

		if (s && s[0] != '/')
			add_problem(problems, names[i], "must be an absolute path");
	}
}

static int find_op(const json_t *o, enum agent_op *op)
{
	const char *name = json_get_str(o, "op", "");

	for (int i = 0; i < OP_COUNT; i++)
		if (strcmp(ops[i].name, name) == 0) {
			*op = (enum agent_op)i;
			return 0;
		}
	return -EINVAL;
}

json_t *request_parse(const void *text, size_t len, enum agent_op *op, struct err *e)
{
	_cleanup_json_ json_t *o = NULL, *problems = json_array();
	struct err why = { 0 };

	o = json_parse(text, len, &why);
	if (!o) {
		err_set(e, "bad_request", EINVAL, "the request is not JSON: %s", why.msg);
		return NULL;
	}
	if (find_op(o, op) < 0) {
		err_set(e, "bad_request", EINVAL, "unknown operation \"%.32s\"",
			json_get_str(o, "op", ""));
		return NULL;
	}
	json_check(o, ops[*op].fields, ops[*op].n, problems);
	if (json_array_size(problems) == 0) {
		check_paths(o, problems);
		if (*op == OP_EXEC && check_exec(o, problems, e) < 0)
			return NULL;
	}
	if (json_array_size(problems)) {
		refuse(e, problems);
		return NULL;
	}
	return steal_ptr(o);
}
