/*
 * splice(2) from a socket into a pipe and from the pipe into the other socket. A pipe is refilled
 * when it is empty and given back then, so pipes stay few. Spare ones are kept in a small stack.
 */
#include "egress/relay.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define PIPE_BYTES (256 << 10)

static int pipe_take(struct relay_pool *p, struct relay_half *h)
{
	if (p->n) {
		p->n--;
		h->pipe[0] = p->spare[p->n][0];
		h->pipe[1] = p->spare[p->n][1];
	} else {
		if (pipe2(h->pipe, O_CLOEXEC | O_NONBLOCK) < 0)
			return -errno;
		/* More than the user's share is refused: the default size works as well. */
		(void)fcntl(h->pipe[1], F_SETPIPE_SZ, PIPE_BYTES);
	}
	h->has_pipe = true;
	return 0;
}

/* Only an empty pipe is kept: bytes of one sandbox must never meet another. */
static void pipe_give(struct relay_pool *p, struct relay_half *h)
{
	if (!h->has_pipe)
		return;
	h->has_pipe = false;
	if (h->in_pipe == 0 && p->n < RELAY_SPARE_MAX) {
		p->spare[p->n][0] = h->pipe[0];
		p->spare[p->n][1] = h->pipe[1];
		p->n++;
		return;
	}
	close(h->pipe[0]);
	close(h->pipe[1]);
}

void relay_pool_drain(struct relay_pool *p)
{
	while (p->n) {
		p->n--;
		close(p->spare[p->n][0]);
		close(p->spare[p->n][1]);
	}
}

/* Fills the empty pipe. 0, or a negative errno. */
static int fill(struct relay_pool *p, struct relay_half *h, int from)
{
	ssize_t n;
	int r;

	if (!h->has_pipe && (r = pipe_take(p, h)) < 0)
		return r;
	n = splice(from, NULL, h->pipe[1], NULL, PIPE_BYTES, SPLICE_F_NONBLOCK | SPLICE_F_MOVE);
	if (n < 0 && errno == EAGAIN) {
		h->want_in = true;
		return 0;
	}
	if (n < 0)
		return -errno;
	h->eof = n == 0;
	h->in_pipe = (size_t)n;
	return 0;
}

static int drain(struct relay_half *h, int to)
{
	ssize_t n =
		splice(h->pipe[0], NULL, to, NULL, h->in_pipe, SPLICE_F_NONBLOCK | SPLICE_F_MOVE);

	if (n < 0 && errno == EAGAIN) {
		h->want_out = true;
		return 0;
	}
	if (n < 0)
		return -errno;
	h->in_pipe -= (size_t)n;
	h->bytes += (uint64_t)n;
	return 0;
}

static int half_step(struct relay_pool *p, struct relay_half *h, int from, int to, size_t budget,
		     bool *more)
{
	uint64_t start = h->bytes;
	int r = 0;

	h->want_in = h->want_out = false;
	while (r == 0 && !h->shut && !h->want_in && !h->want_out) {
		if (h->in_pipe) {
			r = drain(h, to);
		} else if (h->eof) {
			h->shut = true;
			/* ENOTCONN: the other side is gone already, which its own half will find.
			 */
			if (shutdown(to, SHUT_WR) < 0 && errno != ENOTCONN)
				r = -errno;
		} else if (h->bytes - start >= budget) {
			*more = true;
			h->want_in = true;
		} else {
			r = fill(p, h, from);
		}
	}
	if (h->in_pipe == 0)
		pipe_give(p, h);
	return r;
}

enum relay_result relay_step(struct relay *r, int client, int server, size_t budget, bool *more)
{
	*more = false;
	if ((!r->hold_up && half_step(r->pool, &r->up, client, server, budget, more) < 0) ||
	    half_step(r->pool, &r->down, server, client, budget, more) < 0)
		return RELAY_BROKEN;
	return r->up.shut && r->down.shut ? RELAY_DONE : RELAY_GOING;
}

uint32_t relay_client_events(const struct relay *r)
{
	return (r->up.want_in || r->hold_up ? EPOLLIN : 0u) | (r->down.want_out ? EPOLLOUT : 0u);
}

uint32_t relay_server_events(const struct relay *r)
{
	return (r->down.want_in ? EPOLLIN : 0u) | (r->up.want_out ? EPOLLOUT : 0u);
}

void relay_end(struct relay *r)
{
	pipe_give(r->pool, &r->up);
	pipe_give(r->pool, &r->down);
}
