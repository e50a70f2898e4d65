/*
 * One socket, two buffers, no threads. Every wait is a poll for reading and, when something is
 * queued, for writing as well: the agent stops taking input while we do not take its output, so a
 * blocking send could wait for ever.
 *
 * Queued stdin becomes frames only as far as the agent's window allows, and only when nothing else
 * is queued. A signal or a cancel therefore never waits behind input that the command ignores.
 *
 * Invariants: in_at <= in.len, out_at <= out.len; stdin_taken <= stdin_sent <= stdin_taken +
 * AGENT_STDIN_WINDOW.
 */
#include "sandbox/agent_conn.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "proto/agent.h"
#include "sandbox/agent_priv.h"

#define RECV_STEP (128u << 10)
#define STDIN_STEP (64u << 10)

uint64_t agent_deadline(int timeout_ms)
{
	return timeout_ms < 0 ? UINT64_MAX : clock_mono_ns() + (uint64_t)timeout_ms * NSEC_PER_MSEC;
}

static int poll_ms(uint64_t deadline)
{
	uint64_t now = clock_mono_ns(), ms;

	if (deadline == UINT64_MAX)
		return -1;
	if (deadline <= now)
		return 0;
	ms = (deadline - now + NSEC_PER_MSEC - 1) / NSEC_PER_MSEC;
	return ms > INT_MAX ? INT_MAX : (int)ms;
}

int agent_fail(struct agent_conn *c, struct err *e, const char *code, int errnum, const char *fmt,
	       ...)
{
	char msg[256];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(msg, sizeof(msg), fmt, ap);
	va_end(ap);
	c->broken = true;
	return err_set(e, code, errnum, "%s", msg);
}

