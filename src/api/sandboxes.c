/* Making, listing and ending sandboxes. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "api/check.h"
#include "api/errors.h"
#include "api/handlers.h"
#include "api/page.h"
#include "api/request.h"
#include "api/shapes.h"
#include "proto/agent.h"
#include "sandbox/sandbox.h"

#define CREATE_PARALLEL 8 /* sandboxes of one request that are made at the same time */
#define LEASE_DEFAULT_S 3600

/* ---- create ---- */

static void problem_later(struct request *r, const char *field, const char *what)
{
	request_problem_code(r, "not_available", field, "%s is not part of this version", what);
}

static void check_network(struct request *r)
{
	json_t *network = json_object_get(r->body, "network");
	size_t before = json_array_size(r->problems);
	const char *mode = json_get_str(network, "mode", "none");

	if (!json_is_object(network))
		return;
	json_check(network, shape_network.fields, shape_network.n, r->problems);
	if (json_array_size(r->problems) == before && strcmp(mode, "none") != 0)
		problem_later(r, "network.mode", "a network other than none");
}

int sandbox_post_check(struct request *r, struct err *e)
{
	const char *name = json_get_str(r->body, "name", NULL);

	(void)e;
	check_name(r, "name", name);
	check_lease(r, "timeoutSeconds");
	check_env(r, "env");
	check_metadata(r, "metadata");
	check_network(r);
	if (name && json_get_int(r->body, "count", 1) > 1)
		request_problem(r, "name", "cannot be given to more than one sandbox");
	/* What would be promised and not kept is refused. */
	if (json_object_get(r->body, "snapshot"))
		problem_later(r, "snapshot", "a start from a snapshot");
	if (json_array_size(json_object_get(r->body, "secrets")))
		problem_later(r, "secrets", "the credential proxy");
	if (json_is_integer(json_object_get(r->body, "idleSeconds")))
		problem_later(r, "idleSeconds", "an idle rule");
	if (json_is_integer(json_object_get(r->body, "maxCostMicros")))
		problem_later(r, "maxCostMicros", "a spend cap");
	if (strcmp(json_get_str(r->body, "onLeaseEnd", ""), "pause") == 0)
		problem_later(r, "onLeaseEnd", "pause");
	return 0;
}

static char *dump(json_t *v)
{
	return v ? json_dumps(v, JSON_COMPACT) : NULL;
}

static void copy_text(char *to, size_t size, const json_t *body, const char *field)
{
	snprintf(to, size, "%s", json_get_str(body, field, ""));
}

/* The row that the body asks for. */
static int row_from_body(struct request *r, struct store_sandbox *row, struct err *e)
{
	const json_t *b = r->body;
	_cleanup_json_ json_t *network = json_incref(json_object_get(b, "network"));

	*row = (struct store_sandbox){
		.vcpus = json_get_int(b, "vcpus", 0),
		.memory_mib = json_get_int(b, "memoryMiB", 0),
		.disk_mib = json_get_int(b, "diskMiB", 0),
		.timeout_s = json_is_null(json_object_get(b, "timeoutSeconds"))
				     ? 0
				     : json_get_int(b, "timeoutSeconds", LEASE_DEFAULT_S),
		.on_lease_end =
			(enum lease_end)lease_end_parse(json_get_str(b, "onLeaseEnd", "stop")),
		.no_env = json_get_bool(b, "noEnv", false),
		.max_cost_micros = -1,
		.uid_slot = -1,
	};
	copy_text(row->name, sizeof(row->name), b, "name");
	copy_text(row->image, sizeof(row->image), b, "image");
	memcpy(row->owner_key, r->key.id, sizeof(row->owner_key));
	if (!network)
		network = json_pack("{s:s}", "mode", "none");
	row->network_json = dump(network);
	row->env_json = dump(json_object_get(b, "env"));
	row->metadata_json = dump(json_object_get(b, "metadata"));
	if (row->env_json && strlen(row->env_json) > AGENT_ARGV_BYTES_MAX)
		return err_set(e, "argv_too_large", E2BIG,
			       "env is %zu bytes; at most %u fit every command",
			       strlen(row->env_json), AGENT_ARGV_BYTES_MAX);
	return 0;
}

