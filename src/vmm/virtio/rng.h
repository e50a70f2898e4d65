/* virtio-rng: random bytes from the host's kernel, at most VIRTIO_RNG_REQUEST_MAX a request. */
#ifndef CLOCHE_VMM_VIRTIO_RNG_H
#define CLOCHE_VMM_VIRTIO_RNG_H

#include "base/cleanup.h"

struct err;
struct guest_mem;
struct virtio_mmio;
struct virtio_rng;

#define VIRTIO_RNG_REQUEST_MAX (64u << 10)

int virtio_rng_new(struct guest_mem *mem, struct virtio_rng **out, struct err *e);
void virtio_rng_free(struct virtio_rng *r); /* NULL-safe */
CLEANUP_DEFINE(struct virtio_rng *, cleanup_virtio_rng, virtio_rng_free)
#define _cleanup_virtio_rng_ _cleanup_(cleanup_virtio_rng)

struct virtio_mmio *virtio_rng_mmio(struct virtio_rng *r);

#endif
