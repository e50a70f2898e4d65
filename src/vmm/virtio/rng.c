/*
 * Runs on the I/O loop. getrandom() makes 64 KiB in well under a millisecond; after a few requests
 * the loop gets its turn, so that a guest that asks for ever delays nobody.
 */
#include "vmm/virtio/rng.h"

#include <errno.h>
#include <linux/virtio_ids.h>
#include <stdlib.h>
#include <sys/random.h>

#include "base/err.h"
#include "vmm/virtio/device.h"

#define QUEUE_SIZE 64
#define REQUESTS_A_TURN 8

struct virtio_rng {
	struct virtio_mmio mmio;
	struct virtq_chain chain;
};

/* Fills at most VIRTIO_RNG_REQUEST_MAX bytes of a request; what was filled, or negative errno. */
static int fill(const struct virtq_chain *c)
{
	uint32_t done = 0;
	unsigned i;

	for (i = c->nout; i < c->nout + c->nin && done < VIRTIO_RNG_REQUEST_MAX; i++) {
		size_t n = c->iov[i].iov_len, at = 0;

		if (n > VIRTIO_RNG_REQUEST_MAX - done)
			n = VIRTIO_RNG_REQUEST_MAX - done;
		while (at < n) {
			ssize_t k = getrandom((uint8_t *)c->iov[i].iov_base + at, n - at, 0);

			if (k < 0 && errno != EINTR)
				return -errno;
			if (k > 0)
				at += (size_t)k;
		}
		done += (uint32_t)n;
	}
	return (int)done;
}

static void rng_kick(void *dev, unsigned queue)
{
	struct virtio_rng *r = dev;
	struct virtq *q = &r->mmio.queues[queue];
	unsigned left = REQUESTS_A_TURN;

	do {
		while (left > 0 && virtio_pop(&r->mmio, queue, &r->chain)) {
			int n = fill(&r->chain);

			if (n <= 0) {
				virtio_break(&r->mmio, n ? "the host has no randomness"
							 : "request without room for an answer");
				return;
			}
			virtq_push(q, r->chain.head, (uint32_t)n);
			left--;
		}
	} while (virtq_want_kick(q, true) && left > 0);
	if (left == 0)
		virtio_kick(&r->mmio, queue);
	virtio_publish(&r->mmio, queue);
}

static const struct virtio_ops rng_ops = { .kick = rng_kick };

int virtio_rng_new(struct guest_mem *mem, struct virtio_rng **out, struct err *e)
{
	struct virtio_spec spec = {
		.ops = &rng_ops,
		.device_id = VIRTIO_ID_RNG,
		.nqueues = 1,
		.queue_size = QUEUE_SIZE,
	};
	_cleanup_virtio_rng_ struct virtio_rng *r = calloc(1, sizeof(*r));
	int err;

	if (!r)
		return err_errno(e, ENOMEM, "rng device");
	err = virtio_mmio_init(&r->mmio, &spec, r, mem, e);
	if (err < 0)
		return err;
	*out = steal_ptr(r);
	return 0;
}

void virtio_rng_free(struct virtio_rng *r)
{
	if (!r)
		return;
	virtio_mmio_fini(&r->mmio);
	free(r);
}

struct virtio_mmio *virtio_rng_mmio(struct virtio_rng *r)
{
	return &r->mmio;
}
