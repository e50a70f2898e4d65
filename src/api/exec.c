/*
 * Running a command: with its whole answer, or as a stream of lines. Both follow the client: when
 * it goes away, the command is killed. A timeout is a result, not an error.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "api/check.h"
#include "api/command.h"
#include "api/errors.h"
#include "api/handlers.h"
#include "base/base64.h"
#include "base/utf8.h"
#include "proto/agent.h"

#define OUTPUT_DEFAULT (1 << 20)

/* ---- the request ---- */

/* What the kernel would count: every string with its NUL. */
static size_t strings_size(const json_t *body)
{
	const char *command = json_get_str(body, "command", ""), *key;
	size_t n = strlen(command), i;
	json_t *v;

	json_array_foreach (json_object_get(body, "argv"), i, v)
		n += json_string_length(v) + 1;
	json_object_foreach (json_object_get(body, "env"), key, v)
		n += strlen(key) + json_string_length(v) + 2;
	return n;
}

bool exec_has_stdin(struct request *r)
{
	return json_object_get(r->body, "stdin") || json_object_get(r->body, "stdinBase64");
}

int command_check(struct request *r, struct err *e)
{
	bool argv = json_object_get(r->body, "argv"), command = json_object_get(r->body, "command");
	const char *base64 = json_get_str(r->body, "stdinBase64", NULL);
	_cleanup_buf_ struct buf bytes = { 0 };
	size_t n = strings_size(r->body);

	if (argv == command)
		request_problem(r, "argv", "%s",
				argv ? "cannot be given with command" : "or command is required");
	if (json_object_get(r->body, "stdin") && base64)
		request_problem(r, "stdin", "cannot be given with stdinBase64");
	if (base64 && base64_decode(&bytes, base64, strlen(base64)) == -EINVAL)
		request_problem(r, "stdinBase64", "is not base64");
	if (json_is_string(json_array_get(json_object_get(r->body, "argv"), 0)) &&
	    !json_string_length(json_array_get(json_object_get(r->body, "argv"), 0)))
		request_problem(r, "argv", "begins with an empty name");
	check_path(r, "cwd", json_get_str(r->body, "cwd", NULL));
	check_env(r, "env");
	if (n > AGENT_ARGV_BYTES_MAX)
		return err_set(e, "argv_too_large", E2BIG,
			       "arguments and environment are %zu bytes; at most %u", n,
			       AGENT_ARGV_BYTES_MAX);
	return 0;
}

int exec_check(struct request *r, struct err *e)
{
	if (exec_has_stdin(r) && json_get_bool(r->body, "openStdin", false))
		request_problem(r, "openStdin", "cannot be given with stdin or stdinBase64");
	return command_check(r, e);
}

static void copy_member(json_t *to, const json_t *from, const char *name)
{
	json_t *v = json_object_get(from, name);

	if (v && !json_is_null(v))
		json_object_set(to, name, v);
}

json_t *exec_arguments(struct request *r)
{
	static const char *const same[] = { "argv", "command", "cwd", "env", "user" };
	int64_t timeout_s = json_get_int(r->body, "timeoutSeconds", 0);
	json_t *o = json_object();

	for (size_t i = 0; i < ARRAY_SIZE(same); i++)
		copy_member(o, r->body, same[i]);
	if (exec_has_stdin(r) || json_get_bool(r->body, "openStdin", false))
		json_object_set_new(o, "stdin", json_true());
	if (timeout_s)
		json_object_set_new(o, "timeoutMs", json_integer(timeout_s * 1000));
	return o;
}

int exec_stdin(struct request *r, struct buf *bytes, struct err *e)
{
	const json_t *text = json_object_get(r->body, "stdin");
	const char *base64 = json_get_str(r->body, "stdinBase64", NULL);
	int rc = 0;

	if (text)
		rc = buf_add(bytes, json_string_value(text), json_string_length(text));
	else if (base64)
		rc = base64_decode(bytes, base64, strlen(base64));
	return rc ? err_errno(e, -rc, "read stdin from the request") : 0;
}

/* ---- the whole answer ---- */

struct output {
	struct buf kept;
	uint64_t total; /* bytes the command wrote, those that are not kept included */
	size_t max;
};

static int output_add(struct output *o, const struct agent_event *ev)
{
	size_t room = o->max - o->kept.len;

	if (ev->type == AGENT_DROPPED) {
		o->total += ev->dropped;
		return 0;
	}
	o->total += ev->len;
	return buf_add(&o->kept, ev->data, ev->len < room ? ev->len : room);
}

/* A character that the limit cut belongs to what is left out. */
static void output_trim(struct output *o)
{
	bool cut;
	size_t good = utf8_prefix(o->kept.data, o->kept.len, &cut);

	if (cut && o->kept.len < o->total)
		o->kept.len = good;
}

