/*
 * Packets: into the buffers that the guest offers, and out of those that it sends. A header from
 * the guest is copied once and every field of it is checked; payload goes between the guest's
 * buffers and the sockets without a copy of ours.
 */
#include <errno.h>
#include <string.h>

#include "vmm/virtio/vsock_dev.h"

#define HEADER ((uint32_t)sizeof(struct virtio_vsock_hdr))
#define PACKETS_A_TURN 256
#define IOVECS_MAX (2 * VIRTQ_CHAIN_MAX) /* of one read */

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
	struct virtq *q = &s->mmio.queues[VSOCK_EVENT];

	if (s->gate == GATE_TO_SEND && virtio_pop(&s->mmio, VSOCK_EVENT, &s->chains[0])) {
		if (!virtq_write(&s->chains[0], 0, &event, sizeof(event))) {
			virtio_break(&s->mmio, "vsock event buffer too small");
			return false;
		}
		/* Read before the guest can see the event: one more buffer is its answer. */
		s->gate_index = virtq_avail_index(q);
		s->gate = GATE_SENT;
		virtq_push(q, s->chains[0].head, sizeof(event));
		virtio_publish(&s->mmio, VSOCK_EVENT);
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

	virtq_write(&s->chains[0], 0, &h, HEADER);
	virtq_push(&s->mmio.queues[VSOCK_RX], s->chains[0].head, HEADER);
	s->rst_at = (s->rst_at + 1) % VSOCK_RSTS_MAX;
	s->rst_len--;
}

/* Payload bytes that a buffer of the guest takes. */
static uint32_t capacity(const struct virtq_chain *c)
{
	uint32_t n = c->in_len - HEADER;

	return n < VSOCK_PACKET_MAX ? n : VSOCK_PACKET_MAX;
}

/*
 * Takes more buffers after the first until `want` bytes have room, and lists their payload's
 * places; returns the number of buffers.
 */
static unsigned gather(struct virtio_vsock *s, uint32_t want, struct iovec *iov, unsigned *n)
{
	unsigned k = 0;

	*n = 0;
	for (;;) {
		struct virtq_chain *c = &s->chains[k];
		uint32_t len = capacity(c) < want ? capacity(c) : want;

		*n += iov_slice(c->iov + c->nout, c->nin, HEADER, len, iov + *n);
		want -= len;
		if (++k == VSOCK_BATCH || !want || !virtio_pop(&s->mmio, VSOCK_RX, c + 1))
			return k;
		if (c[1].in_len <= HEADER || *n + c[1].nin > IOVECS_MAX) {
			virtq_unpop(
				&s->mmio.queues[VSOCK_RX]); /* taken as a first one, or broken */
			return k;
		}
	}
}

/* Moves bytes of a socket into the guest's buffers with one read; the packets they made. */
static unsigned send_data(struct virtio_vsock *s, struct vsock_conn *c)
{
	struct virtq *q = &s->mmio.queues[VSOCK_RX];
	struct iovec iov[IOVECS_MAX];
	unsigned n, k, i, sent = 0;
	uint32_t left;

	k = gather(s, vsock_conn_room(c), iov, &n);
	left = vsock_conn_read(c, iov, n);
	s->stats.bytes_to_guest += left;
	for (; left > 0; sent++) {
		const struct virtq_chain *chain = &s->chains[sent];
		uint32_t len = left < capacity(chain) ? left : capacity(chain);
		struct virtio_vsock_hdr h;

		vsock_conn_data_header(c, &h, len);
		virtq_write(chain, 0, &h, HEADER);
		virtq_push(q, chain->head, HEADER + len);
		left -= len;
	}
	/* The first buffer stays taken for a packet without data. */
	for (i = sent ? sent : 1; i < k; i++)
		virtq_unpop(q);
	return sent;
}

