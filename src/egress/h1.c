/*
 * The request side is HEAD -> BODY -> HEAD…; a request with Upgrade holds the client's next bytes
 * until its response is known. The response side follows along, because only it knows when an
 * upgrade happened; for that the requests on their way are kept in a short queue. When the queue
 * is full the client is not read.
 */
#include "egress/h1.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "egress/engine.h"
#include "egress/flow.h"
#include "egress/http_head.h"
#include "egress/swap.h"

#define QUEUE 16

enum side_state { SIDE_HEAD, SIDE_BODY, SIDE_HELD, SIDE_TUNNEL };

struct request {
	bool head; /* HEAD: its response has no body */
	bool upgrade;
};

struct h1 {
	struct engine *g;
	enum side_state up, down;
	struct buf up_in, down_in; /* bytes of a head that is not whole, or held */
	struct http_body up_body, down_body;
	struct swap_scan scan;
	bool up_upgrade; /* the request whose body is at hand asks for one */
	bool leak;	 /* the body being fed holds a placeholder */
	struct request queue[QUEUE];
	unsigned first, n;
	bool down_started; /* the response at hand has begun */
	bool closing;	   /* no request may follow */
};

int h1_new(struct engine *g, struct h1 **out)
{
	struct h1 *h = calloc(1, sizeof(*h));

	if (!h)
		return -ENOMEM;
	h->g = g;
	*out = h;
	return 0;
}

void h1_free(struct h1 *h)
{
	if (!h)
		return;
	buf_free(&h->up_in);
	buf_free(&h->down_in);
	free(h);
}

bool h1_wants_client(const struct h1 *h)
{
	return h->up != SIDE_HELD && h->n < QUEUE;
}

int h1_answer(struct engine *g, const char *status, const char *reason, const char *text)
{
	return buf_printf(&g->client.out,
			  "HTTP/1.1 %s\r\nContent-Type: text/plain; charset=utf-8\r\n"
			  "Content-Length: %zu\r\nConnection: close\r\nX-Cloche-Reason: %s\r\n\r\n"
			  "%s\n",
			  status, strlen(text) + 1, reason, text) < 0
		       ? -ENOMEM
		       : -ECONNABORTED;
}

/* Refuses the request at hand. Only a response that has not begun can be replaced by words. */
static int refuse(struct h1 *h, const char *status, const char *reason, const char *text)
{
	engine_refused(h->g, reason);
	if (h->n || h->down_started)
		return -EPROTO; /* an answer to an earlier request is on its way: cut instead */
	return h1_answer(h->g, status, reason, text);
}

/* The same for a request that is partly with the server, which never gets the rest of it. */
static int refuse_body(struct h1 *h, const char *status, const char *reason, const char *text)
{
	if (h->n == 1 && !h->down_started)
		h->n = 0; /* no response to it will be waited for */
	else
		h->down_started = true; /* its response has come, or another's is coming */
	return refuse(h, status, reason, text);
}

/* --- requests --- */

static int put_slice(struct buf *b, struct slice s)
{
	return buf_add(b, s.p, s.n);
}

/* Writes the head anew. -EACCES when a placeholder in it may not leave. */
static int write_head(const struct http_head *q, struct swap_target *t, struct buf *out)
{
	int r;

	if ((r = put_slice(out, q->method)) < 0 || (r = buf_str(out, " ")) < 0 ||
	    (r = swap_path(t, q->target, out)) < 0 ||
	    (r = buf_printf(out, " HTTP/1.%u\r\n", q->minor)) < 0)
		return r;
	for (size_t i = 0; i < q->n_fields; i++) {
		const struct http_field *f = &q->fields[i];

		if ((r = put_slice(out, f->name)) < 0 || (r = buf_str(out, ": ")) < 0 ||
		    (r = swap_header(t, f->name, f->value, out)) < 0 ||
		    (r = buf_str(out, "\r\n")) < 0)
			return r;
	}
	return buf_str(out, "\r\n");
}

static int send_head(struct h1 *h, const struct http_head *q)
{
	struct engine *g = h->g;
	struct swap_target t = { .swaps = g->f->t->swaps,
				 .host = g->f->name,
				 .port = g->f->port,
				 .clear_text = !g->tls };
	struct buf head = { 0 };
	int r = write_head(q, &t, &head);

	if (r == 0)
		r = buf_add(&g->server.out, head.data, head.len);
	if (head.data)
		OPENSSL_cleanse(head.data, head.cap);
	buf_free(&head);
	if (r == -EACCES)
		return refuse(h, "403 Forbidden", "placeholder", t.problem);
	if (r == 0 && t.used)
		engine_swapped(g, t.used);
	return r;
}