static int output_json(struct output *o, const char *name, json_t *answer)
{
	_cleanup_buf_ struct buf text = { 0 }, base64 = { 0 };
	char field[32];
	int rc;

	output_trim(o);
	rc = utf8_repair(&text, o->kept.data, o->kept.len);
	if (rc == 0)
		rc = json_object_set_new(answer, name,
					 json_stringn(text.data ? text.data : "", text.len));
	snprintf(field, sizeof(field), "%sTruncatedBytes", name);
	if (rc == 0)
		rc = json_object_set_new(answer, field,
					 json_integer((json_int_t)(o->total - o->kept.len)));
	if (rc == 0 && !utf8_valid(o->kept.data, o->kept.len)) {
		snprintf(field, sizeof(field), "%sBase64", name);
		rc = base64_encode(&base64, o->kept.data, o->kept.len);
		if (rc == 0)
			rc = json_object_set_new(answer, field, json_string(base64.data));
	}
	return rc;
}

static int answer_exit(struct request *r, const char *process_id, const struct agent_exit *x,
		       struct output out[2], struct err *e)
{
	json_t *v = json_pack("{s:s,s:o,s:o,s:b,s:I}", "processId", process_id, "exitCode",
			      x->signal ? json_null() : json_integer(x->code), "signal",
			      x->signal ? json_integer(x->signal) : json_null(), "timedOut",
			      x->timed_out, "durationMs", (json_int_t)x->duration_ms);

	if (output_json(&out[0], "stdout", v) || output_json(&out[1], "stderr", v)) {
		json_decref(v);
		v = NULL;
	}
	return request_json(r, 200, v, e);
}

static int daemon_stops(struct err *e)
{
	return err_set(e, "daemon_stopping", ECANCELED,
		       "the daemon is being stopped; the command goes on in the sandbox");
}

static int exec_whole(struct request *r, struct agent_conn *c, const char *process_id,
		      struct err *e)
{
	size_t max = (size_t)json_get_int(r->body, "maxOutputBytes", OUTPUT_DEFAULT);
	struct output out[2] = { { .max = max }, { .max = max } };
	struct agent_event ev = { 0 };
	int rc = 0;

	while (rc == 0 && ev.type != AGENT_EXIT) {
		switch (command_next(c, &r->client, &ev, -1, e)) {
		case COMMAND_EVENT:
			if (ev.type == AGENT_STDOUT || ev.type == AGENT_STDERR ||
			    ev.type == AGENT_DROPPED)
				rc = output_add(&out[ev.is_stderr], &ev);
			if (rc)
				err_errno(e, ENOMEM, "keep the command's output");
			break;
		case COMMAND_GONE:
			command_cancel(c);
			rc = err_set(e, "client_gone", ECONNRESET, "%s", "");
			break;
		case COMMAND_STOPPING:
			rc = daemon_stops(e);
			break;
		default:
			rc = -EIO;
		}
	}
	if (rc == 0)
		rc = answer_exit(r, process_id, &ev.exit, out, e);
	else
		r->details = json_pack("{s:s}", "processId", process_id);
	buf_free(&out[0].kept);
	buf_free(&out[1].kept);
	return rc;
}

/* ---- the stream ---- */

static bool wants_lines(struct request *r)
{
	const char *accept = request_in(r, "Accept");

	return accept && strstr(accept, "application/x-ndjson");
}

/* A repetition of a streamed request is told where to find the command. */
static int keep_stream(struct request *r, const char *process_id, struct err *e)
{
	_cleanup_json_ json_t *details = json_pack("{s:s}", "processId", process_id), *v = NULL;
	_cleanup_free_ char *text = NULL;
	struct err streamed = { 0 };

	if (!r->idem)
		return 0;
	err_set(&streamed, "idempotency_stream", EALREADY, "%s", "");
	v = api_error_json(&streamed, details, r->id);
	text = v ? json_dumps(v, JSON_COMPACT) : NULL;
	if (!text)
		return err_errno(e, ENOMEM, "keep the answer");
	return store_idempotency_finish(r->api->store, r->key.id, r->idem,
					api_error_get("idempotency_stream")->status, text, e);
}

static int exec_lines(struct request *r, struct agent_conn *c, const char *process_id,
		      struct err *e)
{
	struct ndjson lines = { 0 };
	int rc = keep_stream(r, process_id, e);

	if (rc == 0 && ndjson_start(&lines, process_id))
		rc = err_errno(e, ENOMEM, "begin the stream");
	if (rc == 0)
		return command_stream(r, c, &lines, true, e);
	/* Nobody will hear of this command. */
	command_cancel(c);
	agent_free(c);
	ndjson_free(&lines);
	return rc;
}

int exec_post(struct request *r, struct err *e)
{
	_cleanup_agent_conn_ struct agent_conn *c = NULL;
	_cleanup_json_ json_t *arguments = exec_arguments(r), *reply = NULL;
	_cleanup_buf_ struct buf input = { 0 };
	const char *process_id;
	int rc = exec_stdin(r, &input, e);

	if (rc == 0)
		rc = sandbox_agent(r, "exec", arguments, &c, e);
	if (rc == 0)
		rc = agent_reply(c, &reply, AGENT_ANSWER_MS, e);
	if (rc == 0 && exec_has_stdin(r)) {
		rc = input.len ? agent_stdin(c, input.data, input.len, e) : 0;
		rc = rc ?: agent_stdin_eof(c, e);
	}
	if (rc < 0)
		return rc;
	atomic_fetch_add(&r->api->count.commands, 1);
	process_id = json_get_str(reply, "processId", "");
	if (wants_lines(r))
		return exec_lines(r, steal_ptr(c), process_id, e);
	return exec_whole(r, c, process_id, e);
}
