/*
 * From the guest: a packet's payload goes straight from guest memory into the socket; what the
 * socket does not take waits in the ring. The guest was granted buf_alloc bytes, so the ring never
 * holds more; a guest that sends beyond its credit is reset. fwd_cnt counts the bytes that left
 * for the socket, and the guest is told about it once half of its credit is used up.
 *
 * To the guest: bytes go straight from the socket into the guest's buffers, never more than the
 * guest has room for. `readable` stays set while a lack of credit or buffers keeps bytes waiting;
 * meanwhile the socket is not polled for input.
 *
 * End: end of file on the socket becomes SHUTDOWN(SEND), a socket closed at its other end
 * SHUTDOWN(both). The guest's SHUTDOWN(both) is answered with RST once its bytes are delivered.
 *
 * Counters are 32-bit and wrap, as the protocol has them; only differences mean something.
 */
#include "vmm/virtio/vsock_conn.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "vmm/virtio/queue.h"

#define HEADER ((uint32_t)sizeof(struct virtio_vsock_hdr))
#define BOTH (VIRTIO_VSOCK_SHUTDOWN_RCV | VIRTIO_VSOCK_SHUTDOWN_SEND)

/* The state machine's ends. */

/* Whether bytes of the socket still go to the guest. */
static bool output_open(const struct vsock_conn *c)
{
	return c->state == VSOCK_OPEN && !(c->said_shutdown & VIRTIO_VSOCK_SHUTDOWN_SEND) &&
	       !(c->got_shutdown & VIRTIO_VSOCK_SHUTDOWN_RCV);
}

bool vsock_conn_is_live(const struct vsock_conn *c)
{
	return c->state != VSOCK_RESETTING && c->state != VSOCK_DONE;
}

void vsock_conn_reset(struct vsock_conn *c)
{
	c->ring.len = 0;
	c->deadline = 0;
	if (c->state == VSOCK_CONNECTING && !c->requested) {
		c->state = VSOCK_DONE;
		return;
	}
	c->state = VSOCK_RESETTING;
	c->pending = VSOCK_SEND_RST;
}

void vsock_conn_gone(struct vsock_conn *c)
{
	c->pending = 0;
	c->deadline = 0;
	if (c->ring.len > 0) {
		c->state = VSOCK_DRAINING;
		return;
	}
	c->state = VSOCK_DONE;
}

/* Tells the guest that a direction is over. */
static void say_shutdown(struct vsock_conn *c, uint32_t flags)
{
	if ((c->said_shutdown | flags) == c->said_shutdown)
		return;
	c->said_shutdown |= flags;
	if (c->state == VSOCK_OPEN)
		c->pending |= VSOCK_SEND_SHUTDOWN;
}

/* The guest sends no more, and everything it sent is delivered. */
static void finish_input(struct vsock_conn *c)
{
	if (c->state == VSOCK_DRAINING) {
		vsock_conn_gone(c);
		return;
	}
	if (!(c->got_shutdown & VIRTIO_VSOCK_SHUTDOWN_SEND))
		return;
	if (c->got_shutdown == BOTH)
		vsock_conn_reset(c);
	else if (!c->discard)
		(void)shutdown(c->fd, SHUT_WR); /* fails only when the other end is gone already */
}

void vsock_conn_shutdown(struct vsock_conn *c, uint32_t flags)
{
	uint32_t news = flags & ~c->got_shutdown;

	c->got_shutdown |= flags;
	if (news & VIRTIO_VSOCK_SHUTDOWN_RCV)
		(void)shutdown(c->fd, SHUT_RD); /* likewise */
	if (news && c->ring.len == 0)
		finish_input(c);
}

void vsock_conn_hang_up(struct vsock_conn *c)
{
	c->hung_up = true;
	if (c->state == VSOCK_CONNECTING) {
		vsock_conn_reset(c);
		return;
	}
	/* Bytes that were written before are still to be read: then SHUTDOWN waits for them. */
	c->readable = true;
	if (!output_open(c))
		say_shutdown(c, BOTH);
}

/* Credit. */

