/*
 * A stream is open, finishing or dead. Open: frames go to the owner. Finishing: the queue is sent,
 * the sending side shut, and input thrown away until the host closes, so that a host which still
 * sends sees the last frame and no reset. Dead: out of the loop, freed when no call of ours is on
 * the stack (`busy`).
 *
 * A timer bounds the two times when the host owes us something: the first frame, and its close.
 */
#include "agent/stream.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "agent/agent.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"

#define OUT_HIGH (256u << 10)
#define FIRST_FRAME_NS (30 * NSEC_PER_SEC)
#define LINGER_NS (10 * NSEC_PER_SEC)

enum stream_state { OPEN, FINISHING, DEAD };

struct stream {
	struct agent *a;
	struct stream *next;
	int fd;
	enum stream_state state;
	unsigned busy;
	bool hold;
	bool failed;	 /* nothing more can be sent; the timer drops it from the loop */
	bool shut;	 /* finishing, and all was sent */
	uint32_t events; /* what the source watches now */
	struct loop_source *src, *timer;
	struct buf in, out;
	size_t in_at, out_at;
	const struct stream_ops *ops;
	void *ctx;
};

static void stream_free(struct stream *s)
{
	struct stream **p = &s->a->streams;

	while (*p != s)
		p = &(*p)->next;
	*p = s->next;
	s->a->n_streams--;
	loop_remove(s->src);
	loop_remove(s->timer);
	close_fd(&s->fd);
	buf_free(&s->in);
	buf_free(&s->out);
	free(s);
}

static void enter(struct stream *s)
{
	s->busy++;
}

static void leave(struct stream *s)
{
	if (--s->busy == 0 && s->state == DEAD)
		stream_free(s);
}

/* Ends s, telling the owner if it still has one. */
static void drop(struct stream *s)
{
	bool tell = s->state == OPEN && s->ops->gone;

	if (s->state == DEAD)
		return;
	enter(s);
	s->state = DEAD;
	loop_remove(s->src);
	s->src = NULL;
	if (tell)
		s->ops->gone(s, s->ctx);
	leave(s);
}

static void watch(struct stream *s)
{
	uint32_t events = s->hold && s->state == OPEN ? 0 : EPOLLIN;

	if (s->out_at < s->out.len)
		events |= EPOLLOUT;
	if (s->state == DEAD || events == s->events)
		return;
	s->events = events;
	if (loop_set_events(s->src, events) < 0)
		loop_set_timer(s->timer, 1);
}

/* Sends what the socket takes. Returns negative when the connection is lost. */
static int flush(struct stream *s)
{
	while (s->out_at < s->out.len) {
		ssize_t n = send(s->fd, s->out.data + s->out_at, s->out.len - s->out_at,
				 MSG_DONTWAIT | MSG_NOSIGNAL);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			break;
		if (n < 0)
			return -errno;
		s->out_at += (size_t)n;
	}
	if (s->out_at == s->out.len) {
		buf_clear(&s->out);
		s->out_at = 0;
	} else if (s->out_at > OUT_HIGH) {
		buf_consume(&s->out, s->out_at);
		s->out_at = 0;
	}
	if (s->state == FINISHING && !s->out.len && !s->shut) {
		s->shut = true;
		if (shutdown(s->fd, SHUT_WR) < 0)
			return -errno;
	}
	return 0;
}

/* Gives the frames that are whole to the owner. */
static int dispatch(struct stream *s)
{
	while (s->state == OPEN && !s->hold) {
		struct frame f;
		size_t have = s->in.len - s->in_at;
		long n = have ? frame_take((const uint8_t *)s->in.data + s->in_at, have, &f) : 0;

		if (n <= 0)
			return (int)n;
		s->in_at += (size_t)n;
		n = s->ops->frame(s, s->ctx, &f);
		if (n < 0)
			return (int)n;
	}
	return 0;
}

/* One read, so that no stream starves the others. Returns negative when s must be dropped. */
static int receive(struct stream *s)
{
	ssize_t n = recv(s->fd, s->a->scratch, sizeof(s->a->scratch), MSG_DONTWAIT);

	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? 0 : -errno;
	if (n == 0)
		return -ECONNRESET;
	if (s->state != OPEN)
		return 0;
	if (s->in_at) {
		buf_consume(&s->in, s->in_at);
		s->in_at = 0;
	}
	return buf_add(&s->in, s->a->scratch, (size_t)n);
}

static void on_socket(void *ctx, int fd, uint32_t events)
{
	struct stream *s = ctx;
	bool was_full = stream_room(s) == 0;
	int r = 0;

	(void)fd;
	enter(s);
	if (r == 0 && events & EPOLLOUT)
		r = flush(s);
	if (r == 0 && was_full && stream_room(s) && s->state == OPEN && s->ops->room)
		s->ops->room(s, s->ctx);
	if (r == 0 && s->state != DEAD && events & EPOLLIN)
		r = receive(s);
	else if (r == 0 && events & (EPOLLHUP | EPOLLERR))
		r = -ECONNRESET; /* held, and nobody is there any more */
	if (r == 0)
		r = dispatch(s);
	if (r < 0)
		drop(s);
	watch(s);
	leave(s);
}

