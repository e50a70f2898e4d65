/*
 * A command's output goes from its pipe into a ring, and from the ring to whoever watches. The
 * stream that started a command must get every byte, so the pipe is not read while the ring holds
 * nothing but bytes that this watcher still needs: the command then waits in write(2), as it would
 * for a slow terminal. Other watchers, and nobody, hold nothing back.
 *
 * Held back means out of the event loop (a closed pipe would fire for ever otherwise).
 */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "agent/agent.h"
#include "agent/process.h"
#include "agent/table.h"
#include "agent/watch.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/log.h"
#include "proto/agent.h"

/* Grows the ring until it can take one more read without losing kept bytes, within the limits. */
static void make_room(struct output *o)
{
	struct agent *a = o->p->a;
	struct ring *r = &o->ring;

	while (r->cap - (r->end - r->start) < AGENT_SCRATCH && r->cap < AGENT_KEEP_OUTPUT) {
		size_t more = r->cap ? r->cap : RING_MIN;

		if (!table_make_room(a, more) || ring_grow(r) < 0)
			return;
		a->output_bytes += more;
	}
}

/* What may be read now without overwriting what a lossless watcher needs. */
static size_t readable(const struct output *o)
{
	uint64_t keep = watch_keep_from(o->p, o == &o->p->out[1]);
	size_t room = o->ring.cap;

	if (keep != UINT64_MAX)
		room -= (size_t)(o->ring.end - keep);
	return room < AGENT_SCRATCH ? room : AGENT_SCRATCH;
}

static void on_output(void *ctx, int fd, uint32_t events)
{
	struct output *o = ctx;
	struct agent *a = o->p->a;
	ssize_t n;
	size_t room;

	(void)events;
	make_room(o);
	room = readable(o);
	if (room == 0) {
		loop_remove(o->src);
		o->src = NULL;
		return;
	}
	n = read(fd, a->scratch, room);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n > 0)
		ring_write(&o->ring, a->scratch, (size_t)n);
	else /* 0, or EIO: a terminal whose last user has gone */
		output_close(o);
	watch_pump(o->p);
}

static int watch_fd(struct output *o, struct err *e)
{
	return loop_add_fd(o->p->a->loop, o->fd, EPOLLIN, on_output, o, &o->src, e);
}

int output_open(struct process *p, int which, int fd, struct err *e)
{
	struct output *o = &p->out[which];
	int r;

	o->p = p;
	o->fd = fd;
	r = fd_set_nonblock(fd, true);
	if (r < 0)
		return agent_errno(e, -r, "output of the command");
	make_room(o);
	if (!o->ring.cap && ring_grow(&o->ring) == 0)
		p->a->output_bytes += RING_MIN; /* every command gets this much */
	if (!o->ring.cap)
		return agent_errno(e, ENOMEM, "output of the command");
	return watch_fd(o, e);
}

void output_close(struct output *o)
{
	loop_remove(o->src);
	o->src = NULL;
	close_fd(&o->fd);
	o->final = o->ring.end;
	o->settled = true;
}

/* Everything the first process wrote is in the ring or in the pipe when it is reaped. What others
 * that hold the pipe write later is kept, but EXIT does not wait for it. */
void output_settle(struct output *o)
{
	int waiting = 0;

	if (o->fd < 0)
		return;
	if (ioctl(o->fd, FIONREAD, &waiting) < 0)
		waiting = 0;
	o->final = o->ring.end + (uint64_t)waiting;
	o->settled = true;
}

void process_resume_output(struct process *p)
{
	for (int i = 0; i < 2; i++) {
		struct output *o = &p->out[i];
		struct err e = { 0 };

		if (o->fd < 0 || o->src || readable(o) == 0)
			continue;
		if (watch_fd(o, &e) < 0)
			log_err(LOG_ERROR, &e, p->id);
	}
}
