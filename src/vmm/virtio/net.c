/*
 * To the tap a frame goes straight from guest memory, but its header: that is copied, checked
 * against what the driver negotiated, and only the copy is used, so the guest cannot change it
 * after the check. From the tap a frame is read into one buffer of ours and copied into as many of
 * the guest's as it needs; until there are enough it stays there (`held`) and the tap is not
 * polled. A held frame is lost in a save, as frames may be.
 *
 * Threads: the I/O loop's, as in device.h.
 */
#include "vmm/virtio/net.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <linux/virtio_ids.h>
#include <linux/virtio_net.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/loop.h"
#include "vmm/virtio/device.h"

enum { RX, TX, QUEUES };

#define QUEUE_SIZE VIRTQ_SIZE_MAX
#define HEADER ((uint32_t)sizeof(struct virtio_net_hdr_v1))
#define FRAME_MIN 14u		 /* an Ethernet header */
#define FRAME_MAX (65535u + 18u) /* the largest IP packet with a tagged Ethernet header */
#define PACKETS_A_TURN 256

#define BIT(name) (1ULL << VIRTIO_NET_F_##name)

struct virtio_net {
	struct virtio_mmio mmio;
	struct virtio_net_setup setup;
	struct virtio_net_config config;
	struct loop_source *source;
	uint32_t watched; /* events of source */
	bool offloads_set;
	bool tap_gone;
	bool rx_starved; /* a frame waits for buffers of the guest */
	bool tx_full;	 /* the tap takes nothing for now */
	uint32_t held;	 /* bytes in packet, header included; 0: none */
	struct virtio_net_stats stats;
	struct virtq_chain chain, first;
	_Alignas(8) uint8_t packet[HEADER + FRAME_MAX];
};

static int tap_set_offloads(int fd, unsigned tun_f)
{
	return ioctl(fd, TUNSETOFFLOAD, (unsigned long)tun_f) < 0 ? -errno : 0;
}

/* Has the tap hand over what the guest can take: at its driver's start and after a restore. */
static void set_offloads(struct virtio_net *n)
{
	unsigned f = 0;
	int r;

	if (n->offloads_set)
		return;
	n->offloads_set = true;
	if (virtio_has_feature(&n->mmio, VIRTIO_NET_F_GUEST_CSUM)) {
		f |= TUN_F_CSUM;
		f |= virtio_has_feature(&n->mmio, VIRTIO_NET_F_GUEST_TSO4) ? TUN_F_TSO4 : 0;
		f |= virtio_has_feature(&n->mmio, VIRTIO_NET_F_GUEST_TSO6) ? TUN_F_TSO6 : 0;
	}
	r = n->setup.set_offloads(n->setup.fd, f);
	if (r < 0)
		log_error("net: offloads %#x: %s", f, strerror(-r));
}

/* Polling. */

static void on_tap(void *ctx, int fd, uint32_t events);

static void unwatch(struct virtio_net *n)
{
	loop_remove(n->source);
	n->source = NULL;
}

static void watch(struct virtio_net *n)
{
	uint32_t events = (n->rx_starved ? 0 : EPOLLIN) | (n->tx_full ? EPOLLOUT : 0u);
	struct err e;

	if (!virtio_can_work(&n->mmio) || n->tap_gone || !events) {
		unwatch(n);
		return;
	}
	if (n->source && n->watched == events)
		return;
	n->watched = events;
	if (n->source && loop_set_events(n->source, events) == 0)
		return;
	unwatch(n);
	if (loop_add_fd(n->mmio.loop, n->setup.fd, events, on_tap, n, &n->source, &e) < 0) {
		log_err(LOG_ERROR, &e, "net: tap lost");
		n->source = NULL;
	}
}

/* From the tap to the guest. */

/* Reads the next frame into packet; whether there is one. */
static bool read_frame(struct virtio_net *n)
{
	ssize_t r;

	do {
		r = read(n->setup.fd, n->packet, sizeof(n->packet));
	} while (r < 0 && errno == EINTR);
	if (r < 0 && errno != EAGAIN) {
		log_error("net: tap: %s", strerror(errno));
		n->tap_gone = true;
	}
	if (r < (ssize_t)(HEADER + FRAME_MIN))
		return false;
	n->held = (uint32_t)r;
	return true;
}

/*
 * Copies the held frame into buffers of the guest. Returns how many it took, 0 when there are not
 * enough yet, -EMSGSIZE when it can never fit.
 */
