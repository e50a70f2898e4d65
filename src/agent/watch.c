/*
 * A watcher is a cursor into each ring and a stream. Pumping moves the cursors as far as the
 * stream has room; the stream's room callback pumps again. Every path ends in release(), which
 * takes the watcher out of the process's list and, if it was the last of a forgotten process,
 * leaves that to the process (process_unwatched()).
 *
 * The watchers of a process are walked with `next` read first, because a step may release one.
 */
#include "agent/watch.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/agent.h"
#include "agent/process.h"
#include "agent/stream.h"
#include "base/cleanup.h"
#include "base/json.h"
#include "base/log.h"
#include "proto/agent.h"

#define STEP (64u << 10)

enum kind { EXEC, ATTACH, FEED };

struct watcher {
	struct watcher *next;
	struct process *p;
	struct stream *s;
	enum kind kind;
	bool replied; /* exec: REPLY went out */
	bool follow;
	bool fed; /* feed: DATA_EOF came */
	bool feed_eof;
	uint64_t at[2];	   /* next byte of each output to send */
	uint64_t until[2]; /* attach without follow: where to stop */
	bool gives;	   /* exec: it has sent input, and nobody else may */
	uint64_t from;	   /* where in the command's input this stream's begins */
	uint64_t taken;	   /* the last STDIN_TAKEN, counted from there */
};

static void release(struct watcher *w)
{
	struct watcher **at = &w->p->watchers;

	while (*at != w)
		at = &(*at)->next;
	*at = w->next;
	if (w->p->a->stopping)
		loop_wake(w->p->a->loop); /* the last one may be what it waits for */
	free(w);
}

static void finish(struct watcher *w)
{
	struct stream *s = w->s;

	release(w);
	stream_finish(s);
}

static void fail(struct watcher *w, const struct err *e)
{
	struct stream *s = w->s;

	release(w);
	stream_error(s, e);
}

uint64_t watch_keep_from(const struct process *p, int which)
{
	uint64_t keep = UINT64_MAX;

	for (const struct watcher *w = p->watchers; w; w = w->next)
		if (w->kind == EXEC && w->at[which] < keep)
			keep = w->at[which];
	return keep;
}

/* Says that bytes before the ring's start are gone. */
static void skip_lost(struct watcher *w, int i)
{
	const struct ring *r = &w->p->out[i].ring;

	if (w->at[i] >= r->start)
		return;
	stream_send_json(w->s, FRAME_DROPPED,
			 json_pack("{s:s,s:I,s:I}", "stream", i ? "stderr" : "stdout", "offset",
				   (json_int_t)w->at[i], "bytes",
				   (json_int_t)(r->start - w->at[i])));
	w->at[i] = r->start;
}

/* One piece of output i; false when there is none to send or no room for it. */
static bool send_piece(struct watcher *w, int i)
{
	const uint8_t *p;
	uint64_t left;
	size_t n;

	skip_lost(w, i);
	left = w->until[i] > w->at[i] ? w->until[i] - w->at[i] : 0;
	n = ring_peek(&w->p->out[i].ring, w->at[i], &p);
	if (n > STEP)
		n = STEP;
	if (n > left)
		n = (size_t)left;
	if (n == 0 || stream_room(w->s) == 0)
		return false;
	stream_send_output(w->s, i ? FRAME_STDERR : FRAME_STDOUT, w->at[i], p, n);
	w->at[i] += n;
	return true;
}

static void send_output(struct watcher *w)
{
	bool more = true;

	while (more) {
		more = send_piece(w, 0);
		more |= send_piece(w, 1);
	}
}

static bool all_sent(const struct watcher *w)
{
	for (int i = 0; i < 2; i++) {
		const struct output *o = &w->p->out[i];
		uint64_t end = o->settled ? o->final : o->ring.end;

		if (!w->follow && w->until[i] < end)
			end = w->until[i];
		if (w->at[i] < end)
			return false;
	}
	return true;
}

static void send_taken(struct watcher *w)
{
	uint64_t written = w->p->in.written;
	uint8_t le[8];

	if (!w->gives || written <= w->from || written - w->from == w->taken)
		return;
	w->taken = written - w->from;
	for (int i = 0; i < 8; i++)
		le[i] = (uint8_t)(w->taken >> 8 * i);
	stream_send(w->s, FRAME_STDIN_TAKEN, le, sizeof(le));
}

/*
 * A feed is done when its bytes were all written, and fails when they never will be. A command that
 * ends on its last line may well do so before that line's DATA_EOF is here.
 */