bool vsock_conn_take_credit(struct vsock_conn *c, const struct virtio_vsock_hdr *h)
{
	uint32_t forward = h->fwd_cnt - c->peer_fwd_cnt;

	c->peer_buf_alloc = h->buf_alloc;
	if (forward <= c->tx_cnt - c->peer_fwd_cnt)
		c->peer_fwd_cnt = h->fwd_cnt;
	else if (forward < 1u << 31)
		return false;
	/* else an older count: two packets of the guest overtook each other */
	return true;
}

/* Bytes that the guest has room for. */
static uint32_t peer_credit(const struct vsock_conn *c)
{
	uint32_t in_flight = c->tx_cnt - c->peer_fwd_cnt;

	return in_flight < c->peer_buf_alloc ? c->peer_buf_alloc - in_flight : 0;
}

static void forwarded(struct vsock_conn *c, uint32_t n)
{
	c->fwd_cnt += n;
	if (c->got_shutdown & VIRTIO_VSOCK_SHUTDOWN_SEND)
		return; /* it needs no more credit */
	if (c->state == VSOCK_OPEN && c->fwd_cnt != c->told_fwd_cnt &&
	    c->rx_cnt - c->told_fwd_cnt >= c->buf_alloc / 2)
		c->pending |= VSOCK_SEND_CREDIT;
}

/* From the guest. */

static void ring_put(struct vsock_conn *c, const struct iovec *iov, unsigned n)
{
	struct vsock_ring *r = &c->ring;
	unsigned i;

	for (i = 0; i < n; i++) {
		const uint8_t *p = iov[i].iov_base;
		uint32_t left = (uint32_t)iov[i].iov_len;

		while (left > 0) {
			uint32_t to = (r->at + r->len) % c->buf_alloc;
			uint32_t k = c->buf_alloc - to < left ? c->buf_alloc - to : left;

			memcpy(r->data + to, p, k);
			p += k;
			left -= k;
			r->len += k;
		}
	}
}

static unsigned ring_iov(const struct vsock_conn *c, struct iovec iov[2])
{
	const struct vsock_ring *r = &c->ring;
	uint32_t first = c->buf_alloc - r->at;

	if (first >= r->len) {
		iov[0] = (struct iovec){ .iov_base = r->data + r->at, .iov_len = r->len };
		return 1;
	}
	iov[0] = (struct iovec){ .iov_base = r->data + r->at, .iov_len = first };
	iov[1] = (struct iovec){ .iov_base = r->data, .iov_len = r->len - first };
	return 2;
}

/*
 * Writes to the socket without waiting; the bytes taken. When nobody reads any more, everything
 * counts as taken from then on and the guest learns of it.
 */
