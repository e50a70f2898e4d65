/* Processes that live on without their caller: started, listed, read, fed, signalled. */
#include <errno.h>
#include <string.h>

#include "api/check.h"
#include "api/command.h"
#include "api/handlers.h"
#include "api/page.h"
#include "api/shapes.h"

#define STDIN_STEP_MS 60000 /* for the process to take some of its input */

static void copy_known(json_t *to, const json_t *from, const char *name)
{
	json_t *v = json_object_get(from, name);

	if (v)
		json_object_set(to, name, v);
}

/* The public object of the agent's process. */
static json_t *process_json(const json_t *p)
{
	static const char *const same[] = { "pid",	  "argv",      "command",     "cwd",
					    "user",	  "state",     "stdoutBytes", "stderrBytes",
					    "stdinBytes", "background" };
	json_t *v = json_pack("{s:s,s:o,s:O?}", "id", json_get_str(p, "processId", ""), "startedAt",
			      time_json(json_get_int(p, "startedAtMs", 0)), "exit",
			      json_object_get(p, "exit"));

	if (!v)
		return NULL;
	if (!json_object_get(v, "exit"))
		json_object_set_new(v, "exit", json_null());
	for (size_t i = 0; i < ARRAY_SIZE(same); i++)
		copy_known(v, p, same[i]);
	return v;
}

static json_t *process_argument(const char *process_id)
{
	return json_pack("{s:s}", "processId", process_id);
}

static int answer_process(struct request *r, int status, const char *process_id, struct err *e)
{
	_cleanup_json_ json_t *arguments = process_argument(process_id), *reply = NULL;
	int rc = sandbox_agent_call(r, "process", arguments, &reply, e);

	return rc < 0 ? rc : request_json(r, status, process_json(reply), e);
}

/* ---- start ---- */

int process_post_check(struct request *r, struct err *e)
{
	return command_check(r, e);
}

/* Gives a process that was just started the input of its request. */
static int send_input(struct request *r, const char *process_id, struct err *e)
{
	_cleanup_json_ json_t *arguments = NULL;
	_cleanup_agent_conn_ struct agent_conn *c = NULL;
	_cleanup_buf_ struct buf input = { 0 };
	bool open = json_get_bool(r->body, "openStdin", false);
	int rc;

	if (!exec_has_stdin(r))
		return 0;
	arguments = json_pack("{s:s,s:i,s:b}", "processId", process_id, "offset", 0, "eof", !open);
	rc = exec_stdin(r, &input, e);
	if (rc == 0)
		rc = sandbox_agent(r, "stdin", arguments, &c, e);
	if (rc == 0 && input.len)
		rc = agent_write(c, input.data, input.len, STDIN_STEP_MS, e);
	if (rc == 0)
		rc = agent_write_end(c, NULL, NULL, STDIN_STEP_MS, e);
	if (rc < 0)
		r->details = process_argument(process_id);
	return rc;
}

int process_post(struct request *r, struct err *e)
{
	_cleanup_json_ json_t *arguments = exec_arguments(r), *reply = NULL;
	const char *process_id;
	int rc;

	json_object_set_new(arguments, "background", json_true());
	rc = sandbox_agent_call(r, "exec", arguments, &reply, e);
	if (rc < 0)
		return rc;
	atomic_fetch_add(&r->api->count.commands, 1);
	process_id = json_get_str(reply, "processId", "");
	rc = send_input(r, process_id, e);
	return rc < 0 ? rc : answer_process(r, 201, process_id, e);
}

/* ---- look ---- */

int processes_get(struct request *r, struct err *e)
{
	_cleanup_json_ json_t *reply = NULL;
	struct page page = { 0 };
	json_t *p;
	size_t i;
	int rc = sandbox_agent_call(r, "ps", NULL, &reply, e);

	json_array_foreach (json_object_get(reply, "processes"), i, p)
		if (rc == 0 && page_add(&page, process_json(p), 0))
			rc = err_errno(e, ENOMEM, "list the processes");
	return page_answer(r, &page, rc, false, e);
}

int process_get(struct request *r, struct err *e)
{
	return answer_process(r, 200, r->param[1], e);
}

int process_output_get(struct request *r, struct err *e)
{
	const char *cursor = json_get_str(r->query, "cursor", "0.0");
	_cleanup_json_ json_t *arguments = NULL;
	_cleanup_agent_conn_ struct agent_conn *c = NULL;
	struct ndjson lines = { .cursors = true };
	uint64_t offset[2];
	int rc;

	if (ndjson_cursor_parse(cursor, offset)) {
		request_problem(r, "cursor", "is not a cursor that a stream gave");
		return request_check_problems(r, e);
	}
	lines.side[0].next = offset[0];
	lines.side[1].next = offset[1];
	arguments = json_pack("{s:s,s:I,s:I,s:b}", "processId", r->param[1], "stdoutOffset",
			      (json_int_t)offset[0], "stderrOffset", (json_int_t)offset[1],
			      "follow", json_get_bool(r->query, "follow", true));
	rc = sandbox_agent(r, "attach", arguments, &c, e);
	if (rc == 0)
		rc = agent_reply(c, NULL, AGENT_ANSWER_MS, e);
	if (rc < 0)
		return rc;
	if (ndjson_start(&lines, r->param[1])) {
		ndjson_free(&lines);
		return err_errno(e, ENOMEM, "begin the stream");
	}
	return command_stream(r, steal_ptr(c), &lines, false, e);
}

/* ---- act ---- */

int process_signal_post(struct request *r, struct err *e)
{
	_cleanup_json_ json_t *arguments =
		json_pack("{s:s,s:i}", "processId", r->param[1], "signal",
			  signal_number(json_get_str(r->body, "signal", "")));
	int rc = sandbox_agent_call(r, "signal", arguments, NULL, e);

	return rc < 0 ? rc : request_json(r, 200, json_object(), e);
}

int process_delete(struct request *r, struct err *e)
{
	_cleanup_json_ json_t *arguments = process_argument(r->param[1]);
	int rc = sandbox_agent_call(r, "forget", arguments, NULL, e);

	return rc < 0 ? rc : request_json(r, 200, json_object(), e);
}

static void upload_free(void *upload)
{
	agent_free(upload);
}

static int stdin_begin(struct request *r, struct err *e)
{
	_cleanup_json_ json_t *arguments =
		json_pack("{s:s,s:I,s:b}", "processId", r->param[1], "offset",
			  (json_int_t)json_get_int(r->query, "offset", 0), "eof",
			  json_get_bool(r->query, "eof", false));
	struct agent_conn *c = NULL;
	int rc = sandbox_agent(r, "stdin", arguments, &c, e);

	r->upload = c;
	r->upload_free = upload_free;
	return rc;
}

static int stdin_data(struct request *r, const void *p, size_t n, struct err *e)
{
	return agent_write(r->upload, p, n, STDIN_STEP_MS, e);
}

const struct upload_ops process_stdin_upload = { stdin_begin, stdin_data };

int process_stdin_post(struct request *r, struct err *e)
{
	_cleanup_json_ json_t *reply = NULL;
	int rc = agent_write_end(r->upload, NULL, &reply, STDIN_STEP_MS, e);

	return rc < 0 ? rc
		      : request_json(r, 200,
				     json_pack("{s:I}", "offset",
					       (json_int_t)json_get_int(reply, "offset", 0)),
				     e);
}