static void on_late(void *ctx)
{
	drop(ctx);
}

int stream_new(struct agent *a, int fd, const struct stream_ops *ops, void *ctx, struct err *e)
{
	_cleanup_close_ int owned = fd;
	struct stream *s = calloc(1, sizeof(*s));
	int r;

	if (!s)
		return err_errno(e, ENOMEM, "new stream");
	*s = (struct stream){ .a = a, .fd = fd, .events = EPOLLIN, .ops = ops, .ctx = ctx };
	r = loop_add_fd(a->loop, fd, EPOLLIN, on_socket, s, &s->src, e);
	if (r == 0)
		r = loop_add_timer(a->loop, on_late, s, &s->timer, e);
	if (r < 0) {
		loop_remove(s->src);
		free(s);
		return r;
	}
	steal_fd(&owned);
	s->next = a->streams;
	a->streams = s;
	a->n_streams++;
	loop_set_timer(s->timer, clock_mono_ns() + FIRST_FRAME_NS);
	return 0;
}

void stream_set_owner(struct stream *s, const struct stream_ops *ops, void *ctx)
{
	s->ops = ops;
	s->ctx = ctx;
	loop_set_timer(s->timer, 0);
}

size_t stream_room(const struct stream *s)
{
	size_t queued = s->out.len - s->out_at;

	return queued < OUT_HIGH ? OUT_HIGH - queued : 0;
}

static void send_queued(struct stream *s, int r)
{
	if (r == 0)
		r = flush(s);
	if (r < 0) {
		/* The owner is in the middle of something: tell it from the loop. */
		s->failed = true;
		loop_set_timer(s->timer, 1);
		return;
	}
	watch(s);
}

void stream_send(struct stream *s, enum frame_type type, const void *p, size_t n)
{
	if (s->state != DEAD && !s->failed)
		send_queued(s, frame_put(&s->out, type, p, n));
}

void stream_send_json(struct stream *s, enum frame_type type, json_t *o)
{
	_cleanup_free_ char *text = o ? json_dumps(o, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;

	json_decref(o);
	if (s->state == DEAD || s->failed)
		return;
	if (text)
		stream_send(s, type, text, strlen(text));
	else
		send_queued(s, -ENOMEM);
}

void stream_send_output(struct stream *s, enum frame_type type, uint64_t offset, const void *p,
			size_t n)
{
	uint8_t head[FRAME_HEADER_LEN + 8] = { 0 };
	uint32_t len = (uint32_t)n + 8;
	int r;

	if (s->state == DEAD || s->failed)
		return;
	for (int i = 0; i < 4; i++)
		head[i] = (uint8_t)(len >> 8 * i);
	head[4] = (uint8_t)type;
	for (int i = 0; i < 8; i++)
		head[8 + i] = (uint8_t)(offset >> 8 * i);
	r = buf_reserve(&s->out, sizeof(head) + n);
	if (r == 0) {
		buf_add(&s->out, head, sizeof(head));
		r = buf_add(&s->out, p, n);
	}
	send_queued(s, r);
}

void stream_hold(struct stream *s, bool hold)
{
	s->hold = hold;
	if (s->state != OPEN)
		return;
	enter(s);
	if (!hold && s->busy == 1 && dispatch(s) < 0) /* else on_socket() goes on itself */
		drop(s);
	watch(s);
	leave(s);
}

void stream_finish(struct stream *s)
{
	static const struct stream_ops none = { 0 };

	if (s->state != OPEN)
		return;
	s->state = FINISHING;
	s->ops = &none;
	s->ctx = NULL;
	loop_set_timer(s->timer, clock_mono_ns() + LINGER_NS);
	send_queued(s, s->failed ? -EPIPE : 0);
}

json_t *stream_error_json(const struct err *e)
{
	/* Messages quote paths and words of the guest, which need not be UTF-8. */
	json_t *o = json_pack("{s:s,s:s}", "code", e->code, "message", e->msg);

	if (!o)
		o = json_pack("{s:s,s:s}", "code", e->code, "message",
			      "the message is not valid UTF-8");
	if (o && e->fix[0])
		json_object_set_new(o, "fix", json_string(e->fix));
	return o;
}

void stream_error(struct stream *s, const struct err *e)
{
	stream_send_json(s, FRAME_ERROR, stream_error_json(e));
	stream_finish(s);
}

void stream_reply(struct stream *s, json_t *o)
{
	stream_send_json(s, FRAME_REPLY, o ? o : json_object());
	stream_finish(s);
}

int stream_peek_fd(const struct stream *s, struct buf *left)
{
	size_t have = s->in.len - s->in_at;
	int r = have ? buf_add(left, s->in.data + s->in_at, have) : 0;

	return r < 0 ? r : s->fd;
}

void stream_abandon(struct stream *s)
{
	enter(s);
	s->state = DEAD;
	loop_remove(s->src);
	s->src = NULL;
	leave(s);
}

struct agent *stream_agent(const struct stream *s)
{
	return s->a;
}