/* Sends what the connection has for the buffer that was taken; the packets. */
static unsigned send_packets(struct virtio_vsock *s, struct vsock_conn *c)
{
	struct virtq *q = &s->mmio.queues[VSOCK_RX];
	struct virtio_vsock_hdr h;
	unsigned sent = vsock_conn_room(c) ? send_data(s, c) : 0;

	if (sent)
		return sent;
	if (!vsock_conn_packet(c, &h)) {
		virtq_unpop(q);
		return 0;
	}
	virtq_write(&s->chains[0], 0, &h, HEADER);
	virtq_push(q, s->chains[0].head, HEADER);
	return 1;
}

/* Takes a buffer of the guest: 1, or 0 when there is none. */
static bool take_rx_buffer(struct virtio_vsock *s)
{
	struct virtq *q = &s->mmio.queues[VSOCK_RX];

	do {
		if (virtio_pop(&s->mmio, VSOCK_RX, &s->chains[0])) {
			if (s->chains[0].in_len > HEADER)
				return true;
			virtio_break(&s->mmio, "vsock buffer too small for a packet");
			return false;
		}
	} while (virtio_can_work(&s->mmio) && virtq_want_kick(q, true));
	return false;
}

void vsock_serve_rx(struct virtio_vsock *s)
{
	int left = PACKETS_A_TURN;

	if (!virtio_can_work(&s->mmio) || !gate_is_open(s))
		return;
	while ((s->rst_len || s->ready) && left > 0 && take_rx_buffer(s)) {
		struct vsock_conn *c = s->ready;

		left--;
		if (s->rst_len) {
			send_rst(s);
			continue;
		}
		vsock_ready_remove(s, c);
		left -= (int)send_packets(s, c);
		vsock_settle(s, c);
	}
	virtio_publish(&s->mmio, VSOCK_RX);
	if (left <= 0)
		virtio_kick(&s->mmio, VSOCK_RX);
}

/* From the guest. */

static void refuse(struct virtio_vsock *s, const struct virtio_vsock_hdr *h)
{
	if (h->op == VIRTIO_VSOCK_OP_RST)
		return;
	s->rsts[(s->rst_at + s->rst_len++) % VSOCK_RSTS_MAX] = (struct rst){
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
	if (c->state != VSOCK_OPEN || !vsock_conn_receive(c, &s->chains[0], h->len))
		return false;
	s->stats.bytes_from_guest += h->len;
	return true;
}

static bool on_shutdown(struct vsock_conn *c, const struct virtio_vsock_hdr *h)
{
	if (c->state != VSOCK_OPEN || (h->flags & ~(uint32_t)VSOCK_ALL_SHUT))
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
		s->stats.resets +=
			c->got_shutdown != VSOCK_ALL_SHUT && c->said_shutdown != VSOCK_ALL_SHUT;
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

	if (!virtq_read(&s->chains[0], 0, &h, HEADER) || h.len > s->chains[0].out_len - HEADER ||
	    h.len > VSOCK_PACKET_MAX || h.src_cid != s->config.guest_cid ||
	    h.dst_cid != VSOCK_HOST_CID) {
		s->stats.malformed++;
		return;
	}
	c = *vsock_find(s, h.dst_port);
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
	vsock_settle(s, c);
}

void vsock_serve_tx(struct virtio_vsock *s)
{
	struct virtq *q = &s->mmio.queues[VSOCK_TX];
	unsigned left = PACKETS_A_TURN;

	do {
		while (left > 0 && s->rst_len < VSOCK_RSTS_MAX &&
		       virtio_pop(&s->mmio, VSOCK_TX, &s->chains[0])) {
			take_packet(s);
			virtq_push(q, s->chains[0].head, 0);
			left--;
		}
	} while (left > 0 && s->rst_len < VSOCK_RSTS_MAX && virtio_can_work(&s->mmio) &&
		 virtq_want_kick(q, true));
	virtio_publish(&s->mmio, VSOCK_TX);
	if (left == 0)
		virtio_kick(&s->mmio, VSOCK_TX);
}
