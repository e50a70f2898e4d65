/*
 * stdin of a command. Bytes that its pipe does not take wait in `pending`; their number is bounded
 * by those who send: the window of an exec stream, the hold of a stdin stream.
 *
 * A command that closed its stdin takes everything there is, at once: input it does not want is no
 * error, as in a shell's pipe line.
 */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "agent/agent.h"
#include "agent/process.h"
#include "agent/watch.h"
#include "base/cleanup.h"
#include "base/log.h"

#define TTY_EOF "\004"

void process_input_close(struct process *p)
{
	struct input *in = &p->in;

	loop_remove(in->src);
	in->src = NULL;
	close_fd(&in->fd);
	buf_clear(&in->pending);
	in->written = in->accepted;
}

/* Writes what the pipe takes now. */
static void advance(struct process *p)
{
	struct input *in = &p->in;

	while (in->fd >= 0 && in->pending.len) {
		ssize_t n = write(in->fd, in->pending.data, in->pending.len);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			return;
		if (n < 0) {
			process_input_close(p);
			return;
		}
		buf_consume(&in->pending, (size_t)n);
		in->written += (uint64_t)n;
		if (in->written > in->accepted) /* the ^D of a terminal is nobody's byte */
			in->written = in->accepted;
	}
	if (in->fd >= 0 && in->eof)
		process_input_close(p);
}

static void on_writable(void *ctx, int fd, uint32_t events)
{
	struct process *p = ctx;

	(void)fd;
	(void)events;
	advance(p);
	if (!p->in.pending.len) {
		loop_remove(p->in.src);
		p->in.src = NULL;
	}
	watch_pump(p);
}

/* Writes now, and later from the loop what is left. */
static int push(struct process *p, struct err *e)
{
	struct input *in = &p->in;

	advance(p);
	if (!in->pending.len || in->src)
		return 0;
	return loop_add_fd(p->a->loop, in->fd, EPOLLOUT, on_writable, p, &in->src, e);
}

int process_input(struct process *p, const void *bytes, size_t n, struct err *e)
{
	struct input *in = &p->in;

	if (in->fd < 0) { /* it closed its end */
		in->accepted += n;
		in->written = in->accepted;
		in->lost |= p->exited && n;
		return 0;
	}
	if (buf_add(&in->pending, bytes, n) < 0)
		return agent_errno(e, ENOMEM, "input of the command");
	in->accepted += n;
	return push(p, e);
}

void process_input_eof(struct process *p)
{
	struct err e = { 0 };

	if (p->in.fd < 0 || p->in.eof)
		return;
	/* A terminal has no end: its line discipline makes one of ^D. */
	if (p->tty && buf_str(&p->in.pending, TTY_EOF) < 0)
		agent_errno(&e, ENOMEM, "input of the command");
	p->in.eof = !p->tty;
	if (push(p, &e) < 0)
		log_err(LOG_WARN, &e, p->id);
}
