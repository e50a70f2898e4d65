/* new ls show stop start renew rm: one API call each, on one or many sandboxes. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "cli/commands.h"
#include "cli/http.h"
#include "cli/sandbox.h"
#include "cli/term.h"

static int new_run(struct cli *c, struct err *e)
{
	struct progress *p = progress_new(false);
	_cleanup_json_ json_t *sbx = NULL;
	int ret;

	progress_step(p, "Creating the sandbox");
	ret = sandbox_create(c, &sbx, e);
	progress_free(p, ret == 0);
	if (ret < 0)
		return ret;
	if (c->json)
		return cli_print_json(sbx, e);
	term_print(stdout, json_get_str(sbx, "id", ""));
	putchar('\n');
	return 0;
}

/* "5m" since (or until) an RFC 3339 time of the API; NULL when there is none. */
static const char *span(const json_t *sbx, const char *field, bool until,
			char out[TERM_DURATION_LEN])
{
	const char *at = json_get_str(sbx, field, NULL);
	int64_t ms, now = clock_wall_ms();

	if (!at || clock_parse_rfc3339(at, &ms) < 0)
		return NULL;
	term_duration(until ? ms - now : now - ms, out);
	return out;
}

static int ls_row(struct table *t, const json_t *s, struct err *e)
{
	char age[TERM_DURATION_LEN], lease[TERM_DURATION_LEN], shape[40];
	const char *state = json_get_str(s, "state", NULL);
	const char *left = span(s, "leaseEndsAt", true, lease);

	snprintf(shape, sizeof(shape), "%lld x %lld MiB", (long long)json_get_int(s, "vcpus", 0),
		 (long long)json_get_int(s, "memoryMiB", 0));
	if (!state || strcmp(state, "running") != 0)
		left = NULL;
	else if (!left)
		left = "never ends";
	return table_row(t,
			 (const char *[]){ json_get_str(s, "id", NULL),
					   json_get_str(s, "name", NULL), state,
					   json_get_str(s, "image", NULL), shape,
					   span(s, "createdAt", false, age), left },
			 e);
}

/* Appends every page of the list to all. */
static int ls_fetch(struct cli *c, json_t *all, struct err *e)
{
	_cleanup_free_ char *cursor = NULL;
	struct http *h;
	int ret = cli_http(c, &h, e);

	while (ret == 0) {
		_cleanup_buf_ struct buf path = { 0 };
		_cleanup_json_ json_t *page = NULL;
		const char *state = cli_str(c, "state", NULL), *next;

		if (buf_str(&path, "/v1/sandboxes?limit=100") < 0 ||
		    (state && (buf_str(&path, "&state=") < 0 || http_escape(&path, state) < 0)) ||
		    (cursor && (buf_str(&path, "&cursor=") < 0 || http_escape(&path, cursor) < 0)))
			return err_errno(e, ENOMEM, "list the sandboxes");
		ret = http_json(h, "GET", path.data, NULL, &page, e);
		if (ret < 0)
			break;
		json_array_extend(all, json_object_get(page, "data"));
		next = json_get_str(page, "nextCursor", NULL);
		if (!next)
			break;
		free(cursor);
		cursor = strdup(next);
		if (!cursor)
			return err_errno(e, ENOMEM, "list the sandboxes");
	}
	return ret;
}

static int ls_run(struct cli *c, struct err *e)
{
	static const char *const heads[] = { "ID",    "NAME", "STATE",	   "IMAGE",
					     "SHAPE", "AGE",  "LEASE LEFT" };
	_cleanup_json_ json_t *all = json_array();
	struct table *t = NULL;
	const json_t *s;
	size_t i;
	int ret = ls_fetch(c, all, e);

	if (ret < 0)
		return ret;
	if (c->json)
		return cli_print_json(all, e);
	if (cli_flag(c, "quiet")) {
		json_array_foreach (all, i, s) {
			term_print(stdout, json_get_str(s, "id", ""));
			putchar('\n');
		}
		return 0;
	}
	ret = table_new(heads, ARRAY_SIZE(heads), &t, e);
	json_array_foreach (all, i, s)
		ret = ret ?: ls_row(t, s, e);
	if (ret == 0)
		table_print(t, stdout);
	table_free(t);
	return ret;
}

/* "path.to.member  value" for every leaf. */
static int show_leaf(struct table *t, const char *prefix, const char *key, const json_t *v,
		     struct err *e);

static int show_members(struct table *t, const char *prefix, const json_t *obj, struct err *e)
{
	const char *key;
	json_t *v;
	int ret = 0;

	json_object_foreach ((json_t *)(uintptr_t)obj, key, v)
		ret = ret ?: show_leaf(t, prefix, key, v, e);
	return ret;
}

static int show_leaf(struct table *t, const char *prefix, const char *key, const json_t *v,
		     struct err *e)
{
	_cleanup_free_ char *text = NULL;
	_cleanup_buf_ struct buf name = { 0 };

	if (buf_printf(&name, "%s%s%s", prefix, *prefix ? "." : "", key) < 0)
		return err_errno(e, ENOMEM, "print the sandbox");
	if (json_is_object(v))
		return show_members(t, name.data, v, e);
	if (json_is_null(v) || json_is_string(v))
		return table_row(t, (const char *[]){ name.data, json_string_value(v) }, e);
	text = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(6));
	return table_row(t, (const char *[]){ name.data, text }, e);
}

