/*
 * The listener and the life of a request on libmicrohttpd, one thread a connection.
 *
 * libmicrohttpd calls request_step() once with the head, then with each piece of the body, then
 * once more. A request that has failed reads the rest of a moderate body before it answers, since
 * a client that is still sending does not read; a long body is answered at once and the connection
 * closed.
 *
 * libmicrohttpd's idle timeout also counts while a handler works, and would cut off a command of
 * five minutes. So it is off while a handler runs and set afresh for the answer.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include "api/check.h"
#include "api/errors.h"
#include "api/request.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/sha256.h"
#include "base/str.h"

#define IDLE_S 60	      /* between requests, and for a client that does not send or read */
#define STREAM_IDLE_S 300     /* for a client that does not read its stream */
#define DRAIN_MAX (16u << 20) /* bytes of a body that are read although the request failed */
#define CONNECTION_MEMORY (160u << 10)
#define THREAD_STACK (512u << 10)
#define IDEMPOTENCY_KEY_MAX 255

/* ---- head ---- */

static bool host_is_local(const char *name, size_t n)
{
	static const char *const local[] = { "localhost", "127.0.0.1", "[::1]" };

	for (size_t i = 0; i < ARRAY_SIZE(local); i++)
		if (strlen(local[i]) == n && strncasecmp(name, local[i], n) == 0)
			return true;
	return n > 10 && strncasecmp(name + n - 10, ".localhost", 10) == 0;
}

static int check_host(struct request *r, struct err *e)
{
	const char *host = request_in(r, "Host");
	const char *port;
	size_t n;

	if (!host || (!r->api->loopback && !r->api->hosts_n))
		return 0;
	port = strrchr(host, ':');
	n = port && !strchr(port, ']') ? (size_t)(port - host) : strlen(host);
	if (host_is_local(host, n))
		return 0;
	for (size_t i = 0; i < r->api->hosts_n; i++)
		if (strlen(r->api->hosts[i]) == n && strncasecmp(r->api->hosts[i], host, n) == 0)
			return 0;
	return err_set(e, "host_not_allowed", EACCES, "the Host header names another site");
}

static int check_key(struct request *r, struct err *e)
{
	const char *auth = request_in(r, "Authorization");

	if (!auth)
		return err_set(e, "key_missing", EACCES, "the request carries no API key");
	if (strncasecmp(auth, "Bearer ", 7) != 0)
		return err_set(e, "key_missing", EACCES,
			       "the Authorization header is not of the form Bearer clk_…");
	return store_key_find(r->api->store, auth + 7, &r->key, e);
}

static int check_role(struct request *r, struct err *e)
{
	if (r->key.role >= r->route->role)
		return 0;
	return err_set(e, "role_insufficient", EACCES,
		       "the key's role is %s; this needs at least %s", key_role_name(r->key.role),
		       key_role_name(r->route->role));
}

static bool route_is_open(const struct route *route)
{
	return route && route->flags & ROUTE_OPEN;
}

static int request_head(struct request *r, struct err *e)
{
	struct err none = { 0 };
	char allow[64];

	if (uri_parse(r->target, &r->uri, e))
		return -EINVAL;
	if (check_host(r, e))
		return -EACCES;
	r->route = route_find(r->method, &r->uri, r->param, allow, &none);
	/* Without a key nothing is said, not even which routes there are. */
	if (!route_is_open(r->route) && check_key(r, e))
		return -EACCES;
	if (!r->route) {
		*e = none;
		return allow[0] ? request_header(r, "Allow", allow, e) ?: -EINVAL : -ENOENT;
	}
	if (!route_is_open(r->route) && check_role(r, e))
		return -EACCES;
	check_query(r);
	if (!r->route->upload)
		return 0;
	if (request_check_problems(r, e))
		return -EINVAL;
	return r->route->upload->begin(r, e);
}

/* ---- whole ---- */

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
				  stream ? STREAM_IDLE_S : IDLE_S);
	atomic_fetch_add(&r->api->count.requests[r->status / 100 % 6], 1);
	ok = MHD_queue_response(r->conn, (unsigned)r->status, r->response);
	MHD_destroy_response(r->response);
	r->response = NULL;
	r->answered = true;
	return ok;
}

static void request_fail(struct request *r, const struct err *e)
{
	r->failed = true;
	r->failure = *e;
}

