/*
 * A struct h2_stream joins a stream of the client's session to one of the server's; it is the
 * user data of both. Each direction has a buffer that the other session's data source reads from.
 * What was received counts against the sender's window until it has been passed on
 * (nghttp2_session_consume), so at most a window's worth waits here.
 */
#include "egress/h2.h"

#include <errno.h>
#include <nghttp2/nghttp2.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "egress/engine.h"
#include "egress/flow.h"
#include "egress/h2_headers.h"
#include "egress/http_head.h"
#include "egress/swap.h"

#define STREAM_WINDOW (256 << 10)
#define CONNECTION_WINDOW (1 << 20)
#define STREAMS_MAX 100

struct h2_side {
	struct h2 *h;
	nghttp2_session *session;
	bool client; /* faces the sandbox */
};

/* One direction of a stream: what `from` received for `to`. */
struct h2_way {
	struct h2_side *from, *to;
	struct h2_headers block; /* being received */
	struct buf data;
	bool end;	/* no more data comes */
	bool trailers;	/* `block` holds them, to be sent at the end */
	bool started;	/* final headers have been passed on */
	bool submitted; /* a data source was given to `to` */
};

struct h2_stream {
	struct h2 *h;
	struct h2_stream *next, **link;
	int32_t id[2]; /* on the client's and the server's session; 0: none (yet) */
	bool closed[2];
	struct h2_way up, down;
	struct swap_scan scan;
	struct buf words; /* an answer of our own */
	bool refused;
};

struct h2 {
	struct engine *g;
	struct h2_side client, server;
	struct h2_stream *streams;
	int error; /* of a callback, to end the connection with */
};

static int32_t stream_id(const struct h2_stream *s, const struct h2_side *side)
{
	return s->id[side->client ? 0 : 1];
}

static void stream_free(struct h2_stream *s)
{
	*s->link = s->next;
	if (s->next)
		s->next->link = s->link;
	h2_headers_clear(&s->up.block);
	h2_headers_clear(&s->down.block);
	buf_free(&s->up.data);
	buf_free(&s->down.data);
	buf_free(&s->words);
	free(s);
}

static struct h2_stream *stream_new(struct h2 *h, int32_t id)
{
	struct h2_stream *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->h = h;
	s->id[0] = id;
	s->closed[1] = true; /* until it is opened there */
	s->up.from = s->down.to = &h->client;
	s->up.to = s->down.from = &h->server;
	s->next = h->streams;
	s->link = &h->streams;
	if (s->next)
		s->next->link = &s->next;
	h->streams = s;
	return s;
}

static struct h2_way *way_from(struct h2_stream *s, const struct h2_side *side)
{
	return side->client ? &s->up : &s->down;
}

/* Resets the stream where it is open. */
static void stream_reset(struct h2_stream *s, uint32_t code)
{
	if (!s->closed[0])
		nghttp2_submit_rst_stream(s->h->client.session, NGHTTP2_FLAG_NONE, s->id[0], code);
	if (!s->closed[1])
		nghttp2_submit_rst_stream(s->h->server.session, NGHTTP2_FLAG_NONE, s->id[1], code);
}

/* --- data: from a way's buffer into the session it leads to --- */

static ssize_t read_words(nghttp2_session *session, int32_t id, uint8_t *out, size_t max,
			  uint32_t *flags, nghttp2_data_source *source, void *user)
{
	struct h2_stream *s = source->ptr;
	size_t n = s->words.len < max ? s->words.len : max;

	(void)session;
	(void)id;
	(void)user;
	memcpy(out, s->words.data, n);
	buf_consume(&s->words, n);
	if (!s->words.len)
		*flags |= NGHTTP2_DATA_FLAG_EOF;
	return (ssize_t)n;
}

