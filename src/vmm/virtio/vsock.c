/*
 * The device: three queues, a table of connections, and a list of those that have a packet for the
 * guest (`ready`), served in turn as the guest offers buffers. A connection is touched, then
 * settle()d: that alone puts it on the list, changes what its socket is polled for, reports its
 * connect, and frees it.
 *
 * After a restore the guest still believes in its old connections. It is sent TRANSPORT_RESET, and
 * nothing else until it has taken that event's buffer back, because it drops every connection when
 * it handles the event, new ones too (`gate`).
 *
 * Threads: everything but registers runs on the I/O loop; the lock is for a reset by a vCPU. A
 * callback of the loop takes the lock with virtio_enter(), in which forget() may drop connections:
 * `epoch` tells.
 *
 * Bounds: VSOCK_CONNECTIONS_MAX connections; a ring each of at most the granted credit, large ones
 * within VSOCK_BUF_BUDGET; RSTS_MAX answers to packets of unknown connections, past which the
 * guest's packets wait.
 */
#include "vmm/virtio/vsock.h"

#include <errno.h>
#include <linux/virtio_ids.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/loop.h"
#include "vmm/virtio/device.h"
#include "vmm/virtio/vsock_conn.h"

enum { RX, TX, EVENT, QUEUES };

#define QUEUE_SIZE VIRTQ_SIZE_MAX
#define HEADER ((uint32_t)sizeof(struct virtio_vsock_hdr))
#define PACKETS_A_TURN 256
#define RSTS_MAX 64
#define BUCKETS 1024 /* local ports count up, so buckets hold one connection each */
#define PORT_FIRST 1024u
#define PORT_LAST 0xfffffffeu
#define LINGER_NS (30 * NSEC_PER_SEC) /* for the guest to close what the host has closed */
#define ALL_SHUT (VIRTIO_VSOCK_SHUTDOWN_RCV | VIRTIO_VSOCK_SHUTDOWN_SEND)

enum gate { GATE_OPEN, GATE_TO_SEND, GATE_SENT };

struct rst {
	uint32_t local_port, peer_port;
	uint16_t type;
};

struct virtio_vsock {
	struct virtio_mmio mmio;
	struct virtio_vsock_config config;
	struct loop *loop;
	struct loop_source *timer;
	uint64_t timer_at;
	struct vsock_conn *buckets[BUCKETS];
	struct vsock_conn *ready, **ready_end;
	struct rst rsts[RSTS_MAX];
	unsigned rst_at, rst_len;
	uint32_t next_port;
	uint32_t granted; /* bytes of credit in large buffers */
	unsigned epoch;	  /* counts forget() */
	enum gate gate;
	uint16_t gate_index; /* the event queue's available index when the event was sent */
	struct vsock_completion *done, **done_end;
	struct virtio_vsock_stats stats;
	struct virtq_chain chain;
};

/* The table. */

static struct vsock_conn **find(struct virtio_vsock *s, uint32_t local_port)
{
	struct vsock_conn **p = &s->buckets[local_port % BUCKETS];

	while (*p && (*p)->local_port != local_port)
		p = &(*p)->next_in_bucket;
	return p;
}

static uint32_t take_port(struct virtio_vsock *s)
{
	uint32_t port;

	do {
		port = s->next_port;
		s->next_port = port == PORT_LAST ? PORT_FIRST : port + 1;
	} while (*find(s, port));
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

static void ready_remove(struct virtio_vsock *s, struct vsock_conn *c)
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

static void conn_free(struct virtio_vsock *s, struct vsock_conn *c)
{
	*find(s, c->local_port) = c->next_in_bucket;
	ready_remove(s, c);
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

static void on_timer(void *ctx);

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

static void settle(struct virtio_vsock *s, struct vsock_conn *c)
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
		conn_free(s, c);
		return;
	}
	if (c->state == VSOCK_OPEN && c->said_shutdown == ALL_SHUT && !c->deadline)
		c->deadline = clock_mono_ns() + LINGER_NS;
	if (c->deadline)
		arm(s, c->deadline);
	if (vsock_conn_has_packet(c))
		ready_add(s, c);
}