static void pump_feed(struct watcher *w)
{
	struct process *p = w->p;
	struct stream *s = w->s;

	if (p->exited && p->in.lost) {
		struct err e = { 0 };

		err_set(&e, "process_ended", ESRCH, "process %s has ended", p->id);
		fail(w, &e);
	} else if (w->fed && !p->in.pending.len) {
		json_t *reply = json_pack("{s:I}", "offset", (json_int_t)p->in.accepted);

		if (w->feed_eof)
			process_input_eof(p);
		release(w);
		stream_reply(s, reply);
	} else {
		stream_hold(s, p->in.pending.len >= AGENT_STDIN_WINDOW);
	}
}

static void pump_exec(struct watcher *w)
{
	struct process *p = w->p;

	if (!p->started)
		return;
	if (!w->replied) {
		w->replied = true;
		stream_send_json(w->s, FRAME_REPLY,
				 json_pack("{s:s,s:i}", "processId", p->id, "pid", (int)p->pid));
		if (p->background) {
			finish(w);
			return;
		}
	}
	send_taken(w);
	send_output(w);
	if (process_settled(p) && all_sent(w)) {
		stream_send_json(w->s, FRAME_EXIT, process_exit_json(p));
		finish(w);
	}
}

static void pump_attach(struct watcher *w)
{
	struct process *p = w->p;

	send_output(w);
	if (!all_sent(w) || (w->follow && !process_settled(p)))
		return;
	if (process_settled(p))
		stream_send_json(w->s, FRAME_EXIT, process_exit_json(p));
	else
		stream_send_json(w->s, FRAME_END, json_pack("{s:s}", "state", "running"));
	finish(w);
}

static void pump(struct watcher *w)
{
	if (w->kind == FEED)
		pump_feed(w);
	else if (w->kind == EXEC)
		pump_exec(w);
	else
		pump_attach(w);
}

void watch_pump(struct process *p)
{
	for (struct watcher *w = p->watchers, *next; w; w = next) {
		next = w->next;
		pump(w);
	}
	process_resume_output(p);
	process_unwatched(p);
}

void watch_fail(struct process *p, const struct err *e)
{
	while (p->watchers)
		fail(p->watchers, e);
}

static int json_payload(const struct frame *f, json_t **out)
{
	*out = json_parse((const char *)f->payload, f->len, NULL);
	return *out ? 0 : -EPROTO;
}

/* Frames that only ask for something may come too late, when the command has just ended: what they
 * want is then nobody's any more, and EXIT is already on its way. */
static int take_signal(struct process *p, const struct frame *f)
{
	_cleanup_json_ json_t *o = NULL;
	int r = json_payload(f, &o);
	int64_t sig;

	if (r < 0)
		return r;
	sig = json_get_int(o, "signal", 0);
	if (sig < 1 || sig > 64)
		return -EPROTO;
	(void)process_signal(p, (int)sig, NULL);
	return 0;
}

static int take_resize(struct process *p, const struct frame *f)
{
	_cleanup_json_ json_t *o = NULL;
	int r = json_payload(f, &o);
	int64_t rows, cols;

	if (r < 0)
		return r;
	rows = json_get_int(o, "rows", 0);
	cols = json_get_int(o, "cols", 0);
	if (rows < 1 || rows > 1000 || cols < 1 || cols > 1000)
		return -EPROTO;
	(void)process_resize(p, (int)rows, (int)cols, NULL);
	return 0;
}

/* From its first input on an exec stream is the only one that gives any. */
static int give(struct watcher *w)
{
	if (w->kind != EXEC || !w->p->in.wanted)
		return -EPROTO;
	for (const struct watcher *o = w->p->watchers; o && !w->gives; o = o->next)
		if (o->kind == FEED)
			return -EPROTO;
	if (!w->gives)
		w->from = w->p->in.accepted;
	w->gives = true;
	return 0;
}

/* STDIN must have been asked for and stay within the window. */
static int take_stdin(struct watcher *w, const struct frame *f)
{
	struct process *p = w->p;
	struct err e = { 0 };

	if (give(w) < 0 || p->in.eof ||
	    p->in.accepted - w->from - w->taken + f->len > AGENT_STDIN_WINDOW)
		return -EPROTO;
	if (process_input(p, f->payload, f->len, &e) < 0) {
		log_err(LOG_WARN, &e, p->id);
		return -ENOMEM;
	}
	send_taken(w);
	return 0;
}

