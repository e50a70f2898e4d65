/*
 * Making sandboxes: one, several side by side, or one that is not waited for to its end. In the
 * last case a thread of its own goes on after the answer; the daemon waits for it before it ends.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "api/check.h"
#include "api/errors.h"
#include "api/handlers.h"
#include "api/request.h"
#include "api/shapes.h"
#include "base/clock.h"
#include "base/log.h"
#include "proto/agent.h"
#include "sandbox/sandbox.h"

#define CREATE_PARALLEL 8 /* sandboxes of one request that are made at the same time */
#define LEASE_DEFAULT_S 3600
#define ROW_LOOK_MS 20 /* between looks for the row of a sandbox that is being made */

/* ---- what is asked for ---- */

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
	if (json_get_int(r->body, "count", 1) > 1) {
		if (name)
			request_problem(r, "name", "cannot be given to more than one sandbox");
		if (json_object_get(r->query, "wait"))
			request_problem(r, "wait", "cannot be given with count");
	}
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

/* ---- at once ---- */

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

/* ---- without waiting to the end ---- */

/* Shared by the thread that makes the sandbox and the request that started it. */
struct job {
	struct api *api;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	unsigned refs;
	bool done;
	int result;
	struct err e;
	json_t *details;
	struct store_sandbox row; /* the thread's until done */
	char id[ID_LEN], key[ID_LEN];
};

static void job_put(struct job *j)
{
	unsigned left;

	pthread_mutex_lock(&j->lock);
	left = --j->refs;
	pthread_mutex_unlock(&j->lock);
	if (left)
		return;
	pthread_mutex_destroy(&j->lock);
	pthread_cond_destroy(&j->changed);
	store_sandbox_free(&j->row);
	json_decref(j->details);
	free(j);
}

static void *job_run(void *arg)
{
	struct job *j = arg;
	struct api *api = j->api;
	struct err e = { 0 };
	json_t *details = NULL;
	int rc = sandbox_create(api->sandboxes, &j->row, j->key, &details, &e);

	if (rc)
		log_err(LOG_WARN, &e, j->id);
	pthread_mutex_lock(&j->lock);
	j->done = true;
	j->result = rc;
	j->e = e;
	j->details = details;
	pthread_cond_broadcast(&j->changed);
	pthread_mutex_unlock(&j->lock);
	job_put(j);
	api_work_end(api);
	return NULL;
}

static struct job *job_start(struct request *r, struct err *e)
{
	struct job *j = calloc(1, sizeof(*j));
	pthread_condattr_t attr;
	pthread_attr_t detached;
	pthread_t thread;
	int rc;

	if (!j) {
		err_errno(e, ENOMEM, "make a sandbox");
		return NULL;
	}
	if (row_from_body(r, &j->row, e)) {
		store_sandbox_free(&j->row);
		free(j);
		return NULL;
	}
	id_new("sbx", j->row.id);
	memcpy(j->id, j->row.id, ID_LEN);
	memcpy(j->key, r->key.id, ID_LEN);
	j->api = r->api;
	j->refs = 2;
	pthread_mutex_init(&j->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&j->changed, &attr);
	pthread_condattr_destroy(&attr);
	api_work_begin(r->api);
	pthread_attr_init(&detached);
	pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
	rc = pthread_create(&thread, &detached, job_run, j);
	pthread_attr_destroy(&detached);
	if (rc) {
		api_work_end(r->api);
		j->refs = 1;
		job_put(j);
		err_errno(e, rc, "start a thread");
		return NULL;
	}
	return j;
}

/* Waits until the job is done or the time has come; whether it is done. */
static bool job_wait(struct job *j, uint64_t until_ns)
{
	const struct timespec ts = { .tv_sec = (time_t)(until_ns / NSEC_PER_SEC),
				     .tv_nsec = (long)(until_ns % NSEC_PER_SEC) };
	bool done;

	pthread_mutex_lock(&j->lock);
	while (!j->done && pthread_cond_timedwait(&j->changed, &j->lock, &ts) == 0)
		;
	done = j->done;
	pthread_mutex_unlock(&j->lock);
	return done;
}

/* The row becomes visible before the sandbox runs; 202 shows it. Done: 201 or the error. */
static int job_answer(struct request *r, struct job *j, bool done, struct err *e)
{
	struct store_sandbox row = { 0 };
	json_t *v;
	int rc;

	while (!done && store_sandbox_get(r->api->store, j->id, &row, NULL) != 0)
		done = job_wait(j, clock_mono_ns() + ROW_LOOK_MS * NSEC_PER_MSEC);
	if (done && j->result) {
		*e = j->e;
		r->details = steal_ptr(j->details);
		return j->result;
	}
	if (done) {
		store_sandbox_free(&row);
		rc = store_sandbox_get(r->api->store, j->id, &row, e);
		if (rc)
			return rc;
	}
	v = sandbox_json(r, &row, e);
	store_sandbox_free(&row);
	return v ? request_json(r, done ? 201 : 202, v, e) : -EIO;
}

static int create_waiting(struct request *r, int64_t seconds, struct err *e)
{
	struct job *j = job_start(r, e);
	int rc;

	if (!j)
		return -EIO;
	rc = job_answer(r, j, job_wait(j, clock_mono_ns() + (uint64_t)seconds * NSEC_PER_SEC), e);
	job_put(j);
	return rc;
}

int sandbox_post(struct request *r, struct err *e)
{
	int64_t count = json_get_int(r->body, "count", 1);
	int64_t wait = json_get_int(r->query, "wait", -1);
	json_t *v;

	if (count > 1)
		return create_many(r, (size_t)count, e);
	if (wait >= 0)
		return create_waiting(r, wait, e);
	v = create_one(r, &r->details, e);
	return v ? request_json(r, 201, v, e) : -EIO;
}