static void reset(struct virtio_vsock *s, struct vsock_conn *c)
{
	s->stats.resets++;
	vsock_conn_reset(c);
}

/* To the guest. */

/* Whether packets may go: not between a restore and the guest's answer to TRANSPORT_RESET. */
static bool gate_is_open(struct virtio_vsock *s)
{
	struct virtio_vsock_event event = { .id = VIRTIO_VSOCK_EVENT_TRANSPORT_RESET };
	struct virtq *q = &s->mmio.queues[EVENT];

	if (s->gate == GATE_TO_SEND && virtio_pop(&s->mmio, EVENT, &s->chain)) {
		if (!virtq_write(&s->chain, 0, &event, sizeof(event))) {
			virtio_break(&s->mmio, "vsock event buffer too small");
			return false;
		}
		/* Read before the guest can see the event: one more buffer is its answer. */
		s->gate_index = virtq_avail_index(q);
		s->gate = GATE_SENT;
		virtq_push(q, s->chain.head, sizeof(event));
		virtio_publish(&s->mmio, EVENT);
	}
	if (s->gate != GATE_OPEN)
		virtq_want_kick(q, true);
	if (s->gate == GATE_SENT && virtq_avail_index(q) != s->gate_index)
		s->gate = GATE_OPEN;
	return s->gate == GATE_OPEN;
}

/* Writes a packet without payload for an unknown connection. */
static void send_rst(struct virtio_vsock *s)
{
	const struct rst *r = &s->rsts[s->rst_at];
	struct virtio_vsock_hdr h = {
		.src_cid = VSOCK_HOST_CID,
		.dst_cid = s->config.guest_cid,
		.src_port = r->local_port,
		.dst_port = r->peer_port,
		.type = r->type,
		.op = VIRTIO_VSOCK_OP_RST,
	};

	virtq_write(&s->chain, 0, &h, HEADER);
	virtq_push(&s->mmio.queues[RX], s->chain.head, HEADER);
	s->rst_at = (s->rst_at + 1) % RSTS_MAX;
	s->rst_len--;
}

/* Fills the chain with the next packet of a connection; whether it had one. */
static bool send_packet(struct virtio_vsock *s, struct vsock_conn *c)
{
	struct iovec iov[VIRTQ_CHAIN_MAX];
	struct virtio_vsock_hdr h;
	unsigned n = iov_slice(s->chain.iov + s->chain.nout, s->chain.nin, HEADER,
			       s->chain.in_len - HEADER, iov);

	if (!vsock_conn_packet(c, &h, iov, n, s->chain.in_len - HEADER))
		return false;
	virtq_write(&s->chain, 0, &h, HEADER);
	virtq_push(&s->mmio.queues[RX], s->chain.head, HEADER + h.len);
	s->stats.bytes_to_guest += h.len;
	return true;
}

/* Takes a buffer of the guest: 1, or 0 when there is none. */
static bool take_rx_buffer(struct virtio_vsock *s)
{
	struct virtq *q = &s->mmio.queues[RX];

	do {
		if (virtio_pop(&s->mmio, RX, &s->chain)) {
			if (s->chain.in_len > HEADER)
				return true;
			virtio_break(&s->mmio, "vsock buffer too small for a packet");
			return false;
		}
	} while (virtio_can_work(&s->mmio) && virtq_want_kick(q, true));
	return false;
}

static void serve_rx(struct virtio_vsock *s)
{
	unsigned left = PACKETS_A_TURN;

	if (!virtio_can_work(&s->mmio) || !gate_is_open(s))
		return;
	while ((s->rst_len || s->ready) && left > 0 && take_rx_buffer(s)) {
		struct vsock_conn *c = s->ready;

		left--;
		if (s->rst_len) {
			send_rst(s);
			continue;
		}
		ready_remove(s, c);
		if (!send_packet(s, c))
			virtq_unpop(&s->mmio.queues[RX]);
		settle(s, c);
	}
	virtio_publish(&s->mmio, RX);
	if (left == 0)
		virtio_kick(&s->mmio, RX);
}

/* From the guest. */

