/*
 * One HTTP request, from its head to its answer. server.c makes it and carries it through:
 *
 *	head	route, key and role, query fields; an upload route's begin()
 *	body	JSON text is collected; an upload route gets every piece as it comes
 *	whole	body fields and check() — every problem is collected, then all are reported —
 *		the idempotency key is claimed, handle() runs
 *	answer	what handle() set is sent, or the error it returned
 *
 * A request belongs to the thread of its connection. Handlers may block; they wait with
 * request_wait(), which also notices a client that went away and a daemon that is to end.
 */
#ifndef CLOCHE_API_REQUEST_H
#define CLOCHE_API_REQUEST_H

#include <jansson.h>
#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "api/api.h"
#include "api/route.h"
#include "api/uri.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "store/store.h"

#define JSON_BODY_MAX (2u << 20)
#define JSON_BODY_LARGE (12u << 20) /* 8 MiB as base64, and the rest */
#define REQUEST_HEADERS_MAX 8

struct api {
	struct MHD_Daemon *daemon;
	struct store *store;
	struct sandbox_manager *sandboxes;
	const char *const *hosts;
	size_t hosts_n;
	const char *version;
	uint16_t port;
	bool loopback;
	int stop_fd; /* eventfd, readable for good once the daemon is to end */
	atomic_bool stopping;
	/* Requests and threads that use the store and the sandboxes; api_stop() waits for none. */
	pthread_mutex_t lock;
	pthread_cond_t idle;
	unsigned working;
	uint64_t started_ns;
	struct conns *conns;
	unsigned idle_s;		      /* see api_config */
	atomic_uint_fast64_t idem_expired_ns; /* when old idempotency records were last dropped */
	struct {
		atomic_uint_fast64_t requests[6]; /* by first digit of the status; 0: no answer */
		atomic_uint_fast64_t commands, bytes_up, bytes_down;
		atomic_int_fast64_t open_requests, open_streams;
	} count;
};

/* Around work that goes on outside of a request. */
void api_work_begin(struct api *a);
void api_work_end(struct api *a);

/* The other end of a connection, for waits that outlive the handler. */
struct client {
	struct api *api;
	int fd; /* MHD's socket; only polled */
};

/* A body made piece by piece; see request_stream(). */
struct stream_ops {
	/*
	 * Up to max bytes into p; blocks until there are some. Returns their number, 0 at the end,
	 * or a negative value to break the connection off.
	 */
	ssize_t (*read)(void *ctx, char *p, size_t max);
	void (*free)(void *ctx);
};

struct request {
	struct api *api;
	struct MHD_Connection *conn;
	struct client client;
	struct conn *timed; /* the connection's entry among api->conns; may be NULL */
	char id[ID_LEN];
	uint64_t began_ns;
	const char *method;
	char *target; /* as it came */

	struct uri uri;
	const struct route *route;
	const char *param[ROUTE_PARAMS_MAX]; /* values of the pattern's {…}, in order */
	struct store_key key;

	bool begun, failed, answered;
	struct err failure; /* why, when failed */
	struct buf text;    /* the JSON body as it came */
	json_t *query;	    /* object of the route's query fields, by their types */
	json_t *body;	    /* object; {} when there was none */
	json_t *problems;   /* array, see json_check() */
	json_t *details;    /* for the error answer; object or NULL */

	void *upload; /* an upload route's state between its calls */
	void (*upload_free)(void *upload);

	const char *idem; /* the Idempotency-Key while it is claimed */

	/* The answer. */
	int status;
	char *answer; /* JSON text */
	struct MHD_Response *response;
	struct {
		const char *name;
		char *value;
	} headers[REQUEST_HEADERS_MAX];
	size_t n_headers;
};

/* Answers with a JSON value, which is taken over (NULL: out of memory). */
int request_json(struct request *r, int status, json_t *value, struct err *e);

/* Answers with text that is taken over. */
int request_text(struct request *r, int status, const char *type, char *text, struct err *e);

/* Answers with bytes, which are moved out of b. */
int request_bytes(struct request *r, int status, struct buf *b, struct err *e);

/*
 * Answers with a body of unknown length made by ops->read, or of exactly size bytes when size is
 * not MHD_SIZE_UNKNOWN. ctx is taken over in every case and released with ops->free.
 */
int request_stream(struct request *r, int status, const char *type, uint64_t size,
		   const struct stream_ops *ops, void *ctx, struct err *e);

/* Sets a header of the answer; the value is copied. */
int request_header(struct request *r, const char *name, const char *value, struct err *e);

/* Notes a problem of a field, printf-style; reported together with all others. */
void request_problem(struct request *r, const char *field, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* As request_problem(), with a code of its own that the answer has if it is the only problem. */
void request_problem_code(struct request *r, const char *code, const char *field, const char *fmt,
			  ...) __attribute__((format(printf, 4, 5)));

/* 0, or "validation_failed" with the problems noted so far in details. */
int request_check_problems(struct request *r, struct err *e);

/* A request header's value, or NULL. */
const char *request_in(const struct request *r, const char *name);

enum client_wait { WAIT_READY, WAIT_TIMEOUT, WAIT_GONE, WAIT_STOPPING };

/* Waits until fd has one of the poll events, the client is gone, or the daemon is to end. */
enum client_wait client_wait(const struct client *c, int fd, short events, int timeout_ms);

#endif