static enum MHD_Result request_end(struct request *r)
{
	struct err e = r->failure;
	bool keep = true;

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

/* ---- libmicrohttpd's side ---- */

static void *request_new(void *cls, const char *target, struct MHD_Connection *conn)
{
	struct request *r = calloc(1, sizeof(*r));

	if (!r)
		return NULL;
	r->api = cls;
	r->conn = conn;
	r->began_ns = clock_mono_ns();
	r->client = (struct client){
		.api = r->api,
		.fd = MHD_get_connection_info(conn, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd,
	};
	id_new("req", r->id);
	r->target = strdup(target);
	r->query = json_object();
	r->problems = json_array();
	atomic_fetch_add(&r->api->count.open_requests, 1);
	return r;
}

static void request_free(struct request *r)
{
	if (r->upload_free)
		r->upload_free(r->upload);
	for (size_t i = 0; i < r->n_headers; i++)
		free(r->headers[i].value);
	if (r->response)
		MHD_destroy_response(r->response);
	json_decref(r->query);
	json_decref(r->body);
	json_decref(r->problems);
	json_decref(r->details);
	buf_free(&r->text);
	uri_free(&r->uri);
	free(r->answer);
	free(r->target);
	free(r);
}

static void request_completed(void *cls, struct MHD_Connection *conn, void **con_cls,
			      enum MHD_RequestTerminationCode why)
{
	struct request *r = *con_cls;
	char status[16], ms[24];

	(void)cls;
	(void)conn;
	if (!r)
		return;
	*con_cls = NULL;
	atomic_fetch_sub(&r->api->count.open_requests, 1);
	if (r->begun) {
		if (!r->answered)
			atomic_fetch_add(&r->api->count.requests[0], 1);
		snprintf(status, sizeof(status), "%d", r->answered ? r->status : 0);
		snprintf(ms, sizeof(ms), "%llu",
			 (unsigned long long)((clock_mono_ns() - r->began_ns) / NSEC_PER_MSEC));
		log_event(LOG_INFO, "request", "method", r->route ? r->route->method : "?", "route",
			  r->route ? r->route->pattern : "?", "status", status, "ms", ms,
			  "requestId", r->id, "key", r->key.id[0] ? r->key.id : NULL, "complete",
			  why == MHD_REQUEST_TERMINATED_COMPLETED_OK ? "yes" : "no", NULL);
	}
	request_free(r);
}

/* How much body the head announces; UINT64_MAX when it does not say. */
static uint64_t body_announced(const struct request *r)
{
	const char *length = request_in(r, "Content-Length");
	int64_t n;

	if (request_in(r, "Transfer-Encoding"))
		return UINT64_MAX;
	if (!length)
		return 0;
	return str_to_int(length, 0, INT64_MAX, &n) == 0 ? (uint64_t)n : UINT64_MAX;
}

static size_t body_max(const struct request *r)
{
	return r->route->flags & ROUTE_LARGE ? JSON_BODY_LARGE : JSON_BODY_MAX;
}

static int body_too_large(const struct request *r, struct err *e)
{
	return err_set(e, "payload_too_large", EFBIG, "the body has more than %zu bytes",
		       body_max(r));
}

static enum MHD_Result step_head(struct request *r, const char *method)
{
	uint64_t announced = body_announced(r);
	struct err e = { 0 };

	r->begun = true;
	r->method = method;
	if (!r->target || !r->query || !r->problems)
		return MHD_NO;
	MHD_set_connection_option(r->conn, MHD_CONNECTION_OPTION_TIMEOUT, 0U);
	if (request_head(r, &e) < 0)
		request_fail(r, &e);
	else if (!r->route->upload && announced != UINT64_MAX && announced > body_max(r) &&
		 body_too_large(r, &e))
		request_fail(r, &e);
	MHD_set_connection_option(r->conn, MHD_CONNECTION_OPTION_TIMEOUT, IDLE_S);
	if (r->failed && (announced > DRAIN_MAX || request_in(r, "Expect")))
		return request_end(r);
	return MHD_YES;
}

static void step_body(struct request *r, const char *p, size_t n)
{
	struct err e = { 0 };
	int rc;

	atomic_fetch_add(&r->api->count.bytes_up, n);
	if (r->failed)
		return;
	if (r->route->upload) {
		MHD_set_connection_option(r->conn, MHD_CONNECTION_OPTION_TIMEOUT, 0U);
		rc = r->route->upload->data(r, p, n, &e);
		MHD_set_connection_option(r->conn, MHD_CONNECTION_OPTION_TIMEOUT, IDLE_S);
	} else if (r->text.len + n > body_max(r)) {
		rc = body_too_large(r, &e);
	} else {
		rc = buf_add(&r->text, p, n);
		if (rc)
			err_errno(&e, -rc, "read the body");
	}
	if (rc < 0)
		request_fail(r, &e);
}

static enum MHD_Result request_step(void *cls, struct MHD_Connection *conn, const char *url,
				    const char *method, const char *version, const char *p,
				    size_t *n, void **con_cls)
{
	struct request *r = *con_cls;

	(void)cls;
	(void)conn;
	(void)url;
	(void)version;
	if (!r)
		return MHD_NO;
	if (!r->begun)
		return step_head(r, method);
	if (*n) {
		step_body(r, p, *n);
		*n = 0;
		return MHD_YES;
	}
	return r->answered ? MHD_YES : request_end(r);
}

/* The target is parsed from its raw form; libmicrohttpd is not to decode anything. */
static size_t keep_escapes(void *cls, struct MHD_Connection *conn, char *s)
{
	(void)cls;
	(void)conn;
	return strlen(s);
}

static void connection_changed(void *cls, struct MHD_Connection *conn, void **socket_context,
			       enum MHD_ConnectionNotificationCode what)
{
	const union MHD_ConnectionInfo *info;
	int on = 1, idle = 30, interval = 10, count = 3;

	(void)cls;
	(void)socket_context;
	if (what != MHD_CONNECTION_NOTIFY_STARTED)
		return;
	/* A client whose host vanished sends no FIN; keep-alive finds it. Best effort. */
	info = MHD_get_connection_info(conn, MHD_CONNECTION_INFO_CONNECTION_FD);
	setsockopt(info->connect_fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
	setsockopt(info->connect_fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
	setsockopt(info->connect_fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
	setsockopt(info->connect_fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
}

static void mhd_log(void *cls, const char *fmt, va_list ap) __attribute__((format(printf, 2, 0)));

static void mhd_log(void *cls, const char *fmt, va_list ap)
{
	char text[256];
	size_t n;

	(void)cls;
	vsnprintf(text, sizeof(text), fmt, ap);
	n = strlen(text);
	if (n && text[n - 1] == '\n')
		text[n - 1] = '\0';
	log_event(LOG_DEBUG, "http library", "text", text, NULL);
}

/* ---- start and stop ---- */

static int listen_on(const struct api_config *c, struct api *a, struct err *e)
{
	const char *text = c->address ? c->address : "127.0.0.1";
	struct sockaddr_in6 in6 = { .sin6_family = AF_INET6, .sin6_port = htons(c->port) };
	struct sockaddr_in in4 = { .sin_family = AF_INET, .sin_port = htons(c->port) };
	bool six = inet_pton(AF_INET6, text, &in6.sin6_addr) == 1;
	struct sockaddr *sa = six ? (struct sockaddr *)&in6 : (struct sockaddr *)&in4;
	socklen_t len = six ? sizeof(in6) : sizeof(in4);
	_cleanup_close_ int fd = -1;
	int on = 1;

	if (!six && inet_pton(AF_INET, text, &in4.sin_addr) != 1)
		return err_set(e, "address_invalid", EINVAL, "%.100s is not a numeric address",
			       text);
	a->loopback = six ? IN6_IS_ADDR_LOOPBACK(&in6.sin6_addr)
			  : ntohl(in4.sin_addr.s_addr) >> 24 == 127;
	fd = socket(sa->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) < 0)
		return err_errno(e, errno, "make a socket");
	if (bind(fd, sa, len) < 0 || listen(fd, 256) < 0) {
		int r = err_set(e, errno == EADDRINUSE ? "address_in_use" : "system", errno,
				"listen on %s port %u: %s", text, c->port, strerror(errno));

		err_fix(e, "Choose another port, or end the program that has it.");
		return r;
	}
	if (getsockname(fd, sa, &len) < 0)
		return err_errno(e, errno, "read the socket's address");
	a->port = ntohs(six ? in6.sin6_port : in4.sin_port);
	return steal_fd(&fd);
}

int api_start(const struct api_config *c, struct api **out, struct err *e)
{
	struct api *a = calloc(1, sizeof(*a));
	int fd, r;

	if (!a)
		return err_errno(e, ENOMEM, "start the API");
	a->store = c->store;
	a->sandboxes = c->sandboxes;
	a->hosts = c->hosts;
	a->hosts_n = c->hosts_n;
	a->version = c->version ? c->version : "";
	a->started_ns = clock_mono_ns();
	a->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	fd = a->stop_fd < 0 ? err_errno(e, errno, "make an eventfd") : listen_on(c, a, e);
	if (fd < 0) {
		close_fd(&a->stop_fd);
		free(a);
		return fd;
	}
	a->daemon = MHD_start_daemon(
		MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_POLL |
			MHD_USE_ITC | MHD_USE_ERROR_LOG,
		0, NULL, NULL, request_step, a, MHD_OPTION_EXTERNAL_LOGGER, mhd_log, NULL,
		MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT,
		c->connections_max ? c->connections_max : 512U, MHD_OPTION_CONNECTION_TIMEOUT,
		(unsigned)IDLE_S, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_MEMORY,
		MHD_OPTION_THREAD_STACK_SIZE, (size_t)THREAD_STACK, MHD_OPTION_STRICT_FOR_CLIENT, 1,
		MHD_OPTION_URI_LOG_CALLBACK, request_new, a, MHD_OPTION_UNESCAPE_CALLBACK,
		keep_escapes, NULL, MHD_OPTION_NOTIFY_COMPLETED, request_completed, a,
		MHD_OPTION_NOTIFY_CONNECTION, connection_changed, a, MHD_OPTION_END);
	if (!a->daemon) {
		r = err_errno(e, errno ? errno : EIO, "start the HTTP server");
		close(fd);
		close_fd(&a->stop_fd);
		free(a);
		return r;
	}
	*out = a;
	return 0;
}

uint16_t api_port(const struct api *a)
{
	return a->port;
}

void api_stop(struct api *a)
{
	if (!a)
		return;
	atomic_store(&a->stopping, true);
	if (eventfd_write(a->stop_fd, 1) < 0)
		log_error("wake the HTTP handlers: %s", strerror(errno));
	MHD_stop_daemon(a->daemon);
	close_fd(&a->stop_fd);
	free(a);
}
