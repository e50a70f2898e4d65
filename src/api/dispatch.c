/*
 * A whole request: its body is checked, its idempotency key claimed, its handler run, its answer
 * sent. The idempotency record is written before the answer leaves, so that a client which got the
 * answer can rely on the record.
 *
 * libmicrohttpd's idle timeout also counts while a handler works, and would cut off a command of
 * five minutes. So it is off while a handler runs and set afresh for the answer.
 */
#include "api/dispatch.h"

#include <errno.h>
#include <string.h>

#include "api/check.h"
#include "api/conns.h"
#include "api/errors.h"
#include "api/request.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/sha256.h"

#define STREAM_IDLE_S 300 /* for a client that does not read its stream */
#define IDEMPOTENCY_KEY_MAX 255
#define IDEMPOTENCY_KEPT_MS (24LL * 3600 * 1000)
#define IDEMPOTENCY_LOOK_NS (600 * NSEC_PER_SEC)

static void request_hash(const struct request *r, uint8_t hash[STORE_HASH_LEN])
{
	struct sha256 s;

	sha256_init(&s);
	sha256_add(&s, r->method, strlen(r->method) + 1);
	sha256_add(&s, r->target, strlen(r->target) + 1);
	sha256_add(&s, r->text.data, r->text.len);
	sha256_end(&s, hash);
}

static int replay(struct request *r, struct idempotency_answer *a, struct err *e)
{
	int rc = request_text(r, a->status, "application/json", a->body, e);

	return rc ? rc : request_header(r, "Idempotency-Replayed", "true", e);
}

/* Records are kept for a day; looked after now and then, by whoever claims one. */
static void idempotency_expire(struct api *a)
{
	uint64_t last = atomic_load(&a->idem_expired_ns), now = clock_mono_ns();
	struct err e = { 0 };

	if (now - last < IDEMPOTENCY_LOOK_NS ||
	    !atomic_compare_exchange_strong(&a->idem_expired_ns, &last, now))
		return;
	if (store_idempotency_expire(a->store, clock_wall_ms() - IDEMPOTENCY_KEPT_MS, &e))
		log_err(LOG_ERROR, &e, "drop old idempotent answers");
}

/* 0: go on; 1: answered from the record; negative: refused. */
static int idempotency_claim(struct request *r, struct err *e)
{
	const char *idem = request_in(r, "Idempotency-Key");
	struct idempotency_answer answer = { 0 };
	uint8_t hash[STORE_HASH_LEN];
	enum idempotency_state state;
	int rc;

	if (!idem || strcmp(r->route->method, "POST") != 0 || r->route->upload)
		return 0;
	for (const char *c = idem; *c; c++)
		if (*c < 0x21 || *c > 0x7e)
			idem = "";
	if (!*idem || strlen(idem) > IDEMPOTENCY_KEY_MAX)
		return err_set(e, "header_invalid", EINVAL,
			       "Idempotency-Key must be 1 to %d printable ASCII characters",
			       IDEMPOTENCY_KEY_MAX);
	idempotency_expire(r->api);
	request_hash(r, hash);
	rc = store_idempotency_begin(r->api->store, r->key.id, idem, hash, &state, &answer, e);
	if (rc)
		return rc;
	switch (state) {
	case IDEMPOTENCY_NEW:
		r->idem = idem;
		return 0;
	case IDEMPOTENCY_DONE:
		rc = replay(r, &answer, e);
		return rc ? rc : 1;
	case IDEMPOTENCY_RUNNING:
		return err_set(e, "idempotency_running", EBUSY, "%s", "");
	case IDEMPOTENCY_INTERRUPTED:
		return err_set(e, "idempotency_interrupted", EIO, "%s", "");
	default:
		return err_set(e, "idempotency_mismatch", EINVAL, "%s", "");
	}
}

/* Keeps the answer for a repetition, unless it says that a repetition may do better. */
static void idempotency_settle(struct request *r, bool keep)
{
	struct err e = { 0 };
	int rc;

	if (!r->idem)
		return;
	if (keep && r->answer)
		rc = store_idempotency_finish(r->api->store, r->key.id, r->idem, r->status,
					      r->answer, &e);
	else if (keep)
		rc = 0; /* a stream; its handler has settled it */
	else
		rc = store_idempotency_abandon(r->api->store, r->key.id, r->idem, &e);
	if (rc)
		log_err(LOG_ERROR, &e, "keep an idempotent answer");
	r->idem = NULL;
}

static int request_whole(struct request *r, struct err *e)
{
	int rc;

	if (!r->route->upload) {
		if (check_body(r, e))
			return -EINVAL;
		if (r->route->check && r->route->check(r, e))
			return -EINVAL;
		if (request_check_problems(r, e))
			return -EINVAL;
	}
	rc = idempotency_claim(r, e);
	return rc ? (rc > 0 ? 0 : rc) : r->route->handle(r, e);
}

/* ---- answer ---- */

static void answer_error(struct request *r, const struct err *e)
{
	const struct api_error *known = api_error_get(e->code);
	_cleanup_json_ json_t *v = api_error_json(e, r->details, r->id);
	struct err ignored = { 0 };

	if (known->status >= 500)
		log_event(known->status == 503 ? LOG_WARN : LOG_ERROR, "request failed", "code",
			  e->code, "message", e->msg, "requestId", r->id, NULL);
	if (r->response) {
		MHD_destroy_response(r->response);
		r->response = NULL;
	}
	request_text(r, known->status, "application/json", v ? json_dumps(v, JSON_COMPACT) : NULL,
		     &ignored);
	if (known->status == 401)
		request_header(r, "WWW-Authenticate", "Bearer", &ignored);
	if (known->retryable)
		request_header(r, "Retry-After", "2", &ignored);
}

static enum MHD_Result answer_send(struct request *r)
{
	bool stream = r->response != NULL;
	enum MHD_Result ok;

	if (!r->response && r->answer) {
		size_t n = strlen(r->answer);

		r->response = MHD_create_response_from_buffer(n, steal_ptr(r->answer),
							      MHD_RESPMEM_MUST_FREE);
	}
	if (!r->response)
		return MHD_NO;
	for (size_t i = 0; i < r->n_headers; i++)
		MHD_add_response_header(r->response, r->headers[i].name, r->headers[i].value);
	MHD_add_response_header(r->response, "X-Request-Id", r->id);
	MHD_add_response_header(r->response, "Cache-Control", "no-store");
	MHD_add_response_header(r->response, "X-Content-Type-Options", "nosniff");
	MHD_set_connection_option(r->conn, MHD_CONNECTION_OPTION_TIMEOUT,
				  stream ? STREAM_IDLE_S : r->api->idle_s);
	atomic_fetch_add(&r->api->count.requests[r->status / 100 % 6], 1);
	ok = MHD_queue_response(r->conn, (unsigned)r->status, r->response);
	MHD_destroy_response(r->response);
	r->response = NULL;
	r->answered = true;
	return ok;
}

void request_fail(struct request *r, const struct err *e)
{
	r->failed = true;
	r->failure = *e;
}

enum MHD_Result request_end(struct request *r)
{
	struct err e = r->failure;
	bool keep = true;

	conn_deadline(r->api->conns, r->timed, UINT64_MAX);
	if (!r->failed) {
		MHD_set_connection_option(r->conn, MHD_CONNECTION_OPTION_TIMEOUT, 0U);
		r->failed = request_whole(r, &e) < 0;
	}
	if (r->failed) {
		answer_error(r, &e);
		keep = !api_error_get(e.code)->retryable;
	}
	idempotency_settle(r, keep);
	return answer_send(r);
}