/* The end of a way's data: with trailers when there are any. */
static int way_end(struct h2_way *w, struct h2_stream *s, uint32_t *flags)
{
	nghttp2_nv *nv;
	int r;

	*flags |= NGHTTP2_DATA_FLAG_EOF;
	if (!w->trailers)
		return 0;
	*flags |= NGHTTP2_DATA_FLAG_NO_END_STREAM;
	nv = h2_headers_nv(&w->block);
	if (!nv)
		return NGHTTP2_ERR_CALLBACK_FAILURE;
	r = nghttp2_submit_trailer(w->to->session, stream_id(s, w->to), nv, w->block.n);
	free(nv);
	h2_headers_clear(&w->block);
	return r ? NGHTTP2_ERR_CALLBACK_FAILURE : 0;
}

static ssize_t read_way(nghttp2_session *session, int32_t id, uint8_t *out, size_t max,
			uint32_t *flags, nghttp2_data_source *source, void *user)
{
	struct h2_way *w = source->ptr;
	struct h2_stream *s = nghttp2_session_get_stream_user_data(session, id);
	size_t n = w->data.len < max ? w->data.len : max;

	(void)user;
	if (!s)
		return NGHTTP2_ERR_CALLBACK_FAILURE;
	if (n) {
		memcpy(out, w->data.data, n);
		buf_consume(&w->data, n);
		/* Passed on: the sender may send as much again. */
		nghttp2_session_consume_connection(w->from->session, n);
		if (!s->closed[w->from->client ? 0 : 1])
			nghttp2_session_consume_stream(w->from->session, stream_id(s, w->from), n);
	}
	if (!w->data.len && w->end) {
		int r = way_end(w, s, flags);

		return r < 0 ? r : (ssize_t)n;
	}
	return n ? (ssize_t)n : NGHTTP2_ERR_DEFERRED;
}

static void way_wake(struct h2_way *w, struct h2_stream *s)
{
	if (w->submitted && !s->closed[w->to->client ? 0 : 1])
		nghttp2_session_resume_data(w->to->session, stream_id(s, w->to));
}

/* --- refusing --- */

static int refuse(struct h2_stream *s, const char *status, const char *reason, const char *text)
{
	nghttp2_nv nv[] = {
		{ (uint8_t *)(uintptr_t) ":status", (uint8_t *)(uintptr_t)status, 7, 3, 0 },
		{ (uint8_t *)(uintptr_t) "content-type", (uint8_t *)(uintptr_t) "text/plain", 12,
		  10, 0 },
		{ (uint8_t *)(uintptr_t) "x-cloche-reason", (uint8_t *)(uintptr_t)reason, 15,
		  strlen(reason), 0 },
	};
	nghttp2_data_provider words = { .source.ptr = s, .read_callback = read_words };

	s->refused = true;
	engine_refused(s->h->g, reason);
	if (!s->closed[1])
		nghttp2_submit_rst_stream(s->h->server.session, NGHTTP2_FLAG_NONE, s->id[1],
					  NGHTTP2_CANCEL);
	if (s->down.started) { /* the server's answer has begun: it cannot become ours */
		nghttp2_submit_rst_stream(s->h->client.session, NGHTTP2_FLAG_NONE, s->id[0],
					  NGHTTP2_CANCEL);
		return 0;
	}
	if (buf_printf(&s->words, "%s\n", text) < 0 ||
	    nghttp2_submit_response(s->h->client.session, s->id[0], nv, ARRAY_SIZE(nv), &words))
		return -ENOMEM;
	return 0;
}

/* --- headers --- */

/* What :authority names, as Host would. */
static void authority(const struct h2_headers *b, char host[HOSTNAME_LEN], bool *is_address)
{
	size_t len = 0;
	const char *v = h2_headers_get(b, ":authority", &len), *colon;
	char text[IP_TEXT_LEN];
	struct ip ip;

	if (!v)
		v = h2_headers_get(b, "host", &len);
	host[0] = '\0';
	*is_address = false;
	if (!v)
		return;
	colon = memchr(v, ':', len);
	if (colon && v[0] != '[')
		len = (size_t)(colon - v);
	if (len < sizeof(text)) {
		memcpy(text, v, len);
		text[len] = '\0';
		*is_address = v[0] == '[' || ip_parse(text, &ip) == 0;
	}
	if (!*is_address && hostname_normalise(v, len, host) < 0)
		host[0] = '\0';
}

