/* A sandbox as the public API shows it, and the ways from a path parameter to its agent. */
#include <errno.h>
#include <string.h>
#include <time.h>

#include "api/handlers.h"
#include "api/request.h"
#include "base/clock.h"
#include "sandbox/agent_conn.h"
#include "sandbox/sandbox.h"

#define MIB_MS_PER_GIB_HOUR (1024.0 * 3600 * 1000)

json_t *time_json(int64_t wall_ms)
{
	char text[CLOCK_RFC3339_LEN];

	if (wall_ms == 0)
		return json_null();
	clock_rfc3339(wall_ms, text);
	return json_string(text);
}

static json_t *text_json(const char *s)
{
	return *s ? json_string(s) : json_null();
}

static int64_t month_start_ms(void)
{
	time_t now = (time_t)(clock_wall_ms() / 1000);
	struct tm tm;

	gmtime_r(&now, &tm);
	tm.tm_mday = 1;
	tm.tm_hour = tm.tm_min = tm.tm_sec = 0;
	return (int64_t)timegm(&tm) * 1000;
}

/* The live figure where there is one; a sandbox that ends meanwhile has its ticks. */
static int usage_of(struct request *r, const struct store_sandbox *row, int64_t from_ms,
		    struct store_usage *u, struct err *e)
{
	if (row->state != SANDBOX_DELETED &&
	    sandbox_usage(r->api->sandboxes, row->id, from_ms, u, NULL) == 0)
		return 0;
	return store_usage_sum(r->api->store, row->id, from_ms, u, e);
}

static json_t *usage_json(struct request *r, const struct store_sandbox *row, struct err *e)
{
	struct store_usage all = { 0 }, month = { 0 };

	if (usage_of(r, row, 0, &all, e) || usage_of(r, row, month_start_ms(), &month, e))
		return NULL;
	return json_pack("{s:f,s:f,s:I,s:I}", "cpuSeconds", (double)all.cpu_ns / 1e9,
			 "memoryGiBHours", (double)all.memory_mib_ms / MIB_MS_PER_GIB_HOUR,
			 "costMicros", (json_int_t)all.cost_micros, "costMicrosThisMonth",
			 (json_int_t)month.cost_micros);
}

static json_t *snapshot_json(const struct store_sandbox *row)
{
	if (!row->last_snapshot[0])
		return json_null();
	return json_pack("{s:s,s:o,s:b}", "id", row->last_snapshot, "at",
			 time_json(row->last_snapshot_ms), "quiesced", row->last_snapshot_quiesced);
}

/* A text of the store as JSON, {} should it not be an object. */
static json_t *object_json(const char *text)
{
	json_t *v = text ? json_loads(text, 0, NULL) : NULL;

	return v ? v : json_object();
}

json_t *sandbox_json(struct request *r, const struct store_sandbox *row, struct err *e)
{
	json_t *usage = usage_json(r, row, e), *v;

	if (!usage)
		return NULL;
	v = json_pack("{s:s,s:o,s:s,s:s,s:I,s:I,s:I,s:s,s:o,s:o,s:o,s:o,s:s,s:o,s:o,s:o,s:o,s:o,"
		      "s:o,s:I}",
		      "id", row->id, "name", text_json(row->name), "state",
		      sandbox_state_name(row->state), "image", row->image, "vcpus",
		      (json_int_t)row->vcpus, "memoryMiB", (json_int_t)row->memory_mib, "diskMiB",
		      (json_int_t)row->disk_mib, "host", row->host, "createdAt",
		      time_json(row->created_ms), "startedAt", time_json(row->started_ms),
		      "leaseEndsAt", time_json(row->lease_ends_ms), "timeoutSeconds",
		      row->timeout_s ? json_integer(row->timeout_s) : json_null(), "onLeaseEnd",
		      lease_end_name(row->on_lease_end), "stopReason", text_json(row->stop_reason),
		      "network", object_json(row->network_json), "metadata",
		      object_json(row->metadata_json), "usage", usage, "lastSnapshot",
		      snapshot_json(row), "parent", text_json(row->parent), "generation",
		      (json_int_t)row->generation);
	if (!v)
		err_errno(e, ENOMEM, "show a sandbox");
	return v;
}

int sandbox_row(struct request *r, struct store_sandbox *row, struct err *e)
{
	return store_sandbox_get(r->api->store, r->param[0], row, e);
}

int sandbox_agent(struct request *r, const char *op, const json_t *arguments,
		  struct agent_conn **out, struct err *e)
{
	struct store_sandbox row = { 0 };
	char id[ID_LEN];
	int fd = -1, rc = sandbox_row(r, &row, e);

	if (rc)
		return rc;
	memcpy(id, row.id, sizeof(id));
	store_sandbox_free(&row);
	rc = sandbox_connect(r->api->sandboxes, id, &fd, e);
	return rc < 0 ? rc : agent_open(fd, op, arguments, out, e);
}

int sandbox_agent_call(struct request *r, const char *op, const json_t *arguments, json_t **reply,
		       struct err *e)
{
	_cleanup_agent_conn_ struct agent_conn *c = NULL;
	int rc = sandbox_agent(r, op, arguments, &c, e);

	return rc < 0 ? rc : agent_reply(c, reply, AGENT_ANSWER_MS, e);
}
