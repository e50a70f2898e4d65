/*
 * virtio-blk: a disk with one request queue. FLUSH, DISCARD, WRITE_ZEROES, read-only disks, a
 * serial number. Requests are served by the disk's own worker thread, so the I/O loop never waits
 * for storage.
 */
#ifndef CLOCHE_VMM_VIRTIO_BLK_H
#define CLOCHE_VMM_VIRTIO_BLK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cleanup.h"

struct blk_backend;
struct err;
struct guest_mem;
struct virtio_blk;
struct virtio_mmio;

#define VIRTIO_BLK_SERIAL_LEN 20
#define VIRTIO_BLK_WORKERS_MAX 8

struct virtio_blk_setup {
	struct blk_backend *backend;	    /* stays the caller's, outlives the device */
	char serial[VIRTIO_BLK_SERIAL_LEN]; /* answers GET_ID; NUL-padded */
	unsigned workers;		    /* threads, 0 means 1; at most VIRTIO_BLK_WORKERS_MAX */
	/* Each worker's first call, for its seccomp filter; NULL for none. Returns 0 to go on. */
	int (*worker_begin)(void *ctx);
	void *ctx;
};

struct virtio_blk_stats {
	uint64_t reads, writes, flushes, discards; /* requests done; write-zeroes are discards */
	uint64_t bytes_read, bytes_written;
	uint64_t errors;    /* requests answered with IOERR */
	uint64_t malformed; /* of those and of UNSUPP, the ones no correct driver sends */
	bool no_space;	    /* a write failed for lack of space since the flag was last taken */
};

int virtio_blk_new(struct guest_mem *mem, const struct virtio_blk_setup *setup,
		   struct virtio_blk **out, struct err *e);
void virtio_blk_free(struct virtio_blk *b); /* NULL-safe; stops the worker */
CLEANUP_DEFINE(struct virtio_blk *, cleanup_virtio_blk, virtio_blk_free)
#define _cleanup_virtio_blk_ _cleanup_(cleanup_virtio_blk)

struct virtio_mmio *virtio_blk_mmio(struct virtio_blk *b);

/* A copy of the counters; any thread. no_space stays set until taken with virtio_blk_take… */
void virtio_blk_stats(struct virtio_blk *b, struct virtio_blk_stats *out);

/* Returns and clears no_space. */
bool virtio_blk_take_no_space(struct virtio_blk *b);

#endif
