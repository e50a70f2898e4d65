/* Files of a sandbox: looking at them and moving them about. Their bytes are in transfer.c. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "api/check.h"
#include "api/handlers.h"
#include "api/request.h"
#include "proto/agent.h"
#include "sandbox/agent_conn.h"

json_t *file_stat_json(const json_t *stat)
{
	static const char *const same[] = { "path", "type", "size",   "user",	  "group",
					    "uid",  "gid",  "target", "lossyName" };
	json_t *v = json_object();
	char mode[16];

	for (size_t i = 0; i < ARRAY_SIZE(same); i++) {
		json_t *member = json_object_get(stat, same[i]);

		if (member && !json_is_null(member))
			json_object_set(v, same[i], member);
	}
	snprintf(mode, sizeof(mode), "%04o", (unsigned)json_get_int(stat, "mode", 0) & 07777);
	json_object_set_new(v, "mode", json_string(mode));
	json_object_set_new(v, "modifiedAt", time_json(json_get_int(stat, "mtimeMs", 0)));
	return v;
}

static void copy_text(json_t *to, const json_t *from, const char *name)
{
	json_t *v = json_object_get(from, name);

	if (v && !json_is_null(v))
		json_object_set(to, name, v);
}

static int answer_stat(struct request *r, const json_t *reply, struct err *e)
{
	return request_json(r, 200, file_stat_json(reply), e);
}

/* The path of the query, checked before the sandbox is asked. */
static json_t *path_arguments(struct request *r, struct err *e)
{
	json_t *arguments = json_object();

	check_path(r, "path", json_get_str(r->query, "path", NULL));
	if (request_check_problems(r, e)) {
		json_decref(arguments);
		return NULL;
	}
	copy_text(arguments, r->query, "path");
	copy_text(arguments, r->query, "user");
	return arguments;
}

int file_stat_get(struct request *r, struct err *e)
{
	_cleanup_json_ json_t *arguments = path_arguments(r, e), *reply = NULL;
	int rc = arguments ? sandbox_agent_call(r, "file.stat", arguments, &reply, e) : -EINVAL;

	return rc < 0 ? rc : answer_stat(r, reply, e);
}

static int add_entries(json_t *data, const json_t *part)
{
	json_t *stat;
	size_t i;

	json_array_foreach ((json_t *)(uintptr_t)part, i, stat)
		if (json_array_append_new(data, file_stat_json(stat)))
			return -ENOMEM;
	return 0;
}

int file_list_get(struct request *r, struct err *e)
{
	_cleanup_json_ json_t *arguments = path_arguments(r, e), *data = json_array(), *part = NULL;
	_cleanup_agent_conn_ struct agent_conn *c = NULL;
	bool truncated = false;
	int rc = -EINVAL;

	if (!arguments)
		return rc;
	json_object_set_new(arguments, "depth", json_integer(json_get_int(r->query, "depth", 1)));
	json_object_set_new(arguments, "limit",
			    json_integer(json_get_int(r->query, "limit", AGENT_LIST_MAX)));
	rc = sandbox_agent(r, "file.list", arguments, &c, e);
	if (rc == 0)
		rc = agent_reply(c, NULL, AGENT_ANSWER_MS, e);
	while (rc == 0) {
		json_decref(part);
		part = NULL;
		rc = agent_entries(c, &part, &truncated, AGENT_ANSWER_MS, e);
		if (rc < 0 || !part)
			break;
		if (add_entries(data, part))
			rc = err_errno(e, ENOMEM, "list a folder");
	}
	return rc < 0 ? rc
		      : request_json(r, 200,
				     json_pack("{s:O,s:b}", "data", data, "truncated", truncated),
				     e);
}

int file_mkdir_check(struct request *r, struct err *e)
{
	(void)e;
	check_path(r, "path", json_get_str(r->body, "path", NULL));
	check_mode(r, "mode", json_get_str(r->body, "mode", NULL));
	return 0;
}

int file_mkdir_post(struct request *r, struct err *e)
{
	_cleanup_json_ json_t *arguments = json_deep_copy(r->body), *reply = NULL;
	int mode = check_mode(r, "mode", json_get_str(r->body, "mode", NULL)), rc;

	if (mode >= 0)
		json_object_set_new(arguments, "mode", json_integer(mode));
	rc = sandbox_agent_call(r, "file.mkdir", arguments, &reply, e);
	return rc < 0 ? rc : answer_stat(r, reply, e);
}

int file_move_check(struct request *r, struct err *e)
{
	(void)e;
	check_path(r, "from", json_get_str(r->body, "from", NULL));
	check_path(r, "to", json_get_str(r->body, "to", NULL));
	return 0;
}

int file_move_post(struct request *r, struct err *e)
{
	_cleanup_json_ json_t *reply = NULL;
	int rc = sandbox_agent_call(r, "file.move", r->body, &reply, e);

	return rc < 0 ? rc : answer_stat(r, reply, e);
}

int file_remove_check(struct request *r, struct err *e)
{
	(void)e;
	check_path(r, "path", json_get_str(r->body, "path", NULL));
	return 0;
}

int file_remove_post(struct request *r, struct err *e)
{
	int rc = sandbox_agent_call(r, "file.remove", r->body, NULL, e);

	return rc < 0 ? rc : request_json(r, 200, json_object(), e);
}