static int begin_request(struct h1 *h, const struct http_head *q)
{
	_cleanup_buf_ struct buf why = { 0 };
	const char *reason;
	int r;

	if (h->closing)
		return -EPROTO;
	if (!engine_host_ok(h->g, q->host, q->host_is_address, &reason, &why))
		return refuse(h, "403 Forbidden", reason, why.data ? why.data : reason);
	r = send_head(h, q);
	if (r < 0)
		return r;
	h->queue[(h->first + h->n++) % QUEUE] =
		(struct request){ .head = slice_is(q->method, "HEAD"), .upgrade = q->upgrade };
	h->closing = q->close;
	h->up_upgrade = q->upgrade;
	http_body_init(&h->up_body, q);
	h->scan = (struct swap_scan){ 0 };
	h->up = !h->up_body.done ? SIDE_BODY : q->upgrade ? SIDE_HELD : SIDE_HEAD;
	return 0;
}

/* A head is looked for in up_in. 1: one was taken, 0: not whole yet. */
static int take_request(struct h1 *h)
{
	const char *problem = NULL;
	struct http_head q;
	long n = http_request_parse(h->up_in.data, h->up_in.len, &q, &problem);
	int r;

	if (n == 0)
		return 0;
	if (n == -EMSGSIZE)
		return refuse(h, "431 Request Header Fields Too Large", "malformed", problem);
	if (n < 0)
		return refuse(h, "400 Bad Request", "malformed", problem);
	r = begin_request(h, &q);
	if (r < 0)
		return r;
	buf_consume(&h->up_in, (size_t)n);
	return 1;
}

static void on_body(void *ctx, const char *p, size_t n)
{
	struct h1 *h = ctx;

	h->leak |= swap_scan_feed(&h->scan, p, n);
}

/* Takes what belongs to the body; returns how many bytes. */
static long take_body(struct h1 *h, const char *p, size_t n)
{
	long took = http_body_feed(&h->up_body, p, n, on_body, h);

	if (took < 0)
		return refuse_body(h, "400 Bad Request", "malformed",
				   "the body's chunks are malformed");
	if (h->leak)
		return refuse_body(h, "403 Forbidden", "placeholder",
				   "its body holds a placeholder, where no secret is put in");
	if (buf_add(&h->g->server.out, p, (size_t)took) < 0)
		return -ENOMEM;
	if (h->up_body.done)
		h->up = h->up_upgrade && h->n ? SIDE_HELD : SIDE_HEAD;
	return took;
}

static int tunnel_up(struct h1 *h, const char *p, size_t n)
{
	if (swap_scan_feed(&h->scan, p, n)) {
		engine_refused(h->g, "placeholder");
		return -EPROTO;
	}
	return buf_add(&h->g->server.out, p, n);
}

int h1_client_data(struct h1 *h, const char *p, size_t n)
{
	long took;
	int r;

	for (;;) {
		if (h->up == SIDE_TUNNEL)
			return n ? tunnel_up(h, p, n) : 0;
		if (h->up == SIDE_BODY && !h->up_in.len) { /* the common case: straight through */
			if (!n)
				return 0;
			took = take_body(h, p, n);
			if (took < 0)
				return (int)took;
			p += took;
			n -= (size_t)took;
			continue;
		}
		if (buf_add(&h->up_in, p, n) < 0)
			return -ENOMEM;
		n = 0;
		if (!h->up_in.len || h->up == SIDE_HELD || (h->up == SIDE_HEAD && h->n == QUEUE))
			return 0;
		if (h->up == SIDE_HEAD) {
			r = take_request(h);
			if (r <= 0)
				return r;
			continue;
		}
		took = take_body(h, h->up_in.data, h->up_in.len);
		if (took < 0)
			return (int)took;
		buf_consume(&h->up_in, (size_t)took);
	}
}

int h1_client_end(struct h1 *h)
{
	if (h->up == SIDE_BODY || (h->up == SIDE_HEAD && h->up_in.len))
		return -EPROTO; /* in the middle of a request: do not let it look whole */
	h->g->server.end = true;
	return 0;
}

/* --- responses --- */