/* Whether a second name is hidden in the block: :authority and host must agree. */
static bool two_hosts(const struct h2_headers *b)
{
	size_t a_len = 0, h_len = 0;
	const char *a = h2_headers_get(b, ":authority", &a_len);
	const char *h = h2_headers_get(b, "host", &h_len);

	return a && h && (a_len != h_len || memcmp(a, h, a_len) != 0);
}

static int open_upstream(struct h2_stream *s, const struct h2_headers *block)
{
	nghttp2_data_provider data = { .source.ptr = &s->up, .read_callback = read_way };
	nghttp2_nv *nv = h2_headers_nv(block);
	int32_t id;

	if (!nv)
		return -ENOMEM;
	id = nghttp2_submit_request(s->h->server.session, NULL, nv, block->n,
				    s->up.end ? NULL : &data, s);
	free(nv);
	if (id == NGHTTP2_ERR_STREAM_ID_NOT_AVAILABLE)
		return -EPROTO;
	if (id < 0)
		return -ENOMEM;
	s->id[1] = id;
	s->closed[1] = false;
	s->up.started = true;
	s->up.submitted = !s->up.end;
	return 0;
}

/* A request's headers are complete. */
static int pass_request(struct h2_stream *s)
{
	struct engine *g = s->h->g;
	struct swap_target t = { .swaps = g->f->t->swaps, .host = g->f->name, .port = g->f->port };
	_cleanup_buf_ struct buf why = { 0 };
	struct h2_headers out = { 0 };
	char host[HOSTNAME_LEN];
	const char *reason, *method;
	bool is_address;
	size_t len = 0;
	int r;

	method = h2_headers_get(&s->up.block, ":method", &len);
	if (method && len == 7 && memcmp(method, "CONNECT", 7) == 0)
		return refuse(s, "403", "malformed", "CONNECT: this is a transparent path");
	authority(&s->up.block, host, &is_address);
	if (two_hosts(&s->up.block))
		return refuse(s, "400", "malformed", ":authority and host disagree");
	if (!engine_host_ok(g, host, is_address, &reason, &why))
		return refuse(s, "403", reason, why.data ? why.data : reason);
	r = h2_headers_swap(&s->up.block, &t, &out);
	if (r == 0)
		r = open_upstream(s, &out);
	h2_headers_clear(&out);
	h2_headers_clear(&s->up.block);
	if (r == -EACCES)
		return refuse(s, "403", "placeholder", t.problem);
	if (r == 0 && t.used)
		engine_swapped(g, t.used);
	return r;
}

/* A response's headers are complete: interim ones pass alone, the final ones open the data. */
static int pass_response(struct h2_stream *s)
{
	nghttp2_data_provider data = { .source.ptr = &s->down, .read_callback = read_way };
	struct h2_way *w = &s->down;
	size_t len = 0;
	const char *status = h2_headers_get(&w->block, ":status", &len);
	bool interim = status && len == 3 && status[0] == '1';
	nghttp2_nv *nv;
	int r;

	if (s->closed[0] || s->refused) {
		h2_headers_clear(&w->block);
		return 0;
	}
	nv = h2_headers_nv(&w->block);
	if (!nv)
		return -ENOMEM;
	if (interim) {
		r = nghttp2_submit_headers(s->h->client.session, NGHTTP2_FLAG_NONE, s->id[0], NULL,
					   nv, w->block.n, NULL);
	} else {
		r = nghttp2_submit_response(s->h->client.session, s->id[0], nv, w->block.n,
					    w->end ? NULL : &data);
		w->started = true;
		w->submitted = !w->end;
	}
	free(nv);
	h2_headers_clear(&w->block);
	return r == NGHTTP2_ERR_NOMEM ? -ENOMEM : 0;
}

