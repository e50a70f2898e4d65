/*
 * virtio-net over a tap: one pair of queues, checksum and segmentation offloads both ways,
 * mergeable receive buffers, no control queue. Runs on the I/O loop; all functions here belong to
 * its thread.
 */
#ifndef CLOCHE_VMM_VIRTIO_NET_H
#define CLOCHE_VMM_VIRTIO_NET_H

#include <stdint.h>

#include "base/cleanup.h"

struct err;
struct guest_mem;
struct virtio_mmio;
struct virtio_net;

struct virtio_net_setup {
	/*
	 * A tap opened with IFF_TAP | IFF_NO_PI | IFF_VNET_HDR. Stays the caller's, outlives the
	 * device, is made non-blocking.
	 */
	int fd;
	uint8_t mac[6];
	uint16_t mtu; /* told to the driver; 0: not */
	/*
	 * NULL for a tap. Otherwise fd is any descriptor that reads and writes one packet with a
	 * 12-byte virtio-net header at a time, and this sets its offloads (TUN_F_*): 0 or negative
	 * errno.
	 */
	int (*set_offloads)(int fd, unsigned tun_f);
};

struct virtio_net_stats {
	uint64_t rx_packets, rx_bytes; /* to the guest, frames without their headers */
	uint64_t tx_packets, tx_bytes;
	uint64_t rx_dropped; /* longer than the guest's buffer */
	uint64_t tx_dropped; /* the tap refused them */
	uint64_t malformed;  /* packets no correct driver sends */
};

/* Error code bad_request when fd is no such tap. */
int virtio_net_new(struct guest_mem *mem, const struct virtio_net_setup *setup,
		   struct virtio_net **out, struct err *e);
void virtio_net_free(struct virtio_net *n); /* NULL-safe */
CLEANUP_DEFINE(struct virtio_net *, cleanup_virtio_net, virtio_net_free)
#define _cleanup_virtio_net_ _cleanup_(cleanup_virtio_net)

struct virtio_mmio *virtio_net_mmio(struct virtio_net *n);

void virtio_net_stats(struct virtio_net *n, struct virtio_net_stats *out);

#endif