static const char *known_code(const char *code)
{
#define CODE(name)                    \
	if (strcmp(code, #name) == 0) \
		return #name;
	AGENT_ERROR_CODES(CODE)
#undef CODE
	return "agent_error";
}

/* The agent's ERROR as our error. */
static int fail_agent(struct agent_conn *c, const struct frame *f, struct err *e)
{
	_cleanup_json_ json_t *o = agent_json(c, f, e);
	const char *fix;

	if (!o)
		return -EPROTO;
	fix = json_get_str(o, "fix", "");
	agent_fail(c, e, known_code(json_get_str(o, "code", "")), EREMOTEIO, "%s",
		   json_get_str(o, "message", "the agent gave no reason"));
	if (*fix)
		err_fix(e, "%s", fix);
	return -EREMOTEIO;
}

json_t *agent_json(struct agent_conn *c, const struct frame *f, struct err *e)
{
	struct err why = { 0 };
	json_t *v = json_parse((const char *)f->payload, f->len, &why);

	if (!v)
		agent_fail(c, e, "agent_protocol", EPROTO, "frame %d of the agent: %s", f->type,
			   why.msg);
	return v;
}

/* Moves queued stdin into out as far as the window goes. */
static int stdin_advance(struct agent_conn *c)
{
	int r = 0;

	while (r == 0 && c->out_at == c->out.len && c->stdin_q.len) {
		uint64_t room = AGENT_STDIN_WINDOW - (c->stdin_sent - c->stdin_taken);
		size_t n = c->stdin_q.len < STDIN_STEP ? c->stdin_q.len : STDIN_STEP;

		if (n > room)
			n = (size_t)room;
		if (n == 0)
			break;
		r = frame_put(&c->out, FRAME_STDIN, c->stdin_q.data, n);
		if (r == 0) {
			buf_consume(&c->stdin_q, n);
			c->stdin_sent += n;
		}
	}
	if (r == 0 && c->stdin_eof && !c->stdin_q.len) {
		r = frame_put(&c->out, FRAME_STDIN_EOF, NULL, 0);
		c->stdin_eof = r < 0;
	}
	return r;
}

/* Sends as much as the socket takes now. A peer that is gone is found by reading, where the
 * reason may still be waiting. */
static int send_now(struct agent_conn *c, struct err *e)
{
	for (;;) {
		ssize_t n;

		if (c->out_at == c->out.len) {
			buf_clear(&c->out);
			c->out_at = 0;
			if (stdin_advance(c) < 0)
				return agent_fail(c, e, "system", ENOMEM, "queue input");
			if (!c->out.len)
				return 0;
		}
		n = send(c->fd, c->out.data + c->out_at, c->out.len - c->out_at,
			 MSG_DONTWAIT | MSG_NOSIGNAL);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && (errno == EPIPE || errno == ECONNRESET)) {
			c->out_at = c->out.len;
			buf_clear(&c->stdin_q);
			c->stdin_eof = false;
			continue;
		}
		if (n < 0 && errno == EAGAIN)
			return 0;
		if (n < 0)
			return agent_fail(c, e, "stream_broken", errno, "send to the agent: %s",
					  strerror(errno));
		c->out_at += (size_t)n;
	}
}

/* Reads what is there now: 1 when something came (or the end), 0 when nothing did. */
static int recv_now(struct agent_conn *c, struct err *e)
{
	ssize_t n;

	if (c->in_at) {
		buf_consume(&c->in, c->in_at);
		c->in_at = 0;
	}
	if (buf_reserve(&c->in, RECV_STEP) < 0)
		return agent_fail(c, e, "system", ENOMEM, "receive from the agent");
	do {
		n = recv(c->fd, c->in.data + c->in.len, RECV_STEP, MSG_DONTWAIT);
	} while (n < 0 && errno == EINTR);
	if (n < 0 && errno == EAGAIN)
		return 0;
	if (n < 0)
		return agent_fail(c, e, "stream_broken", errno, "receive from the agent: %s",
				  strerror(errno));
	c->peer_closed = n == 0;
	c->in.len += (size_t)n;
	return 1;
}

/* The frame at the front of in, if it is whole. */
static int take_buffered(struct agent_conn *c, struct frame *f, struct err *e)
{
	size_t have = c->in.len - c->in_at;
	long n = have ? frame_take((const uint8_t *)c->in.data + c->in_at, have, f) : 0;

	if (n < 0)
		return agent_fail(c, e, "agent_protocol", EPROTO, "the agent sent no valid frame");
	if (n == 0 && c->peer_closed)
		return agent_fail(c, e, "stream_broken", ECONNRESET,
				  "the agent's stream ended before the operation did");
	if (n == 0)
		return 0;
	c->in_at += (size_t)n;
	return f->type == FRAME_ERROR ? fail_agent(c, f, e) : 1;
}

short agent_poll_events(const struct agent_conn *c)
{
	return (short)(POLLIN | (c->out_at < c->out.len ? POLLOUT : 0));
}

/* One wait for the socket: 0 at the deadline, else 1. */
static int wait_socket(struct agent_conn *c, bool reading, uint64_t deadline, struct err *e)
{
	struct pollfd p = { .fd = c->fd, .events = reading ? POLLIN : 0 };
	int r;

	if (c->out_at < c->out.len)
		p.events |= POLLOUT;
	r = poll(&p, 1, poll_ms(deadline));
	if (r < 0 && errno != EINTR)
		return agent_fail(c, e, "stream_broken", errno, "wait for the agent: %s",
				  strerror(errno));
	return r != 0;
}

static int check_usable(struct agent_conn *c, struct err *e)
{
	if (!c->broken)
		return 0;
	return err_set(e, "stream_broken", ECONNRESET, "this stream to the agent failed before");
}

int agent_take(struct agent_conn *c, struct frame *f, uint64_t deadline, struct err *e)
{
	int r = check_usable(c, e);

	while (r == 0) {
		r = send_now(c, e);
		if (r == 0)
			r = take_buffered(c, f, e);
		if (r != 0)
			return r;
		r = recv_now(c, e);
		if (r < 0)
			return r;
		if (r == 1) {
			r = 0;
			continue;
		}
		r = wait_socket(c, true, deadline, e);
		if (r <= 0)
			return r;
		r = 0;
	}
	return r;
}

int agent_flush(struct agent_conn *c, uint64_t deadline, struct err *e)
{
	int r = check_usable(c, e);

	while (r == 0) {
		struct frame f;
		size_t at;

		r = send_now(c, e);
		if (r == 0 && c->out_at == c->out.len)
			return 0;
		if (r == 0)
			r = recv_now(c, e);
		if (r < 0)
			return r;
		at = c->in_at;
		r = take_buffered(c, &f, e); /* only to see an ERROR or the end */
		c->in_at = at;
		if (r < 0)
			return r;
		if (r == 1)
			return agent_fail(c, e, "agent_protocol", EPROTO,
					  "the agent answered before it had all bytes");
		r = wait_socket(c, !c->peer_closed, deadline, e);
		if (r < 0)
			return r;
		if (r == 0)
			return agent_fail(c, e, "agent_timeout", ETIMEDOUT,
					  "the agent took no bytes in time");
		r = 0;
	}
	return r;
}

int agent_open(int fd, const char *op, const json_t *request, struct agent_conn **out,
	       struct err *e)
{
	_cleanup_close_ int owned = fd;
	_cleanup_agent_conn_ struct agent_conn *c = calloc(1, sizeof(*c));
	_cleanup_json_ json_t *o =
		request ? json_copy((json_t *)(uintptr_t)request) : json_object();
	_cleanup_free_ char *text = NULL;
	int r;

	if (!c)
		return err_errno(e, ENOMEM, "open a stream to the agent");
	c->fd = steal_fd(&owned);
	sha256_init(&c->sha);
	if (!o || json_object_set_new(o, "op", json_string(op)) < 0 ||
	    !(text = json_dumps(o, JSON_COMPACT)))
		return err_errno(e, ENOMEM, "open a stream to the agent");
	r = frame_put(&c->out, FRAME_REQUEST, text, strlen(text));
	if (r == -EMSGSIZE)
		return err_set(e, "too_large", EMSGSIZE,
			       "the request to the agent is %zu bytes; at most %u fit",
			       strlen(text), FRAME_PAYLOAD_MAX);
	if (r < 0)
		return err_errno(e, -r, "open a stream to the agent");
	r = send_now(c, e);
	if (r < 0)
		return r;
	*out = steal_ptr(c);
	return 0;
}

void agent_free(struct agent_conn *c)
{
	if (!c)
		return;
	close_fd(&c->fd);
	buf_free(&c->in);
	buf_free(&c->out);
	buf_free(&c->stdin_q);
	free(c);
}

int agent_fd(const struct agent_conn *c)
{
	return c->fd;
}

int agent_reply(struct agent_conn *c, json_t **reply, int timeout_ms, struct err *e)
{
	struct frame f;
	json_t *v;
	int r = agent_take(c, &f, agent_deadline(timeout_ms), e);

	if (r < 0)
		return r;
	if (r == 0)
		return agent_fail(c, e, "agent_timeout", ETIMEDOUT, "no answer after %d ms",
				  timeout_ms);
	if (f.type != FRAME_REPLY)
		return agent_fail(c, e, "agent_protocol", EPROTO, "frame %d in place of the reply",
				  f.type);
	v = agent_json(c, &f, e);
	if (!v)
		return -EPROTO;
	if (reply)
		*reply = v;
	else
		json_decref(v);
	return 0;
}

int agent_call(int fd, const char *op, const json_t *request, json_t **reply, int timeout_ms,
	       struct err *e)
{
	_cleanup_agent_conn_ struct agent_conn *c = NULL;
	int r = agent_open(fd, op, request, &c, e);

	return r < 0 ? r : agent_reply(c, reply, timeout_ms, e);
}

static uint64_t load_u64(const uint8_t *p)
{
	uint64_t v = 0;

	for (int i = 7; i >= 0; i--)
		v = v << 8 | p[i];
	return v;
}

static int event_output(struct agent_conn *c, const struct frame *f, struct agent_event *ev,
			struct err *e)
{
	if (f->len < 8)
		return agent_fail(c, e, "agent_protocol", EPROTO, "output without its offset");
	ev->is_stderr = f->type == FRAME_STDERR;
	ev->type = ev->is_stderr ? AGENT_STDERR : AGENT_STDOUT;
	ev->offset = load_u64(f->payload);
	ev->data = f->payload + 8;
	ev->len = f->len - 8;
	return 1;
}

static int event_dropped(struct agent_conn *c, const struct frame *f, struct agent_event *ev,
			 struct err *e)
{
	_cleanup_json_ json_t *o = agent_json(c, f, e);

	if (!o)
		return -EPROTO;
	ev->type = AGENT_DROPPED;
	ev->is_stderr = strcmp(json_get_str(o, "stream", ""), "stderr") == 0;
	ev->offset = (uint64_t)json_get_int(o, "offset", 0);
	ev->dropped = (uint64_t)json_get_int(o, "bytes", 0);
	return 1;
}

static int event_exit(struct agent_conn *c, const struct frame *f, struct agent_event *ev,
		      struct err *e)
{
	_cleanup_json_ json_t *o = agent_json(c, f, e);
	int64_t code, sig;

	if (!o)
		return -EPROTO;
	code = json_get_int(o, "code", -1);
	sig = json_get_int(o, "signal", 0);
	/* Exactly one of the two, in range: an exit that is neither must not look like success. */
	if ((code < 0) == (sig == 0) || code > 255 || sig < 0 || sig > 64)
		return agent_fail(c, e, "agent_protocol", EPROTO, "an exit without its status");
	ev->type = AGENT_EXIT;
	ev->exit = (struct agent_exit){ .code = (int)code,
					.signal = (int)sig,
					.timed_out = json_get_bool(o, "timedOut", false),
					.duration_ms = json_get_int(o, "durationMs", 0) };
	return 1;
}

/* 1 when the frame that was taken made room for more input from the caller. */
static int event_taken(struct agent_conn *c, const struct frame *f, struct agent_event *ev,
		       struct err *e)
{
	uint64_t taken = f->len == 8 ? load_u64(f->payload) : 0;

	if (f->len != 8 || taken < c->stdin_taken || taken > c->stdin_sent)
		return agent_fail(c, e, "agent_protocol", EPROTO, "input taken that was not sent");
	c->stdin_taken = taken;
	ev->type = AGENT_STDIN;
	return c->stdin_q.len == 0;
}

int agent_next(struct agent_conn *c, struct agent_event *ev, int timeout_ms, struct err *e)
{
	uint64_t deadline = agent_deadline(timeout_ms);

	for (;;) {
		struct frame f;
		int r = agent_take(c, &f, deadline, e);

		if (r <= 0)
			return r;
		*ev = (struct agent_event){ 0 };
		switch (f.type) {
		case FRAME_STDOUT:
		case FRAME_STDERR:
			return event_output(c, &f, ev, e);
		case FRAME_DROPPED:
			return event_dropped(c, &f, ev, e);
		case FRAME_EXIT:
			return event_exit(c, &f, ev, e);
		case FRAME_END:
			ev->type = AGENT_END;
			return 1;
		case FRAME_STDIN_TAKEN:
			r = event_taken(c, &f, ev, e);
			if (r != 0)
				return r;
			break;
		default:
			return agent_fail(c, e, "agent_protocol", EPROTO,
					  "frame %d among a command's events", f.type);
		}
	}
}

int agent_stdin(struct agent_conn *c, const void *p, size_t n, struct err *e)
{
	int r = check_usable(c, e);

	if (r < 0)
		return r;
	if (buf_add(&c->stdin_q, p, n) < 0)
		return err_errno(e, ENOMEM, "queue %zu bytes of input", n);
	return send_now(c, e);
}

int agent_stdin_eof(struct agent_conn *c, struct err *e)
{
	int r = check_usable(c, e);

	if (r < 0)
		return r;
	c->stdin_eof = true;
	return send_now(c, e);
}

size_t agent_stdin_queued(const struct agent_conn *c)
{
	return c->stdin_q.len;
}

static int send_control(struct agent_conn *c, enum frame_type type, const char *payload,
			struct err *e)
{
	int r = check_usable(c, e);

	if (r < 0)
		return r;
	if (frame_put(&c->out, type, payload, strlen(payload)) < 0)
		return err_errno(e, ENOMEM, "queue a message to the agent");
	return send_now(c, e);
}

int agent_signal(struct agent_conn *c, int signal, struct err *e)
{
	char text[32];

	snprintf(text, sizeof(text), "{\"signal\":%d}", signal);
	return send_control(c, FRAME_SIGNAL, text, e);
}

int agent_resize(struct agent_conn *c, int rows, int cols, struct err *e)
{
	char text[64];

	snprintf(text, sizeof(text), "{\"rows\":%d,\"cols\":%d}", rows, cols);
	return send_control(c, FRAME_RESIZE, text, e);
}

int agent_cancel(struct agent_conn *c, struct err *e)
{
	buf_clear(&c->stdin_q);
	c->stdin_eof = false;
	return send_control(c, FRAME_CANCEL, "", e);
}
