/* One request of a disk, from the checked descriptor chain to its status byte. */
#ifndef CLOCHE_VMM_VIRTIO_BLK_REQUEST_H
#define CLOCHE_VMM_VIRTIO_BLK_REQUEST_H

#include <stdbool.h>
#include <stdint.h>

#include "vmm/virtio/blk.h"

struct blk_backend;
struct virtq_chain;

#define BLK_SEGMENTS_MAX 32		 /* ranges in one discard or write-zeroes */
#define BLK_RANGE_SECTORS_MAX (1u << 22) /* sectors of one range: 2 GiB */

struct blk_disk {
	struct blk_backend *backend;
	char serial[VIRTIO_BLK_SERIAL_LEN];
};

/*
 * Serves one request; blocks on the storage. Counts it in stats. Returns the bytes written from
 * the start of the in part, or -EPROTO when there is no room for a status. With write_through a
 * write is durable before it is answered: the driver does not know of FLUSH.
 */
int64_t blk_request_serve(const struct blk_disk *disk, const struct virtq_chain *c,
			  bool write_through, struct virtio_blk_stats *stats);

#endif