/* A complete header block on `side`. */
static int pass_headers(struct h2_stream *s, struct h2_side *side)
{
	struct h2_way *w = way_from(s, side);

	if (w->started) { /* trailers: they wait for the data before them */
		w->trailers = w->block.n > 0;
		if (side->client && w->trailers) {
			struct swap_target none = { .host = "" };
			struct h2_headers scrap = { 0 };
			int r = h2_headers_swap(&w->block, &none, &scrap);

			h2_headers_clear(&scrap);
			if (r == -EACCES)
				return refuse(s, "403", "placeholder", none.problem);
		}
		way_wake(w, s);
		return 0;
	}
	return side->client ? pass_request(s) : pass_response(s);
}

/* --- callbacks of both sessions --- */

static int on_begin_headers(nghttp2_session *session, const nghttp2_frame *frame, void *user)
{
	struct h2_side *side = user;
	struct h2_stream *s;

	if (!side->client || frame->headers.cat != NGHTTP2_HCAT_REQUEST)
		return 0;
	s = stream_new(side->h, frame->hd.stream_id);
	if (!s)
		return NGHTTP2_ERR_CALLBACK_FAILURE;
	return nghttp2_session_set_stream_user_data(session, frame->hd.stream_id, s);
}

static int on_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name,
		     size_t name_len, const uint8_t *value, size_t value_len, uint8_t flags,
		     void *user)
{
	struct h2_side *side = user;
	struct h2_stream *s = nghttp2_session_get_stream_user_data(session, frame->hd.stream_id);
	int r;

	if (!s)
		return 0;
	r = h2_headers_add(&way_from(s, side)->block, name, name_len, value, value_len, flags);
	if (r == -EMSGSIZE)
		return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE; /* resets this stream */
	return r < 0 ? NGHTTP2_ERR_CALLBACK_FAILURE : 0;
}

static int on_data(nghttp2_session *session, uint8_t flags, int32_t id, const uint8_t *p, size_t n,
		   void *user)
{
	struct h2_side *side = user;
	struct h2_stream *s = nghttp2_session_get_stream_user_data(session, id);
	struct h2_way *w;

	(void)flags;
	if (!s || s->refused || s->closed[side->client ? 1 : 0]) {
		/* Nobody wants it: the window must still open again. */
		nghttp2_session_consume(session, id, n);
		return 0;
	}
	if (side->client && swap_scan_feed(&s->scan, (const char *)p, n)) {
		nghttp2_session_consume(session, id, n);
		return refuse(s, "403", "placeholder",
			      "its body holds a placeholder, where no secret is put in") < 0
			       ? NGHTTP2_ERR_CALLBACK_FAILURE
			       : 0;
	}
	w = way_from(s, side);
	if (buf_add(&w->data, p, n) < 0)
		return NGHTTP2_ERR_CALLBACK_FAILURE;
	way_wake(w, s);
	return 0;
}

static int on_frame(nghttp2_session *session, const nghttp2_frame *frame, void *user)
{
	struct h2_side *side = user;
	struct h2 *h = side->h;
	struct h2_stream *s;
	int r = 0;

	if (frame->hd.type == NGHTTP2_GOAWAY && !side->client) {
		/* No new requests; those under way end as the server decides. */
		nghttp2_submit_shutdown_notice(h->client.session);
		nghttp2_submit_goaway(h->client.session, NGHTTP2_FLAG_NONE,
				      nghttp2_session_get_last_proc_stream_id(h->client.session),
				      frame->goaway.error_code, NULL, 0);
		return 0;
	}
	if (frame->hd.type != NGHTTP2_HEADERS && frame->hd.type != NGHTTP2_DATA)
		return 0;
	s = nghttp2_session_get_stream_user_data(session, frame->hd.stream_id);
	if (!s)
		return 0;
	if (frame->hd.flags & NGHTTP2_FLAG_END_STREAM)
		way_from(s, side)->end = true;
	if (frame->hd.type == NGHTTP2_HEADERS && !s->refused)
		r = pass_headers(s, side);
	else if (frame->hd.flags & NGHTTP2_FLAG_END_STREAM)
		way_wake(way_from(s, side), s);
	if (r < 0)
		h->error = r;
	return r < 0 ? NGHTTP2_ERR_CALLBACK_FAILURE : 0;
}