static int fill_buffers(struct virtio_net *n)
{
	bool mergeable = virtio_has_feature(&n->mmio, VIRTIO_NET_F_MRG_RXBUF);
	struct virtq *q = &n->mmio.queues[RX];
	struct virtio_net_hdr_v1 *h = (struct virtio_net_hdr_v1 *)(void *)n->packet;
	uint16_t heads[QUEUE_SIZE];
	uint32_t lens[QUEUE_SIZE], done = 0;
	unsigned k = 0, i;
	int r = 0;

	while (done < n->held && k < QUEUE_SIZE) {
		struct virtq_chain *c = k ? &n->chain : &n->first;

		if (!virtio_pop(&n->mmio, RX, c))
			break;
		lens[k] = n->held - done < c->in_len ? n->held - done : c->in_len;
		heads[k++] = c->head;
		virtq_write(c, 0, n->packet + done, lens[k - 1]);
		done += lens[k - 1];
		if (!mergeable)
			break;
	}
	if (done == n->held && n->first.in_len >= HEADER) {
		h->num_buffers = (uint16_t)k;
		virtq_write(&n->first, 0, h, HEADER);
		for (i = 0; i < k; i++)
			virtq_push(q, heads[i], lens[i]);
		return (int)k;
	}
	if (k && n->first.in_len < HEADER)
		virtio_break(&n->mmio, "network buffer too small for a header");
	else if (k && (!mergeable || k == QUEUE_SIZE))
		r = -EMSGSIZE;
	for (i = 0; i < k; i++)
		virtq_unpop(q);
	return r;
}

static void serve_rx(struct virtio_net *n)
{
	struct virtq *q = &n->mmio.queues[RX];
	unsigned left = PACKETS_A_TURN;

	n->rx_starved = false;
	while (left > 0 && virtio_can_work(&n->mmio) && (n->held || read_frame(n))) {
		uint16_t seen = virtq_avail_index(q);
		int r = fill_buffers(n);

		left--;
		if (r == 0 && virtio_can_work(&n->mmio) && !virtq_want_more(q, seen)) {
			n->rx_starved = true;
			break;
		}
		if (r == 0)
			continue; /* buffers came meanwhile */
		if (r > 0) {
			n->stats.rx_packets++;
			n->stats.rx_bytes += n->held - HEADER;
		} else {
			n->stats.rx_dropped++;
		}
		n->held = 0;
	}
	virtio_publish(&n->mmio, RX);
	if (left == 0 && n->held)
		virtio_kick(&n->mmio, RX); /* the tap alone may not fire again for this one */
}

/* From the guest to the tap. */

/* Whether the driver may send with this header: only what it negotiated, inside of the frame. */
static bool header_is_valid(const struct virtio_net *n, const struct virtio_net_hdr_v1 *h,
			    uint32_t frame)
{
	unsigned gso = h->gso_type;

	if (h->flags & ~VIRTIO_NET_HDR_F_NEEDS_CSUM)
		return false;
	if ((h->flags & VIRTIO_NET_HDR_F_NEEDS_CSUM) &&
	    (!virtio_has_feature(&n->mmio, VIRTIO_NET_F_CSUM) ||
	     (uint32_t)h->csum_start + h->csum_offset + 2 > frame))
		return false;
	if (gso == VIRTIO_NET_HDR_GSO_NONE)
		return true;
	if (h->gso_size == 0 || !(h->flags & VIRTIO_NET_HDR_F_NEEDS_CSUM))
		return false;
	return (gso == VIRTIO_NET_HDR_GSO_TCPV4 &&
		virtio_has_feature(&n->mmio, VIRTIO_NET_F_HOST_TSO4)) ||
	       (gso == VIRTIO_NET_HDR_GSO_TCPV6 &&
		virtio_has_feature(&n->mmio, VIRTIO_NET_F_HOST_TSO6));
}

/* Sends the chain's frame; false when the tap takes nothing now. */
static bool send_frame(struct virtio_net *n)
{
	struct iovec iov[VIRTQ_CHAIN_MAX + 1];
	struct virtio_net_hdr_v1 h;
	uint32_t frame = n->chain.out_len - HEADER;
	unsigned k;
	ssize_t r;

	if (!virtq_read(&n->chain, 0, &h, HEADER) || frame < FRAME_MIN || frame > FRAME_MAX ||
	    !header_is_valid(n, &h, frame)) {
		n->stats.malformed++;
		return true;
	}
	h.num_buffers = 0;
	iov[0] = (struct iovec){ .iov_base = &h, .iov_len = HEADER };
	k = iov_slice(n->chain.iov, n->chain.nout, HEADER, frame, iov + 1);
	do {
		r = writev(n->setup.fd, iov, (int)k + 1);
	} while (r < 0 && errno == EINTR);
	if (r < 0 && errno == EAGAIN)
		return false;
	if (r < 0) {
		n->stats.tx_dropped++; /* the link is down, or the kernel's own check said no */
		return true;
	}
	n->stats.tx_packets++;
	n->stats.tx_bytes += frame;
	return true;
}