/* One sandbox of a request: its object, or the error. details is NULL or for the error. */
static json_t *create_one(struct request *r, json_t **details, struct err *e)
{
	struct store_sandbox row = { 0 };
	json_t *v = NULL;

	if (row_from_body(r, &row, e) == 0 &&
	    sandbox_create(r->api->sandboxes, &row, r->key.id, details, e) == 0)
		v = sandbox_json(r, &row, e);
	store_sandbox_free(&row);
	return v;
}

struct batch {
	struct request *r;
	pthread_mutex_t lock;
	size_t next, count, made;
	json_t *results; /* array of count, filled in place */
	struct err first;
};

static json_t *create_result(struct batch *b)
{
	_cleanup_json_ json_t *details = NULL, *failed = NULL;
	struct err e = { 0 };
	json_t *v = create_one(b->r, &details, &e);

	if (v) {
		pthread_mutex_lock(&b->lock);
		b->made++;
		pthread_mutex_unlock(&b->lock);
		return json_pack("{s:o}", "sandbox", v);
	}
	failed = api_error_json(&e, details, b->r->id);
	pthread_mutex_lock(&b->lock);
	if (!b->first.code)
		b->first = e;
	pthread_mutex_unlock(&b->lock);
	return steal_ptr(failed);
}

static void *create_worker(void *arg)
{
	struct batch *b = arg;

	for (;;) {
		size_t i;
		json_t *v;

		pthread_mutex_lock(&b->lock);
		i = b->next++;
		pthread_mutex_unlock(&b->lock);
		if (i >= b->count)
			return NULL;
		v = create_result(b);
		pthread_mutex_lock(&b->lock);
		json_array_set_new(b->results, i, v ? v : json_null());
		pthread_mutex_unlock(&b->lock);
	}
}

static int create_many(struct request *r, size_t count, struct err *e)
{
	struct batch b = { .r = r, .count = count, .results = json_array() };
	pthread_t threads[CREATE_PARALLEL];
	size_t n = 0;
	int rc;

	for (size_t i = 0; i < count; i++)
		json_array_append_new(b.results, json_null());
	pthread_mutex_init(&b.lock, NULL);
	while (n + 1 < count && n < CREATE_PARALLEL &&
	       pthread_create(&threads[n], NULL, create_worker, &b) == 0)
		n++;
	create_worker(&b);
	for (size_t i = 0; i < n; i++)
		pthread_join(threads[i], NULL);
	pthread_mutex_destroy(&b.lock);
	if (b.made == 0) {
		r->details = json_pack("{s:o}", "results", b.results);
		*e = b.first;
		return -EIO;
	}
	rc = request_json(r, 201, json_pack("{s:o}", "data", b.results), e);
	return rc;
}

int sandbox_post(struct request *r, struct err *e)
{
	int64_t count = json_get_int(r->body, "count", 1);
	json_t *v;

	if (count > 1)
		return create_many(r, (size_t)count, e);
	v = create_one(r, &r->details, e);
	return v ? request_json(r, 201, v, e) : -EIO;
}

/* ---- list ---- */

static size_t metadata_matches(const json_t *metadata, struct store_match *out, size_t max)
{
	const char *key;
	json_t *v;
	size_t n = 0;

	json_object_foreach ((json_t *)(uintptr_t)metadata, key, v)
		if (n < max)
			out[n++] = (struct store_match){ key, json_string_value(v) };
	return n;
}