static void refuse(struct virtio_vsock *s, const struct virtio_vsock_hdr *h)
{
	if (h->op == VIRTIO_VSOCK_OP_RST)
		return;
	s->rsts[(s->rst_at + s->rst_len++) % RSTS_MAX] = (struct rst){
		.local_port = h->dst_port,
		.peer_port = h->src_port,
		.type = h->type,
	};
}

static bool on_response(struct virtio_vsock *s, struct vsock_conn *c)
{
	(void)s;
	if (c->state != VSOCK_CONNECTING || !c->requested)
		return false;
	c->state = VSOCK_OPEN;
	c->deadline = 0;
	c->readable = true;
	c->completion->result = 0;
	return true;
}

static bool on_data(struct virtio_vsock *s, struct vsock_conn *c, const struct virtio_vsock_hdr *h)
{
	if (c->state != VSOCK_OPEN || !vsock_conn_receive(c, &s->chain, h->len))
		return false;
	s->stats.bytes_from_guest += h->len;
	return true;
}

static bool on_shutdown(struct vsock_conn *c, const struct virtio_vsock_hdr *h)
{
	if (c->state != VSOCK_OPEN || (h->flags & ~(uint32_t)ALL_SHUT))
		return false;
	vsock_conn_shutdown(c, h->flags);
	return true;
}

static bool on_credit(struct vsock_conn *c, const struct virtio_vsock_hdr *h)
{
	if (c->state != VSOCK_OPEN)
		return false;
	if (h->op == VIRTIO_VSOCK_OP_CREDIT_REQUEST)
		c->pending |= VSOCK_SEND_CREDIT;
	return true;
}

/* A packet of a known connection; false when the guest may not send it. */
static bool on_packet(struct virtio_vsock *s, struct vsock_conn *c,
		      const struct virtio_vsock_hdr *h)
{
	if (h->op == VIRTIO_VSOCK_OP_RST) {
		if (c->state == VSOCK_CONNECTING)
			c->completion->result = -ECONNREFUSED;
		s->stats.resets += c->got_shutdown != ALL_SHUT && c->said_shutdown != ALL_SHUT;
		vsock_conn_gone(c);
		return true;
	}
	if (h->type != VIRTIO_VSOCK_TYPE_STREAM || (h->len && h->op != VIRTIO_VSOCK_OP_RW) ||
	    !vsock_conn_take_credit(c, h))
		return false;
	switch (h->op) {
	case VIRTIO_VSOCK_OP_RESPONSE:
		return on_response(s, c);
	case VIRTIO_VSOCK_OP_RW:
		return on_data(s, c, h);
	case VIRTIO_VSOCK_OP_SHUTDOWN:
		return on_shutdown(c, h);
	case VIRTIO_VSOCK_OP_CREDIT_UPDATE:
	case VIRTIO_VSOCK_OP_CREDIT_REQUEST:
		return on_credit(c, h);
	default:
		return false;
	}
}

/* The packet in the chain. Nothing of it is believed before it was checked here or in on_packet. */
static void take_packet(struct virtio_vsock *s)
{
	struct virtio_vsock_hdr h;
	struct vsock_conn *c;

	if (!virtq_read(&s->chain, 0, &h, HEADER) || h.len > s->chain.out_len - HEADER ||
	    h.len > VSOCK_PACKET_MAX || h.src_cid != s->config.guest_cid ||
	    h.dst_cid != VSOCK_HOST_CID) {
		s->stats.malformed++;
		return;
	}
	c = *find(s, h.dst_port);
	if (!c || c->peer_port != h.src_port || c->state == VSOCK_DRAINING) {
		refuse(s, &h);
		return;
	}
	if (c->state == VSOCK_RESETTING) /* it has not seen our RST yet */
		return;
	if (!on_packet(s, c, &h)) {
		s->stats.malformed++;
		if (c->state == VSOCK_CONNECTING)
			c->completion->result = -ECONNREFUSED;
		reset(s, c);
	}
	settle(s, c);
}