static int on_frame(struct stream *s, void *ctx, const struct frame *f)
{
	struct watcher *w = ctx;

	(void)s;
	switch (f->type) {
	case FRAME_SIGNAL:
		return take_signal(w->p, f);
	case FRAME_CANCEL:
		process_kill(w->p);
		return 0;
	case FRAME_RESIZE:
		return take_resize(w->p, f);
	case FRAME_STDIN:
		return take_stdin(w, f);
	case FRAME_STDIN_EOF:
		if (give(w) < 0)
			return -EPROTO;
		process_input_eof(w->p);
		return 0;
	default:
		return -EPROTO;
	}
}

static int on_feed_frame(struct stream *s, void *ctx, const struct frame *f)
{
	struct watcher *w = ctx;
	struct process *p = w->p;
	struct err e = { 0 };

	(void)s;
	if (w->fed || (f->type != FRAME_DATA && f->type != FRAME_DATA_EOF))
		return -EPROTO;
	if (f->type == FRAME_DATA_EOF)
		w->fed = true;
	else if (process_input(p, f->payload, f->len, &e) < 0)
		return -ENOMEM;
	watch_pump(p);
	return 0;
}

static void on_room(struct stream *s, void *ctx)
{
	struct watcher *w = ctx;

	(void)s;
	watch_pump(w->p);
}

/* The stream broke: the command goes on, unwatched. */
static void on_gone(struct stream *s, void *ctx)
{
	struct watcher *w = ctx;
	struct process *p = w->p;

	(void)s;
	release(w);
	process_resume_output(p);
	process_unwatched(p);
}

static const struct stream_ops watch_ops = { on_frame, on_room, on_gone };
static const struct stream_ops feed_ops = { on_feed_frame, NULL, on_gone };

static struct watcher *add(struct stream *s, struct process *p, enum kind kind)
{
	struct watcher *w = calloc(1, sizeof(*w));

	if (!w) {
		struct err e = { 0 };

		agent_errno(&e, ENOMEM, "watch process %s", p->id);
		stream_error(s, &e);
		return NULL;
	}
	*w = (struct watcher){ .next = p->watchers, .p = p, .s = s, .kind = kind };
	w->until[0] = w->until[1] = UINT64_MAX;
	p->watchers = w;
	stream_set_owner(s, kind == FEED ? &feed_ops : &watch_ops, w);
	return w;
}

void watch_exec(struct stream *s, struct process *p)
{
	struct watcher *w = add(s, p, EXEC);

	if (!w)
		return;
	w->follow = true;
	watch_pump(p);
}

void watch_attach(struct stream *s, struct process *p, const json_t *request)
{
	static const char *const names[] = { "stdoutOffset", "stderrOffset" };
	struct watcher *w;

	for (int i = 0; i < 2; i++) {
		uint64_t at = (uint64_t)json_get_int(request, names[i], 0);
		struct err e = { 0 };

		if (at <= p->out[i].ring.end)
			continue;
		err_set(&e, "offset_mismatch", EINVAL, "%s is %llu; only %llu bytes were written",
			names[i], (unsigned long long)at, (unsigned long long)p->out[i].ring.end);
		stream_error(s, &e);
		return;
	}
	w = add(s, p, ATTACH);
	if (!w)
		return;
	w->follow = json_get_bool(request, "follow", false);
	for (int i = 0; i < 2; i++) {
		w->at[i] = (uint64_t)json_get_int(request, names[i], 0);
		if (!w->follow)
			w->until[i] = p->out[i].ring.end;
	}
	stream_send_json(s, FRAME_REPLY, process_json(p, false));
	watch_pump(p);
}

static int check_feed(const struct process *p, uint64_t offset, struct err *e)
{
	if (p->exited)
		return err_set(e, "process_ended", ESRCH, "process %s has ended", p->id);
	if (!p->in.wanted || p->in.fd < 0 || p->in.eof)
		return err_set(e, "stdin_closed", EPIPE, "process %s takes no input", p->id);
	for (const struct watcher *w = p->watchers; w; w = w->next)
		if (w->kind == FEED || w->gives)
			return err_set(e, "bad_request", EBUSY,
				       "another stream gives process %s its input", p->id);
	if (offset != p->in.accepted)
		return err_set(e, "offset_mismatch", EINVAL,
			       "offset is %llu; process %s has taken %llu bytes of input",
			       (unsigned long long)offset, p->id,
			       (unsigned long long)p->in.accepted);
	return 0;
}

void watch_stdin(struct stream *s, struct process *p, const json_t *request)
{
	struct err e = { 0 };
	struct watcher *w;

	if (check_feed(p, (uint64_t)json_get_int(request, "offset", 0), &e) < 0) {
		stream_error(s, &e);
		return;
	}
	w = add(s, p, FEED);
	if (w)
		w->feed_eof = json_get_bool(request, "eof", false);
}
