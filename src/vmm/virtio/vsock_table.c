/*
 * The table of connections and their lives: found by their local port, settled after each touch,
 * woken by their sockets and by their deadlines.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/loop.h"
#include "vmm/virtio/vsock_dev.h"

#define LINGER_NS (30 * NSEC_PER_SEC) /* for the guest to close what the host has closed */

/* The table. */

struct vsock_conn **vsock_find(struct virtio_vsock *s, uint32_t local_port)
{
	struct vsock_conn **p = &s->buckets[local_port % VSOCK_BUCKETS];

	while (*p && (*p)->local_port != local_port)
		p = &(*p)->next_in_bucket;
	return p;
}

uint32_t vsock_take_port(struct virtio_vsock *s)
{
	uint32_t port;

	do {
		port = s->next_port;
		s->next_port = port == VSOCK_PORT_LAST ? VSOCK_PORT_FIRST : port + 1;
	} while (*vsock_find(s, port));
	return port;
}

static void ready_add(struct virtio_vsock *s, struct vsock_conn *c)
{
	if (c->is_ready)
		return;
	c->is_ready = true;
	c->next_ready = NULL;
	*s->ready_end = c;
	s->ready_end = &c->next_ready;
}

void vsock_ready_remove(struct virtio_vsock *s, struct vsock_conn *c)
{
	struct vsock_conn **p;

	if (!c->is_ready)
		return;
	for (p = &s->ready; *p != c; p = &(*p)->next_ready)
		;
	*p = c->next_ready;
	if (s->ready_end == &c->next_ready)
		s->ready_end = p;
	c->is_ready = false;
}

static void complete(struct virtio_vsock *s, struct vsock_conn *c)
{
	struct vsock_completion *done = steal_ptr(c->completion);

	if (!done)
		return;
	done->next = NULL;
	*s->done_end = done;
	s->done_end = &done->next;
	if (done->result == 0)
		s->stats.connected++;
	else if (done->result == -ECONNREFUSED)
		s->stats.refused++;
	else if (done->result == -ETIMEDOUT)
		s->stats.timed_out++;
}

void vsock_free_conn(struct virtio_vsock *s, struct vsock_conn *c)
{
	*vsock_find(s, c->local_port) = c->next_in_bucket;
	vsock_ready_remove(s, c);
	loop_remove(c->source);
	close_fd(&c->fd);
	complete(s, c);
	if (c->buf_alloc == VSOCK_BUF_LARGE)
		s->granted -= VSOCK_BUF_LARGE;
	s->stats.connections--;
	free(c->ring.data);
	free(c);
}

/* Deadlines. */

/* Has the timer fire no later than at; an earlier one stays. */
static void arm(struct virtio_vsock *s, uint64_t at)
{
	if (!s->timer || (s->timer_at && s->timer_at <= at))
		return;
	s->timer_at = at;
	if (loop_set_timer(s->timer, at) < 0)
		log_error("vsock: timer: %s", strerror(errno));
}

/* Settling. */

static void on_socket(void *ctx, int fd, uint32_t events);

static void unwatch(struct vsock_conn *c)
{
	loop_remove(c->source);
	c->source = NULL;
}

/* Polls the socket for what matters now. A source that waits for nothing would fire on hang-up. */
static void watch(struct virtio_vsock *s, struct vsock_conn *c)
{
	bool any = false;
	uint32_t events = vsock_conn_events(c, &any);
	struct err e;

	if (!any || s->mmio.paused || !s->loop) {
		unwatch(c);
		return;
	}
	if (c->source && c->watched == events)
		return;
	c->watched = events;
	if (c->source && loop_set_events(c->source, events) == 0)
		return;
	unwatch(c);
	if (loop_add_fd(s->loop, c->fd, events, on_socket, c, &c->source, &e) < 0) {
		log_err(LOG_ERROR, &e, "vsock: socket lost");
		c->source = NULL;
		vsock_conn_reset(c);
	}
}

void vsock_settle(struct virtio_vsock *s, struct vsock_conn *c)
{
	if (vsock_conn_is_live(c))
		watch(s, c);
	/* Out of epoll before it is closed: the one who passed it may still hold a duplicate. */
	if (!vsock_conn_is_live(c)) {
		unwatch(c);
		close_fd(&c->fd);
	}
	if (c->state != VSOCK_CONNECTING)
		complete(s, c);
	if (c->state == VSOCK_DONE) {
		vsock_free_conn(s, c);
		return;
	}
	if (c->state == VSOCK_OPEN && c->said_shutdown == VSOCK_ALL_SHUT && !c->deadline)
		c->deadline = clock_mono_ns() + LINGER_NS;
	if (c->deadline)
		arm(s, c->deadline);
	if (vsock_conn_has_packet(c))
		ready_add(s, c);
}

/* Sockets and time. */

static void on_socket(void *ctx, int fd, uint32_t events)
{
	struct vsock_conn *c = ctx;
	struct virtio_vsock *s = c->dev;
	unsigned epoch = s->epoch;

	(void)fd;
	virtio_enter(&s->mmio);
	if (s->epoch == epoch) {
		if (events & EPOLLOUT)
			vsock_conn_flush(c);
		if (events & EPOLLIN)
			c->readable = true;
		if (vsock_conn_is_live(c) && (events & (EPOLLHUP | EPOLLERR)))
			vsock_conn_hang_up(c);
		vsock_settle(s, c);
		vsock_serve_rx(s);
	}
	virtio_leave(&s->mmio);
}

static void expire(struct virtio_vsock *s, struct vsock_conn *c)
{
	if (c->state == VSOCK_CONNECTING)
		c->completion->result = -ETIMEDOUT;
	else
		s->stats.resets++;
	vsock_conn_reset(c);
	vsock_settle(s, c);
}

static void check_deadline(struct virtio_vsock *s, struct vsock_conn *c)
{
	if (c->deadline && c->deadline <= clock_mono_ns())
		expire(s, c);
	else if (c->deadline)
		arm(s, c->deadline);
}

void vsock_each(struct virtio_vsock *s, void (*f)(struct virtio_vsock *, struct vsock_conn *))
{
	struct vsock_conn *c, *next;
	size_t i;

	for (i = 0; i < VSOCK_BUCKETS; i++) {
		for (c = s->buckets[i]; c; c = next) {
			next = c->next_in_bucket;
			f(s, c);
		}
	}
}

void vsock_on_timer(void *ctx)
{
	struct virtio_vsock *s = ctx;

	virtio_enter(&s->mmio);
	s->timer_at = 0;
	vsock_each(s, check_deadline);
	vsock_serve_rx(s);
	virtio_leave(&s->mmio);
}
