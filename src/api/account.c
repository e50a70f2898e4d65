/* Keys, events, images, and how the daemon itself does. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "api/check.h"
#include "api/handlers.h"
#include "api/page.h"
#include "api/request.h"
#include "base/clock.h"
#include "base/id.h"
#include "sandbox/sandbox.h"

int health_get(struct request *r, struct err *e)
{
	int64_t keys;

	/* Healthy means that the store answers. */
	if (store_key_count(r->api->store, &keys, e))
		return -EIO;
	return request_json(r, 200,
			    json_pack("{s:s,s:s}", "status", "ok", "version", r->api->version), e);
}

/* ---- keys ---- */

static json_t *key_json(const struct store_key *k)
{
	return json_pack("{s:s,s:s,s:s,s:o,s:o}", "id", k->id, "name", k->name, "role",
			 key_role_name(k->role), "createdAt", time_json(k->created_ms),
			 "lastUsedAt", time_json(k->last_used_ms));
}

int whoami_get(struct request *r, struct err *e)
{
	return request_json(r, 200,
			    json_pack("{s:o,s:s}", "key", key_json(&r->key), "role",
				      key_role_name(r->key.role)),
			    e);
}

int keys_get(struct request *r, struct err *e)
{
	_cleanup_free_ struct store_key *keys = NULL;
	struct page page = { 0 };
	size_t n = 0;
	int rc = store_key_list(r->api->store, &keys, &n, e);

	for (size_t i = 0; rc == 0 && i < n; i++)
		if (page_add(&page, key_json(&keys[i]), 0))
			rc = err_errno(e, ENOMEM, "list the keys");
	return page_answer(r, &page, rc, false, e);
}

static int note_event(struct request *r, const char *type, const char *key_id, struct err *e)
{
	struct store_event ev = { 0 };
	json_t *data = json_pack("{s:s}", "key", key_id);
	int rc;

	snprintf(ev.type, sizeof(ev.type), "%s", type);
	memcpy(ev.actor, r->key.id, sizeof(ev.actor));
	ev.data_json = data ? json_dumps(data, JSON_COMPACT) : NULL;
	json_decref(data);
	rc = store_event_add(r->api->store, &ev, e);
	store_event_free(&ev);
	return rc;
}

int key_post_check(struct request *r, struct err *e)
{
	(void)e;
	check_name(r, "name", json_get_str(r->body, "name", NULL));
	/* A kept answer would keep the secret. */
	if (request_in(r, "Idempotency-Key"))
		return err_set(e, "header_invalid", EINVAL,
			       "Idempotency-Key is not taken here: the secret is not kept");
	return 0;
}

int key_post(struct request *r, struct err *e)
{
	char secret[STORE_KEY_LEN];
	struct store_key key;
	json_t *v;
	int role = key_role_parse(json_get_str(r->body, "role", ""));

	if (store_key_create(r->api->store, json_get_str(r->body, "name", ""), (enum key_role)role,
			     &key, secret, e) ||
	    note_event(r, "key.created", key.id, e))
		return -EIO;
	v = key_json(&key);
	json_object_set_new(v, "secret", json_string(secret));
	explicit_bzero(secret, sizeof(secret));
	return request_json(r, 201, v, e);
}

int key_delete(struct request *r, struct err *e)
{
	int rc = store_key_revoke(r->api->store, r->param[0], e);

	if (rc == 0)
		rc = note_event(r, "key.revoked", r->param[0], e);
	return rc ? rc : request_json(r, 200, json_object(), e);
}

/* ---- events ---- */

static json_t *event_json(const struct store_event *ev)
{
	json_t *data = json_loads(ev->data_json, 0, NULL);

	return json_pack("{s:s,s:I,s:o,s:s,s:o,s:o,s:o}", "id", ev->id, "seq", (json_int_t)ev->seq,
			 "at", time_json(ev->at_ms), "type", ev->type, "actor",
			 ev->actor[0] ? json_string(ev->actor) : json_null(), "sandbox",
			 ev->sandbox[0] ? json_string(ev->sandbox) : json_null(), "data",
			 data ? data : json_object());
}

