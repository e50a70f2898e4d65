/*
 * virtio-balloon: gives the guest's unused memory back to the host. Free page reporting works by
 * itself, all the time; the balloon proper takes as many pages as the host asks for. Pages given
 * back read as zero when the guest uses them again. Runs on the I/O loop.
 */
#ifndef CLOCHE_VMM_VIRTIO_BALLOON_H
#define CLOCHE_VMM_VIRTIO_BALLOON_H

#include <stdint.h>

#include "base/cleanup.h"

struct err;
struct guest_mem;
struct virtio_balloon;
struct virtio_mmio;

#define VIRTIO_BALLOON_PAGE 4096u

struct virtio_balloon_stats {
	uint32_t target_pages; /* what the host asked for, in pages of VIRTIO_BALLOON_PAGE */
	uint32_t actual_pages; /* what the guest says it gave */
	uint64_t reported_bytes, inflated_bytes; /* given back, ever */
	uint64_t failed;			 /* ranges that the host could not take back */
	uint64_t malformed;			 /* pages that are not RAM, lists of odd length */
};

int virtio_balloon_new(struct guest_mem *mem, struct virtio_balloon **out, struct err *e);
void virtio_balloon_free(struct virtio_balloon *b); /* NULL-safe */
CLEANUP_DEFINE(struct virtio_balloon *, cleanup_virtio_balloon, virtio_balloon_free)
#define _cleanup_virtio_balloon_ _cleanup_(cleanup_virtio_balloon)

struct virtio_mmio *virtio_balloon_mmio(struct virtio_balloon *b);

/* Asks the guest to give up that many bytes in all (cut to pages); 0 lets it have them again. */
void virtio_balloon_set_target(struct virtio_balloon *b, uint64_t bytes);

/* Any thread. */
void virtio_balloon_stats(struct virtio_balloon *b, struct virtio_balloon_stats *out);

#endif