static void serve_tx(struct virtio_net *n)
{
	struct virtq *q = &n->mmio.queues[TX];
	unsigned left = PACKETS_A_TURN;

	n->tx_full = false;
	do {
		while (left > 0 && virtio_pop(&n->mmio, TX, &n->chain)) {
			if (!send_frame(n)) {
				virtq_unpop(q);
				n->tx_full = true;
				left = 0;
				break;
			}
			virtq_push(q, n->chain.head, 0);
			left--;
		}
	} while (left > 0 && virtio_can_work(&n->mmio) && virtq_want_kick(q, true));
	virtio_publish(&n->mmio, TX);
	if (left == 0 && !n->tx_full)
		virtio_kick(&n->mmio, TX);
}

/* What the loop and the transport call. */

static void net_kick(void *dev, unsigned queue)
{
	struct virtio_net *n = dev;

	set_offloads(n);
	if (queue == TX)
		serve_tx(n);
	else
		serve_rx(n);
	watch(n);
}

static void on_tap(void *ctx, int fd, uint32_t events)
{
	struct virtio_net *n = ctx;

	(void)fd;
	virtio_enter(&n->mmio);
	if (virtio_can_work(&n->mmio)) {
		if (events & EPOLLOUT)
			serve_tx(n);
		if (events & (EPOLLIN | EPOLLERR | EPOLLHUP))
			serve_rx(n);
		/* An error that reading does not clear would come for ever. */
		if (events & (EPOLLERR | EPOLLHUP))
			n->tap_gone = true;
	}
	watch(n);
	virtio_leave(&n->mmio);
}

static void net_forget(void *dev)
{
	struct virtio_net *n = dev;

	n->held = 0;
	n->rx_starved = n->tx_full = false;
	n->offloads_set = false;
	watch(n);
}

static void net_paused(void *dev, bool paused)
{
	struct virtio_net *n = dev;

	(void)paused; /* watch() looks at the transport's flag */
	watch(n);
}

static const struct virtio_ops net_ops = {
	.kick = net_kick,
	.forget = net_forget,
	.paused = net_paused,
};

static int prepare_tap(struct virtio_net *n, struct err *e)
{
	int size = HEADER;

	if (n->setup.set_offloads)
		return 0;
	n->setup.set_offloads = tap_set_offloads;
	if (ioctl(n->setup.fd, TUNSETVNETHDRSZ, &size) < 0)
		return err_set(e, "bad_request", errno, "network descriptor is not a tap: %s",
			       strerror(errno));
	return 0;
}

int virtio_net_new(struct guest_mem *mem, const struct virtio_net_setup *setup,
		   struct virtio_net **out, struct err *e)
{
	struct virtio_spec spec = {
		.ops = &net_ops,
		.device_id = VIRTIO_ID_NET,
		.features = BIT(MAC) | BIT(CSUM) | BIT(GUEST_CSUM) | BIT(HOST_TSO4) |
			    BIT(HOST_TSO6) | BIT(GUEST_TSO4) | BIT(GUEST_TSO6) | BIT(MRG_RXBUF) |
			    (setup->mtu ? BIT(MTU) : 0),
		.nqueues = QUEUES,
		.queue_size = QUEUE_SIZE,
		.config_len = sizeof(struct virtio_net_config),
	};
	_cleanup_virtio_net_ struct virtio_net *n = calloc(1, sizeof(*n));
	int r;

	if (!n)
		return err_errno(e, ENOMEM, "network device");
	n->setup = *setup;
	n->config.mtu = setup->mtu;
	memcpy(n->config.mac, setup->mac, sizeof(n->config.mac));
	r = prepare_tap(n, e);
	if (r < 0)
		return r;
	r = fd_set_nonblock(setup->fd, true);
	if (r < 0)
		return err_errno(e, -r, "network descriptor");
	spec.config = &n->config;
	r = virtio_mmio_init(&n->mmio, &spec, n, mem, e);
	if (r < 0)
		return r;
	*out = steal_ptr(n);
	return 0;
}

void virtio_net_free(struct virtio_net *n)
{
	if (!n)
		return;
	unwatch(n);
	virtio_mmio_fini(&n->mmio);
	free(n);
}

struct virtio_mmio *virtio_net_mmio(struct virtio_net *n)
{
	return &n->mmio;
}

void virtio_net_stats(struct virtio_net *n, struct virtio_net_stats *out)
{
	*out = n->stats;
}
