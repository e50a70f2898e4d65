/*
 * The device: three queues, a table of connections, and a list of those that have a packet for the
 * guest (`ready`), served in turn as the guest offers buffers. A connection is touched, then
 * vsock_settle()d: that alone puts it on the list, changes what its socket is polled for, reports
 * its connect, and frees it.
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
 * within VSOCK_BUF_BUDGET; VSOCK_RSTS_MAX answers to packets of unknown connections, past which the
 * guest's packets wait.
 */
#include "vmm/virtio/vsock.h"

#include <errno.h>
#include <linux/virtio_ids.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/loop.h"
#include "vmm/virtio/device.h"
#include "vmm/virtio/vsock_dev.h"

#define QUEUE_SIZE VIRTQ_SIZE_MAX

/* What the transport calls. */

static void vsock_kick(void *dev, unsigned queue)
{
	struct virtio_vsock *s = dev;
	bool full = s->rst_len == VSOCK_RSTS_MAX;

	if (queue == VSOCK_TX)
		vsock_serve_tx(s);
	vsock_serve_rx(s);
	if (full && s->rst_len < VSOCK_RSTS_MAX)
		virtio_kick(&s->mmio, VSOCK_TX); /* packets waited for room */
}

/*
 * The guest lost its connections: what it had sent is delivered, and what was being connected
 * starts over once the driver is there again.
 */
static void forget_conn(struct virtio_vsock *s, struct vsock_conn *c)
{
	if (c->state == VSOCK_CONNECTING) {
		c->pending = VSOCK_SEND_REQUEST;
		c->requested = false;
	} else {
		vsock_conn_gone(c);
		s->stats.resets++;
	}
	vsock_settle(s, c);
}

static void vsock_forget(void *dev)
{
	struct virtio_vsock *s = dev;

	s->epoch++;
	s->rst_len = 0;
	s->gate = GATE_OPEN;
	vsock_each(s, forget_conn);
}

static void vsock_paused(void *dev, bool paused)
{
	(void)paused;		       /* settling looks at the transport's flag: */
	vsock_each(dev, vsock_settle); /* a paused device polls no socket */
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
	return loop_add_timer(l, vsock_on_timer, s, &s->timer, e);
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
	if (saved.next_port < VSOCK_PORT_FIRST || saved.next_port > VSOCK_PORT_LAST)
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
		.nqueues = VSOCK_QUEUES,
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
	s->next_port = VSOCK_PORT_FIRST;
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
	for (i = 0; i < VSOCK_BUCKETS; i++)
		while (s->buckets[i])
			vsock_free_conn(s, s->buckets[i]);
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
		.local_port = vsock_take_port(s),
		.peer_port = port,
		.guest_cid = s->config.guest_cid,
		.fd = fd,
		.deadline = clock_mono_ns() + timeout_ms * NSEC_PER_MSEC,
		.pending = VSOCK_SEND_REQUEST,
		.buf_alloc = grant(s),
		.completion = steal_ptr(done),
	};
	*vsock_find(s, c->local_port) = c;
	s->stats.connections++;
	vsock_settle(s, c);
	vsock_serve_rx(s);
	virtio_leave(&s->mmio);
	return 0;
}

void virtio_vsock_stats(struct virtio_vsock *s, struct virtio_vsock_stats *out)
{
	*out = s->stats;
}