/* The response to the oldest request is complete. */
static int response_done(struct h1 *h)
{
	h->first = (h->first + 1) % QUEUE;
	h->n--;
	h->down = SIDE_HEAD;
	h->down_started = false;
	if (h->up == SIDE_HELD && h->n == 0)
		h->up = SIDE_HEAD; /* the upgrade was declined */
	return h->up_in.len ? h1_client_data(h, NULL, 0) : 0;
}

static int upgraded(struct h1 *h)
{
	struct buf held = h->up_in;
	int r;

	h->up_in = (struct buf){ 0 };
	h->up = h->down = SIDE_TUNNEL;
	h->scan = (struct swap_scan){ 0 };
	r = held.len ? tunnel_up(h, held.data, held.len) : 0;
	buf_free(&held);
	return r;
}

/* 1: a head was taken from down_in, 0: not whole yet. */
static int take_response(struct h1 *h)
{
	const struct request *q = &h->queue[h->first];
	static const struct slice head = { "HEAD", 4 }, other = { "GET", 3 };
	const char *problem = NULL;
	struct http_head s;
	long n;
	int r = 1;

	if (h->n == 0)
		return -EPROTO; /* an answer nobody asked for */
	n = http_response_parse(h->down_in.data, h->down_in.len, q->head ? head : other, &s,
				&problem);
	if (n == 0)
		return 0;
	if (n < 0) {
		h->g->trouble = "the server's answer is malformed";
		return h->n == 1 ? h1_answer(h->g, "502 Bad Gateway", "bad_response", h->g->trouble)
				 : -EPROTO;
	}
	if (buf_add(&h->g->client.out, h->down_in.data, (size_t)n) < 0)
		return -ENOMEM;
	buf_consume(&h->down_in, (size_t)n);
	if (s.status == 101) {
		if (!q->upgrade)
			return -EPROTO;
		return (r = upgraded(h)) < 0 ? r : 1;
	}
	if (s.status < 200)
		return 1; /* the final one follows */
	h->down_started = true;
	http_body_init(&h->down_body, &s);
	h->down = SIDE_BODY;
	if (h->down_body.done && (r = response_done(h)) < 0)
		return r;
	return 1;
}

/* One pass over what is in down_in. 1: go on, 0: more bytes are needed. */
static int down_step(struct h1 *h)
{
	long took = (long)h->down_in.len;
	int r;

	if (h->down == SIDE_HEAD)
		return take_response(h);
	if (h->down == SIDE_BODY)
		took = http_body_feed(&h->down_body, h->down_in.data, h->down_in.len, NULL, NULL);
	if (took < 0)
		return -EPROTO;
	if (buf_add(&h->g->client.out, h->down_in.data, (size_t)took) < 0)
		return -ENOMEM;
	buf_consume(&h->down_in, (size_t)took);
	if (h->down == SIDE_BODY && h->down_body.done && (r = response_done(h)) < 0)
		return r;
	return 1;
}

int h1_server_data(struct h1 *h, const char *p, size_t n)
{
	int r = 1;

	/* In the middle of a body nothing needs to be gathered first. */
	if (!h->down_in.len && (h->down == SIDE_BODY || h->down == SIDE_TUNNEL)) {
		long took = h->down == SIDE_TUNNEL
				    ? (long)n
				    : http_body_feed(&h->down_body, p, n, NULL, NULL);

		if (took < 0)
			return -EPROTO;
		if (buf_add(&h->g->client.out, p, (size_t)took) < 0)
			return -ENOMEM;
		p += took;
		n -= (size_t)took;
		if (h->down == SIDE_BODY && h->down_body.done && (r = response_done(h)) < 0)
			return r;
	}
	if (buf_add(&h->down_in, p, n) < 0)
		return -ENOMEM;
	while (r > 0 && h->down_in.len)
		r = down_step(h);
	return r < 0 ? r : 0;
}

int h1_server_end(struct h1 *h)
{
	bool until_close = h->down == SIDE_BODY && h->down_body.framing == HTTP_BODY_UNTIL_CLOSE;

	if (h->down == SIDE_BODY && !until_close)
		return -EPROTO; /* cut short: it must not look whole to the client */
	if (h->down == SIDE_HEAD && h->n)
		return h->n == 1 && !h->down_in.len
			       ? h1_answer(h->g, "502 Bad Gateway", "no_response",
					   "the server closed the connection without an answer")
			       : -EPROTO;
	h->g->client.end = true;
	return 0;
}