/* nextCursor is given even after the last event: what comes later follows it. */
int events_get(struct request *r, struct err *e)
{
	size_t limit = (size_t)json_get_int(r->query, "limit", PAGE_DEFAULT), n = 0;
	struct store_event *evs = NULL;
	struct page page = { 0 };
	int64_t after = 0;
	int rc = page_cursor(r, &after, e);

	if (rc == 0)
		rc = store_event_list(r->api->store, after, limit,
				      json_get_str(r->query, "sandbox", NULL), &evs, &n, e);
	page.last = after;
	for (size_t i = 0; rc == 0 && i < n; i++)
		if (page_add(&page, event_json(&evs[i]), evs[i].seq))
			rc = err_errno(e, ENOMEM, "list the events");
	store_events_free(evs, n);
	return page_answer(r, &page, rc, page.last > 0, e);
}

/* ---- images ---- */

int images_get(struct request *r, struct err *e)
{
	_cleanup_json_ json_t *images = NULL;
	int rc = sandbox_images(r->api->sandboxes, &images, e);

	return rc ? rc
		  : request_json(r, 200, json_pack("{s:O,s:n}", "data", images, "nextCursor"), e);
}

/* ---- metrics ---- */

static int add_sandboxes(struct request *r, struct buf *b, struct err *e)
{
	struct store_sandbox_filter f = { 0 };
	struct store_sandbox *rows;
	unsigned by_state[SANDBOX_STATES] = { 0 };
	size_t n;
	int rc = store_sandbox_list(r->api->store, &f, &rows, &n, e);

	if (rc)
		return rc;
	for (size_t i = 0; i < n; i++)
		by_state[rows[i].state]++;
	store_sandboxes_free(rows, n);
	rc = buf_str(b, "# TYPE cloche_sandboxes gauge\n");
	for (int i = 0; rc == 0 && i < SANDBOX_DELETED; i++)
		rc = buf_printf(b, "cloche_sandboxes{state=\"%s\"} %u\n",
				sandbox_state_name((enum sandbox_state)i), by_state[i]);
	return rc ? err_errno(e, ENOMEM, "count") : 0;
}

static int add_value(struct buf *b, const char *name, const char *type, uint64_t value)
{
	return buf_printf(b, "# TYPE %s %s\n%s %llu\n", name, type, name,
			  (unsigned long long)value);
}

int metrics_get(struct request *r, struct err *e)
{
	static const char *const classes[] = { "none", "1xx", "2xx", "3xx", "4xx", "5xx" };
	struct api *a = r->api;
	_cleanup_buf_ struct buf b = { 0 };
	int rc = buf_str(&b, "# TYPE cloche_http_requests_total counter\n");

	for (size_t i = 0; rc == 0 && i < ARRAY_SIZE(classes); i++)
		rc = buf_printf(&b, "cloche_http_requests_total{status=\"%s\"} %llu\n", classes[i],
				(unsigned long long)atomic_load(&a->count.requests[i]));
	rc = rc
		     ?: add_value(&b, "cloche_http_open_requests", "gauge",
				  (uint64_t)atomic_load(&a->count.open_requests));
	rc = rc
		     ?: add_value(&b, "cloche_http_open_streams", "gauge",
				  (uint64_t)atomic_load(&a->count.open_streams));
	rc = rc
		     ?: add_value(&b, "cloche_http_body_bytes_in_total", "counter",
				  atomic_load(&a->count.bytes_up));
	rc = rc
		     ?: add_value(&b, "cloche_http_stream_bytes_out_total", "counter",
				  atomic_load(&a->count.bytes_down));
	rc = rc
		     ?: add_value(&b, "cloche_commands_total", "counter",
				  atomic_load(&a->count.commands));
	rc = rc
		     ?: add_value(&b, "cloche_uptime_seconds", "gauge",
				  (clock_mono_ns() - a->started_ns) / NSEC_PER_SEC);
	if (rc)
		return err_errno(e, ENOMEM, "count");
	rc = add_sandboxes(r, &b, e);
	return rc ? rc : request_text(r, 200, "text/plain; version=0.0.4", buf_steal(&b), e);
}