static int show_run(struct cli *c, struct err *e)
{
	_cleanup_json_ json_t *sbx = NULL;
	struct table *t = NULL;
	int ret = sandbox_call(c, "GET", c->args[0], "", NULL, &sbx, e);

	if (ret < 0)
		return ret;
	if (c->json)
		return cli_print_json(sbx, e);
	ret = table_new((const char *const[]){ "FIELD", "VALUE" }, 2, &t, e);
	if (ret == 0)
		ret = show_members(t, "", sbx, e);
	if (ret == 0)
		table_print(t, stdout);
	table_free(t);
	return ret;
}

/* The console's text, line by line: it is the guest's, so nothing of it is sent raw. */
static int logs_run(struct cli *c, struct err *e)
{
	_cleanup_json_ json_t *v = NULL;
	_cleanup_free_ char *text = NULL;
	char *line, *rest;
	int ret = sandbox_call(c, "GET", c->args[0], "/console", NULL, &v, e);

	if (ret < 0)
		return ret;
	if (c->json)
		return cli_print_json(v, e);
	text = strdup(json_get_str(v, "text", ""));
	if (!text)
		return err_errno(e, ENOMEM, "print the console");
	rest = text;
	while ((line = strsep(&rest, "\n")) && (rest || *line)) {
		line[strcspn(line, "\r")] = '\0';
		term_print(stdout, line);
		putchar('\n');
	}
	return 0;
}

/*
 * The same call on each operand. All are tried; each failure is told at once except the last,
 * which is returned.
 */
static int each(struct cli *c, const char *what, const char *method, const char *tail,
		const json_t *body, struct err *e)
{
	_cleanup_json_ json_t *all = json_array();
	struct progress *p = progress_new(false);
	size_t failed = 0;
	struct err last;

	for (size_t i = 0; i < c->n_args; i++) {
		json_t *out = NULL;

		progress_step(p, "%s %s", what, c->args[i]);
		if (sandbox_call(c, method, c->args[i], tail, body, &out, &last) == 0) {
			json_array_append_new(all, out);
			continue;
		}
		progress_pause(p);
		failed++;
		if (c->n_args > 1) {
			fprintf(stderr, "cloche: ");
			term_print(stderr, c->args[i]);
			fprintf(stderr, ": ");
			term_print(stderr, last.msg);
			fputc('\n', stderr);
		}
	}
	progress_free(p, failed == 0);
	if (c->json)
		cli_print_json(c->n_args == 1 && !failed ? json_array_get(all, 0) : all, NULL);
	if (!failed)
		return 0;
	*e = last;
	if (c->n_args == 1)
		return -EIO;
	return err_set(e, "partial", EIO, "%zu of %zu failed", failed, c->n_args);
}

static int stop_run(struct cli *c, struct err *e)
{
	return each(c, "Stopping", "POST", "/stop", NULL, e);
}

static int start_run(struct cli *c, struct err *e)
{
	return each(c, "Starting", "POST", "/start", NULL, e);
}

static int rm_run(struct cli *c, struct err *e)
{
	return each(c, "Deleting", "DELETE", "", NULL, e);
}

static int renew_run(struct cli *c, struct err *e)
{
	_cleanup_json_ json_t *body =
		json_pack("{s:I}", "timeoutSeconds", cli_int(c, "ttl-seconds", 3600));

	return each(c, "Renewing", "POST", "/renew", body, e);
}

const struct cli_command cmd_new = {
	.name = "new",
	.summary = "Create a sandbox and print its id",
	.usage = "",
	.options = (const struct cli_option[]){ SANDBOX_OPTIONS, { NULL } },
	.run = new_run,
};

const struct cli_command cmd_ls = {
	.name = "ls",
	.summary = "List the sandboxes",
	.usage = "",
	.options =
		(const struct cli_option[]){
			{ "state", 0, CLI_STR, "STATE", "only those in this state", 0, 0, NULL },
			{ "quiet", 'q', CLI_FLAG, NULL, "only the ids, one a line", 0, 0, NULL },
			{ NULL } },
	.run = ls_run,
};

const struct cli_command cmd_show = {
	.name = "show",
	.summary = "Show everything about a sandbox",
	.usage = "ID",
	.min_args = 1,
	.max_args = 1,
	.run = show_run,
};

const struct cli_command cmd_logs = {
	.name = "logs",
	.summary = "Show the last output of a sandbox's console: its kernel and agent",
	.usage = "ID",
	.min_args = 1,
	.max_args = 1,
	.run = logs_run,
};

const struct cli_command cmd_stop = {
	.name = "stop",
	.summary = "Stop sandboxes; their disks are kept",
	.usage = "ID…",
	.min_args = 1,
	.max_args = SIZE_MAX,
	.run = stop_run,
};

const struct cli_command cmd_start = {
	.name = "start",
	.summary = "Start stopped sandboxes again from their disks",
	.usage = "ID…",
	.min_args = 1,
	.max_args = SIZE_MAX,
	.run = start_run,
};

const struct cli_command cmd_renew = {
	.name = "renew",
	.summary = "Set the lease of sandboxes to end later",
	.usage = "ID…",
	.options = (const struct cli_option[]){ { "ttl-seconds", 0, CLI_INT, "N",
						  "seconds from now (3600)", 1, 1LL << 32, NULL },
						{ NULL } },
	.min_args = 1,
	.max_args = SIZE_MAX,
	.run = renew_run,
};

const struct cli_command cmd_rm = {
	.name = "rm",
	.summary = "Delete sandboxes and their disks, whatever state they are in",
	.usage = "ID…",
	.min_args = 1,
	.max_args = SIZE_MAX,
	.run = rm_run,
};