static int on_stream_close(nghttp2_session *session, int32_t id, uint32_t code, void *user)
{
	struct h2_side *side = user;
	struct h2_stream *s = nghttp2_session_get_stream_user_data(session, id);
	int me = side->client ? 0 : 1;
	struct h2_way *w;

	if (!s)
		return 0;
	s->closed[me] = true;
	/* What was received and not passed on still counts against the connection. */
	w = way_from(s, side);
	if (s->closed[!me] && w->data.len)
		nghttp2_session_consume_connection(session, w->data.len);
	if (!s->closed[!me]) {
		struct h2_way *other =
			way_from(s, side->client ? &side->h->server : &side->h->client);

		/* Data on its way to the closed side will not be read any more. */
		if (other->data.len) {
			nghttp2_session_consume(other->from->session, stream_id(s, other->from),
						other->data.len);
			buf_clear(&other->data);
		}
		if (s->refused && !side->client)
			; /* our own answer goes on */
		else if (code != NGHTTP2_NO_ERROR || (side->client && !s->down.end))
			stream_reset(s, code ? code : NGHTTP2_CANCEL);
		else if (!side->client && !s->down.started && !s->refused)
			stream_reset(s, NGHTTP2_INTERNAL_ERROR); /* closed without an answer */
	}
	if (s->closed[0] && s->closed[1])
		stream_free(s);
	return 0;
}

/* A request that never left (the client gave it up while it waited) has no stream to close. */
static int on_not_sent(nghttp2_session *session, const nghttp2_frame *frame, int code, void *user)
{
	struct h2_side *side = user;
	struct h2_stream *s = side->h->streams;

	(void)code;
	if (side->client || frame->hd.type != NGHTTP2_HEADERS ||
	    frame->headers.cat != NGHTTP2_HCAT_REQUEST ||
	    nghttp2_session_find_stream(session, frame->hd.stream_id))
		return 0;
	while (s && s->id[1] != frame->hd.stream_id)
		s = s->next;
	if (!s || s->closed[1])
		return 0;
	s->closed[1] = true;
	if (s->closed[0])
		stream_free(s);
	else
		stream_reset(s, NGHTTP2_REFUSED_STREAM);
	return 0;
}

/* --- sessions --- */

static int session_new(struct h2_side *side, nghttp2_session_callbacks *cbs)
{
	nghttp2_option *o;
	int r;

	if (nghttp2_option_new(&o))
		return -ENOMEM;
	nghttp2_option_set_no_auto_window_update(o, 1);
	nghttp2_option_set_max_reserved_remote_streams(o, 0);
	nghttp2_option_set_max_send_header_block_length(o, 2 * H2_BLOCK_MAX);
	r = side->client ? nghttp2_session_server_new2(&side->session, cbs, side, o)
			 : nghttp2_session_client_new2(&side->session, cbs, side, o);
	nghttp2_option_del(o);
	return r ? -ENOMEM : 0;
}

static int session_greet(struct h2_side *side)
{
	nghttp2_settings_entry s[] = {
		{ NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, STREAM_WINDOW },
		{ NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, side->client ? STREAMS_MAX : 0 },
		{ NGHTTP2_SETTINGS_ENABLE_PUSH, 0 },
	};

	/* A server says nothing about push. */
	if (nghttp2_submit_settings(side->session, NGHTTP2_FLAG_NONE, s, side->client ? 2 : 3) ||
	    nghttp2_session_set_local_window_size(side->session, NGHTTP2_FLAG_NONE, 0,
						  CONNECTION_WINDOW))
		return -ENOMEM;
	return 0;
}