static uint32_t socket_write(struct vsock_conn *c, struct iovec *iov, unsigned n, uint32_t len)
{
	struct msghdr m = { .msg_iov = iov, .msg_iovlen = n };
	ssize_t r;

	if (c->discard || len == 0)
		return len;
	do {
		r = sendmsg(c->fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
	} while (r < 0 && errno == EINTR);
	if (r >= 0)
		return (uint32_t)r;
	if (errno == EAGAIN || errno == EWOULDBLOCK)
		return 0;
	c->discard = true;
	say_shutdown(c, VIRTIO_VSOCK_SHUTDOWN_RCV);
	return len;
}

bool vsock_conn_receive(struct vsock_conn *c, const struct virtq_chain *chain, uint32_t len)
{
	struct iovec iov[VIRTQ_CHAIN_MAX];
	uint32_t taken = 0;
	unsigned n;

	if (c->got_shutdown & VIRTIO_VSOCK_SHUTDOWN_SEND)
		return false;
	if (len > c->buf_alloc - (c->rx_cnt - c->fwd_cnt))
		return false;
	c->rx_cnt += len;
	n = iov_slice(chain->iov, chain->nout, HEADER, len, iov);
	if (c->ring.len == 0)
		taken = socket_write(c, iov, n, len);
	if (taken < len) {
		if (!c->ring.data && !(c->ring.data = malloc(c->buf_alloc)))
			return false;
		n = iov_slice(chain->iov, chain->nout, HEADER + taken, len - taken, iov);
		ring_put(c, iov, n);
	}
	forwarded(c, taken);
	return true;
}

void vsock_conn_flush(struct vsock_conn *c)
{
	struct iovec iov[2];
	uint32_t n;

	if (c->ring.len == 0)
		return;
	n = socket_write(c, iov, ring_iov(c, iov), c->ring.len);
	c->ring.at = (c->ring.at + n) % c->buf_alloc;
	c->ring.len -= n;
	forwarded(c, n);
	if (c->ring.len == 0)
		finish_input(c);
}

/* To the guest. */

uint32_t vsock_conn_room(const struct vsock_conn *c)
{
	if (!output_open(c) || !c->readable)
		return 0;
	return peer_credit(c);
}

bool vsock_conn_has_packet(const struct vsock_conn *c)
{
	return c->pending || vsock_conn_room(c) > 0;
}

static int header(struct vsock_conn *c, struct virtio_vsock_hdr *h, uint16_t op, uint32_t flags,
		  uint32_t len)
{
	*h = (struct virtio_vsock_hdr){
		.src_cid = VSOCK_HOST_CID,
		.dst_cid = c->guest_cid,
		.src_port = c->local_port,
		.dst_port = c->peer_port,
		.len = len,
		.type = VIRTIO_VSOCK_TYPE_STREAM,
		.op = op,
		.flags = flags,
		.buf_alloc = c->buf_alloc,
		.fwd_cnt = c->fwd_cnt,
	};
	c->told_fwd_cnt = c->fwd_cnt;
	c->pending &= ~(unsigned)VSOCK_SEND_CREDIT;
	return 1;
}

/* Whether the other end of the socket is closed, not just shut down for writing. */
static bool socket_hung_up(int fd)
{
	struct pollfd p = { .fd = fd };

	return poll(&p, 1, 0) == 1 && (p.revents & POLLHUP);
}

uint32_t vsock_conn_read(struct vsock_conn *c, struct iovec *iov, unsigned n)
{
	struct msghdr m = { .msg_iov = iov, .msg_iovlen = n };
	ssize_t r;

	do {
		r = recvmsg(c->fd, &m, MSG_DONTWAIT);
	} while (r < 0 && errno == EINTR);
	if (r > 0)
		return (uint32_t)r;
	c->readable = false;
	if (r < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
		return 0;
	/* An error of a unix stream is a peer that closed with bytes unread. */
	if (r < 0 || socket_hung_up(c->fd)) {
		c->hung_up = true;
		say_shutdown(c, BOTH);
	} else {
		say_shutdown(c, VIRTIO_VSOCK_SHUTDOWN_SEND);
	}
	return 0;
}

void vsock_conn_data_header(struct vsock_conn *c, struct virtio_vsock_hdr *h, uint32_t len)
{
	c->tx_cnt += len;
	header(c, h, VIRTIO_VSOCK_OP_RW, 0, len);
}

int vsock_conn_packet(struct vsock_conn *c, struct virtio_vsock_hdr *h)
{
	if (c->pending & VSOCK_SEND_REQUEST) {
		c->pending &= ~(unsigned)VSOCK_SEND_REQUEST;
		c->requested = true;
		return header(c, h, VIRTIO_VSOCK_OP_REQUEST, 0, 0);
	}
	if (c->pending & VSOCK_SEND_RST) {
		c->pending = 0;
		c->state = VSOCK_DONE;
		return header(c, h, VIRTIO_VSOCK_OP_RST, 0, 0);
	}
	if (c->pending & VSOCK_SEND_SHUTDOWN) {
		c->pending &= ~(unsigned)VSOCK_SEND_SHUTDOWN;
		return header(c, h, VIRTIO_VSOCK_OP_SHUTDOWN, c->said_shutdown, 0);
	}
	if (c->pending & VSOCK_SEND_CREDIT)
		return header(c, h, VIRTIO_VSOCK_OP_CREDIT_UPDATE, 0, 0);
	return 0;
}

uint32_t vsock_conn_events(const struct vsock_conn *c, bool *any)
{
	uint32_t events = 0;

	if (c->ring.len > 0 && !c->discard)
		events |= EPOLLOUT;
	if (output_open(c) && !c->readable)
		events |= EPOLLIN;
	*any = events || !c->hung_up;
	return events;
}