int sandboxes_get(struct request *r, struct err *e)
{
	struct store_match matches[URI_PARAMS_MAX];
	const char *state = json_get_str(r->query, "state", NULL);
	size_t limit = (size_t)json_get_int(r->query, "limit", PAGE_DEFAULT), n = 0;
	struct store_sandbox_filter f = {
		.states = state ? 1U << sandbox_state_parse(state) : 0,
		.limit = limit + 1,
		.metadata = matches,
		.n_metadata = metadata_matches(json_object_get(r->query, "metadata"), matches,
					       ARRAY_SIZE(matches)),
	};
	struct store_sandbox *rows = NULL;
	struct page page = { 0 };
	int rc = page_cursor(r, &f.before_seq, e);

	if (rc == 0)
		rc = store_sandbox_list(r->api->store, &f, &rows, &n, e);
	for (size_t i = 0; rc == 0 && i < n && i < limit; i++)
		rc = page_add(&page, sandbox_json(r, &rows[i], e), rows[i].seq);
	store_sandboxes_free(rows, n);
	return page_answer(r, &page, rc, n > limit, e);
}

/* ---- one ---- */

static int answer_row(struct request *r, const char *id, struct err *e)
{
	struct store_sandbox row = { 0 };
	json_t *v;
	int rc = store_sandbox_get(r->api->store, id, &row, e);

	if (rc)
		return rc;
	v = sandbox_json(r, &row, e);
	store_sandbox_free(&row);
	return v ? request_json(r, 200, v, e) : -EIO;
}

int sandbox_one_get(struct request *r, struct err *e)
{
	return answer_row(r, r->param[0], e);
}

/* The id that the path's id or name stands for. */
static int resolve(struct request *r, char id[ID_LEN], struct err *e)
{
	struct store_sandbox row = { 0 };
	int rc = sandbox_row(r, &row, e);

	if (rc)
		return rc;
	memcpy(id, row.id, ID_LEN);
	store_sandbox_free(&row);
	return 0;
}

int sandbox_one_delete(struct request *r, struct err *e)
{
	char id[ID_LEN];
	int rc = resolve(r, id, e);

	if (rc == 0)
		rc = sandbox_delete(r->api->sandboxes, id, r->key.id, e);
	return rc ? rc : answer_row(r, id, e);
}

int sandbox_start_post(struct request *r, struct err *e)
{
	char id[ID_LEN];
	int rc = resolve(r, id, e);

	if (rc == 0)
		rc = sandbox_start(r->api->sandboxes, id, r->key.id, &r->details, e);
	return rc ? rc : answer_row(r, id, e);
}

int sandbox_stop_post(struct request *r, struct err *e)
{
	char id[ID_LEN];
	int rc = resolve(r, id, e);

	if (rc == 0)
		rc = sandbox_stop(r->api->sandboxes, id, r->key.id, "request", 0, e);
	return rc ? rc : answer_row(r, id, e);
}

int sandbox_renew_check(struct request *r, struct err *e)
{
	(void)e;
	check_lease(r, "timeoutSeconds");
	return 0;
}

/* Known fault 45: the answer is read after the change, so it shows the new end. */
int sandbox_renew_post(struct request *r, struct err *e)
{
	char id[ID_LEN];
	int rc = resolve(r, id, e);

	if (rc == 0)
		rc = sandbox_renew(r->api->sandboxes, id, r->key.id,
				   json_get_int(r->body, "timeoutSeconds", 0), e);
	return rc ? rc : answer_row(r, id, e);
}

int sandbox_console_get(struct request *r, struct err *e)
{
	_cleanup_free_ char *text = NULL;
	char id[ID_LEN];
	int rc = resolve(r, id, e);

	if (rc == 0)
		rc = sandbox_serial(r->api->sandboxes, id, &text, e);
	return rc ? rc : request_json(r, 200, json_pack("{s:s}", "text", text), e);
}

int not_available_yet(struct request *r, struct err *e)
{
	char id[ID_LEN];
	int rc = resolve(r, id, e);

	if (rc)
		return rc;
	rc = err_set(e, "not_available", ENOSYS, "this version does not offer %s",
		     strrchr(r->route->pattern, '/') + 1);
	err_fix(e, "Use stop and start, which keep the disk, until a later version offers it.");
	return rc;
}