int h2_new(struct engine *g, struct h2 **out)
{
	struct h2 *h = calloc(1, sizeof(*h));
	nghttp2_session_callbacks *cbs = NULL;
	int r = -ENOMEM;

	if (!h || nghttp2_session_callbacks_new(&cbs)) {
		free(h);
		return -ENOMEM;
	}
	h->g = g;
	h->client = (struct h2_side){ .h = h, .client = true };
	h->server = (struct h2_side){ .h = h };
	nghttp2_session_callbacks_set_on_begin_headers_callback(cbs, on_begin_headers);
	nghttp2_session_callbacks_set_on_header_callback(cbs, on_header);
	nghttp2_session_callbacks_set_on_data_chunk_recv_callback(cbs, on_data);
	nghttp2_session_callbacks_set_on_frame_recv_callback(cbs, on_frame);
	nghttp2_session_callbacks_set_on_stream_close_callback(cbs, on_stream_close);
	nghttp2_session_callbacks_set_on_frame_not_send_callback(cbs, on_not_sent);
	if (session_new(&h->client, cbs) == 0 && session_new(&h->server, cbs) == 0 &&
	    session_greet(&h->client) == 0)
		r = session_greet(&h->server);
	nghttp2_session_callbacks_del(cbs);
	if (r < 0) {
		h2_free(h);
		return r;
	}
	*out = h;
	return 0;
}

void h2_free(struct h2 *h)
{
	if (!h)
		return;
	/* Deleting a session calls no callbacks; the streams are ours to free. */
	nghttp2_session_del(h->client.session);
	nghttp2_session_del(h->server.session);
	while (h->streams)
		stream_free(h->streams);
	free(h);
}

/* Takes what the session has to say, as far as the channel should hold. */
static int session_speak(struct h2_side *side)
{
	struct chan *c = side->client ? &side->h->g->client : &side->h->g->server;
	int said = 0;

	while (chan_waiting(c) < CHAN_OUT_HIGH) {
		const uint8_t *p;
		ssize_t n = nghttp2_session_mem_send(side->session, &p);

		if (n < 0)
			return -EPROTO;
		if (n == 0)
			break;
		if (buf_add(&c->out, p, (size_t)n) < 0)
			return -ENOMEM;
		said = 1;
	}
	if (!nghttp2_session_want_read(side->session) && !nghttp2_session_want_write(side->session))
		c->end = true;
	return said;
}

int h2_speak(struct h2 *h)
{
	int a = session_speak(&h->server), b;

	if (a < 0)
		return a;
	b = session_speak(&h->client);
	return b < 0 ? b : a | b;
}

static int hear(struct h2_side *side, const char *p, size_t n)
{
	struct h2 *h = side->h;
	ssize_t took = nghttp2_session_mem_recv(side->session, (const uint8_t *)p, n);

	if (h->error)
		return h->error;
	if (took < 0 || (size_t)took != n)
		return -EPROTO;
	return h2_speak(h) < 0 ? -EPROTO : 0;
}

int h2_client_data(struct h2 *h, const char *p, size_t n)
{
	return hear(&h->client, p, n);
}

int h2_server_data(struct h2 *h, const char *p, size_t n)
{
	return hear(&h->server, p, n);
}

int h2_client_end(struct h2 *h)
{
	nghttp2_session_terminate_session(h->server.session, NGHTTP2_NO_ERROR);
	return h2_speak(h);
}

int h2_server_end(struct h2 *h)
{
	nghttp2_session_terminate_session(h->client.session,
					  h->streams ? NGHTTP2_INTERNAL_ERROR : NGHTTP2_NO_ERROR);
	return h2_speak(h);
}