static void serve_tx(struct virtio_vsock *s)
{
	struct virtq *q = &s->mmio.queues[TX];
	unsigned left = PACKETS_A_TURN;

	do {
		while (left > 0 && s->rst_len < RSTS_MAX && virtio_pop(&s->mmio, TX, &s->chain)) {
			take_packet(s);
			virtq_push(q, s->chain.head, 0);
			left--;
		}
	} while (left > 0 && s->rst_len < RSTS_MAX && virtio_can_work(&s->mmio) &&
		 virtq_want_kick(q, true));
	virtio_publish(&s->mmio, TX);
	if (left == 0)
		virtio_kick(&s->mmio, TX);
}

static void vsock_kick(void *dev, unsigned queue)
{
	struct virtio_vsock *s = dev;
	bool full = s->rst_len == RSTS_MAX;

	if (queue == TX)
		serve_tx(s);
	serve_rx(s);
	if (full && s->rst_len < RSTS_MAX)
		virtio_kick(&s->mmio, TX); /* packets waited for room */
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
		settle(s, c);
		serve_rx(s);
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
	settle(s, c);
}

static void on_timer(void *ctx)
{
	struct virtio_vsock *s = ctx;
	uint64_t now = clock_mono_ns();
	struct vsock_conn *c, *next;
	size_t i;

	virtio_enter(&s->mmio);
	s->timer_at = 0;
	for (i = 0; i < BUCKETS; i++) {
		for (c = s->buckets[i]; c; c = next) {
			next = c->next_in_bucket;
			if (c->deadline && c->deadline <= now)
				expire(s, c);
			else if (c->deadline)
				arm(s, c->deadline);
		}
	}
	serve_rx(s);
	virtio_leave(&s->mmio);
}

/* What the transport calls. */

/*
 * The guest lost its connections: what it had sent is delivered, and what was being connected
 * starts over once the driver is there again.
 */
static void vsock_forget(void *dev)
{
	struct virtio_vsock *s = dev;
	struct vsock_conn *c, *next;
	size_t i;

	s->epoch++;
	s->rst_len = 0;
	s->gate = GATE_OPEN;
	for (i = 0; i < BUCKETS; i++) {
		for (c = s->buckets[i]; c; c = next) {
			next = c->next_in_bucket;
			if (c->state == VSOCK_CONNECTING) {
				c->pending = VSOCK_SEND_REQUEST;
				c->requested = false;
			} else {
				vsock_conn_gone(c);
				s->stats.resets++;
			}
			settle(s, c);
		}
	}
}

static void vsock_paused(void *dev, bool paused)
{
	struct virtio_vsock *s = dev;
	struct vsock_conn *c, *next;
	size_t i;

	(void)paused; /* watch() looks at the transport's flag */
	for (i = 0; i < BUCKETS; i++) {
		for (c = s->buckets[i]; c; c = next) {
			next = c->next_in_bucket;
			settle(s, c);
		}
	}
}

static void vsock_unlocked(void *dev)
{
	struct virtio_vsock *s = dev;

	while (s->done) {
		struct vsock_completion *done = s->done;

		s->done = done->next;
		if (!s->done)
			s->done_end = &s->done;
		done->fn(done->ctx, done->result);
		free(done);
	}
}

static int vsock_attach(void *dev, struct loop *l, struct err *e)
{
	struct virtio_vsock *s = dev;

	s->loop = l;
	return loop_add_timer(l, on_timer, s, &s->timer, e);
}

struct vsock_saved {
	uint32_t version, next_port;
} __attribute__((packed));

static int vsock_save(void *dev, struct buf *b, struct err *e)
{
	struct virtio_vsock *s = dev;
	struct vsock_saved saved = { .version = 1, .next_port = s->next_port };
	int r = buf_add(b, &saved, sizeof(saved));

	return r < 0 ? err_errno(e, -r, "save vsock device") : 0;
}

static int vsock_restore(void *dev, const void *p, size_t n, struct err *e)
{
	struct virtio_vsock *s = dev;
	struct vsock_saved saved;

	if (n != sizeof(saved))
		return err_set(e, "state_invalid", EBADMSG, "vsock state of wrong length");
	memcpy(&saved, p, sizeof(saved));
	if (saved.version != 1)
		return err_set(e, "state_mismatch", EINVAL, "vsock state of version %u",
			       saved.version);
	if (saved.next_port < PORT_FIRST || saved.next_port > PORT_LAST)
		return err_set(e, "state_invalid", EBADMSG, "vsock state with port %u",
			       saved.next_port);
	s->next_port = saved.next_port;
	s->gate = GATE_TO_SEND;
	return 0;
}

