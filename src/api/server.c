/*
 * The listener and the life of a request on libmicrohttpd, one thread a connection.
 *
 * libmicrohttpd calls request_step() once with the head, then with each piece of the body, then
 * once more. A request that has failed reads the rest of a moderate body before it answers, since
 * a client that is still sending does not read; a long body is answered at once and the connection
 * closed.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include "api/conns.h"
#include "api/dispatch.h"
#include "api/request.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"

#define DRAIN_MAX (16u << 20) /* bytes of a body that are read although the request failed */
#define CONNECTION_MEMORY (160u << 10)
#define THREAD_STACK (2u << 20) /* JSON may be 2048 levels deep, and each is a call */
#define LEAVE_S 3		/* for answers under way when the daemon ends */

/* ---- libmicrohttpd's side ---- */

void api_work_begin(struct api *a)
{
	pthread_mutex_lock(&a->lock);
	a->working++;
	pthread_mutex_unlock(&a->lock);
}

void api_work_end(struct api *a)
{
	pthread_mutex_lock(&a->lock);
	if (--a->working == 0)
		pthread_cond_broadcast(&a->idle);
	pthread_mutex_unlock(&a->lock);
}

static uint64_t after(unsigned seconds)
{
	return clock_mono_ns() + seconds * NSEC_PER_SEC;
}

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
	r->timed =
		MHD_get_connection_info(conn, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
	id_new("req", r->id);
	r->target = strdup(target);
	r->query = json_object();
	r->problems = json_array();
	atomic_fetch_add(&r->api->count.open_requests, 1);
	api_work_begin(r->api);
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
	struct api *api;
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
	api = r->api;
	conn_deadline(api->conns, r->timed, after(api->idle_s));
	request_free(r);
	api_work_end(api);
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
	MHD_set_connection_option(r->conn, MHD_CONNECTION_OPTION_TIMEOUT, r->api->idle_s);
	/* An upload may take as long as it makes progress. */
	conn_deadline(r->api->conns, r->timed,
		      r->route && r->route->upload ? UINT64_MAX : after(10 * r->api->idle_s));
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
		MHD_set_connection_option(r->conn, MHD_CONNECTION_OPTION_TIMEOUT, r->api->idle_s);
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
	struct api *a = cls;
	struct conn *c;
	int on = 1, idle = 30, interval = 10, count = 3;

	if (what != MHD_CONNECTION_NOTIFY_STARTED) {
		conn_closed(a->conns, *socket_context);
		return;
	}
	/* A client whose host vanished sends no FIN; keep-alive finds it. Best effort. */
	info = MHD_get_connection_info(conn, MHD_CONNECTION_INFO_CONNECTION_FD);
	c = conn_opened(a->conns, info->connect_fd);
	conn_deadline(a->conns, c, after(a->idle_s));
	*socket_context = c;
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

static struct api *api_new(const struct api_config *c)
{
	struct api *a = calloc(1, sizeof(*a));
	pthread_condattr_t attr;

	if (!a)
		return NULL;
	a->store = c->store;
	a->sandboxes = c->sandboxes;
	a->hosts = c->hosts;
	a->hosts_n = c->hosts_n;
	a->version = c->version ? c->version : "";
	a->started_ns = clock_mono_ns();
	a->stop_fd = -1;
	a->idle_s = c->idle_s ? c->idle_s : 60;
	pthread_mutex_init(&a->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&a->idle, &attr);
	pthread_condattr_destroy(&attr);
	return a;
}

static void api_free(struct api *a)
{
	conns_free(a->conns);
	close_fd(&a->stop_fd);
	pthread_cond_destroy(&a->idle);
	pthread_mutex_destroy(&a->lock);
	free(a);
}

static struct MHD_Daemon *daemon_start(struct api *a, int listen_fd, unsigned connections_max)
{
	return MHD_start_daemon(
		MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_POLL |
			MHD_USE_ITC | MHD_USE_ERROR_LOG,
		0, NULL, NULL, request_step, a, MHD_OPTION_EXTERNAL_LOGGER, mhd_log, NULL,
		MHD_OPTION_LISTEN_SOCKET, listen_fd, MHD_OPTION_CONNECTION_LIMIT, connections_max,
		MHD_OPTION_CONNECTION_TIMEOUT, a->idle_s, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
		(size_t)CONNECTION_MEMORY, MHD_OPTION_THREAD_STACK_SIZE, (size_t)THREAD_STACK,
		MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_URI_LOG_CALLBACK, request_new, a,
		MHD_OPTION_UNESCAPE_CALLBACK, keep_escapes, NULL, MHD_OPTION_NOTIFY_COMPLETED,
		request_completed, a, MHD_OPTION_NOTIFY_CONNECTION, connection_changed, a,
		MHD_OPTION_END);
}

int api_start(const struct api_config *c, struct api **out, struct err *e)
{
	struct api *a = api_new(c);
	int fd, r;

	if (!a)
		return err_errno(e, ENOMEM, "start the API");
	a->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	fd = a->stop_fd < 0 ? err_errno(e, errno, "make an eventfd") : conns_new(&a->conns, e);
	if (fd == 0)
		fd = listen_on(c, a, e);
	if (fd < 0) {
		api_free(a);
		return fd;
	}
	a->daemon = daemon_start(a, fd, c->connections_max ? c->connections_max : 512);
	if (!a->daemon) {
		r = err_errno(e, errno ? errno : EIO, "start the HTTP server");
		close(fd);
		api_free(a);
		return r;
	}
	*out = a;
	return 0;
}

uint16_t api_port(const struct api *a)
{
	return a->port;
}

/* Waits until nothing works, at most until the time when it is not 0. */
static void wait_idle(struct api *a, uint64_t until_ns)
{
	const struct timespec ts = { .tv_sec = (time_t)(until_ns / NSEC_PER_SEC),
				     .tv_nsec = (long)(until_ns % NSEC_PER_SEC) };
	int r = 0;

	pthread_mutex_lock(&a->lock);
	while (a->working && r == 0)
		r = until_ns ? pthread_cond_timedwait(&a->idle, &a->lock, &ts)
			     : pthread_cond_wait(&a->idle, &a->lock);
	pthread_mutex_unlock(&a->lock);
}

void api_stop(struct api *a)
{
	int fd;

	if (!a)
		return;
	atomic_store(&a->stopping, true);
	if (eventfd_write(a->stop_fd, 1) < 0)
		log_error("wake the HTTP handlers: %s", strerror(errno));
	/* No new connections; those that are answered now get a little time to be. */
	fd = MHD_quiesce_daemon(a->daemon);
	wait_idle(a, clock_mono_ns() + LEAVE_S * NSEC_PER_SEC);
	MHD_stop_daemon(a->daemon);
	close_fd(&fd);
	wait_idle(a, 0);
	api_free(a);
}