static const struct virtio_ops vsock_ops = {
	.kick = vsock_kick,
	.forget = vsock_forget,
	.paused = vsock_paused,
	.unlocked = vsock_unlocked,
	.attach = vsock_attach,
	.save = vsock_save,
	.restore = vsock_restore,
};

/* What the VMM calls. */

int virtio_vsock_new(struct guest_mem *mem, uint64_t cid, struct virtio_vsock **out, struct err *e)
{
	struct virtio_spec spec = {
		.ops = &vsock_ops,
		.device_id = VIRTIO_ID_VSOCK,
		.nqueues = QUEUES,
		.queue_size = QUEUE_SIZE,
		.config_len = sizeof(struct virtio_vsock_config),
	};
	_cleanup_virtio_vsock_ struct virtio_vsock *s = NULL;
	int r;

	if (cid <= VSOCK_HOST_CID || cid >= UINT32_MAX)
		return err_set(e, "bad_request", EINVAL, "vsock context id %llu: not in 3..2^32-2",
			       (unsigned long long)cid);
	s = calloc(1, sizeof(*s));
	if (!s)
		return err_errno(e, ENOMEM, "vsock device");
	s->config.guest_cid = cid;
	s->next_port = PORT_FIRST;
	s->ready_end = &s->ready;
	s->done_end = &s->done;
	spec.config = &s->config;
	r = virtio_mmio_init(&s->mmio, &spec, s, mem, e);
	if (r < 0)
		return r;
	*out = steal_ptr(s);
	return 0;
}

void virtio_vsock_free(struct virtio_vsock *s)
{
	size_t i;

	if (!s)
		return;
	for (i = 0; i < BUCKETS; i++)
		while (s->buckets[i])
			conn_free(s, s->buckets[i]);
	loop_remove(s->timer);
	vsock_unlocked(s);
	virtio_mmio_fini(&s->mmio);
	free(s);
}

struct virtio_mmio *virtio_vsock_mmio(struct virtio_vsock *s)
{
	return &s->mmio;
}

static uint32_t grant(struct virtio_vsock *s)
{
	if (s->granted + VSOCK_BUF_LARGE > VSOCK_BUF_BUDGET)
		return VSOCK_BUF_SMALL;
	s->granted += VSOCK_BUF_LARGE;
	return VSOCK_BUF_LARGE;
}

int virtio_vsock_connect(struct virtio_vsock *s, uint32_t port, int fd, unsigned timeout_ms,
			 virtio_vsock_connected_fn cb, void *ctx, struct err *e)
{
	_cleanup_free_ struct vsock_completion *done = NULL;
	struct vsock_conn *c;

	if (s->stats.connections == VSOCK_CONNECTIONS_MAX)
		return err_set(e, "too_many_connections", EMFILE,
			       "the guest has %d open streams already", VSOCK_CONNECTIONS_MAX);
	done = calloc(1, sizeof(*done));
	c = calloc(1, sizeof(*c));
	if (!done || !c) {
		free(c);
		return err_errno(e, ENOMEM, "vsock connection");
	}
	*done = (struct vsock_completion){ .fn = cb, .ctx = ctx, .result = -ECANCELED };
	virtio_enter(&s->mmio);
	*c = (struct vsock_conn){
		.dev = s,
		.state = VSOCK_CONNECTING,
		.local_port = take_port(s),
		.peer_port = port,
		.guest_cid = s->config.guest_cid,
		.fd = fd,
		.deadline = clock_mono_ns() + timeout_ms * NSEC_PER_MSEC,
		.pending = VSOCK_SEND_REQUEST,
		.buf_alloc = grant(s),
		.completion = steal_ptr(done),
	};
	*find(s, c->local_port) = c;
	s->stats.connections++;
	settle(s, c);
	serve_rx(s);
	virtio_leave(&s->mmio);
	return 0;
}

void virtio_vsock_stats(struct virtio_vsock *s, struct virtio_vsock_stats *out)
{
	*out = s->stats;
}
