/*
 * Inflating: the driver sends lists of page numbers, which are joined to ranges, since neighbours
 * mostly come one after the other. Reporting: the driver lends its free pages as writable buffers
 * until we hand them back; between the two they are discarded. Deflating needs no work: a page
 * comes back when it is touched.
 *
 * guest_mem_discard() sees to it that nothing of a memory file shows up again.
 *
 * Queues that were not negotiated are left out of the numbering, as Linux does on this transport:
 * without statistics and hints the reporting queue is the third.
 */
#include "vmm/virtio/balloon.h"

#include <errno.h>
#include <linux/virtio_balloon.h>
#include <linux/virtio_ids.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "vmm/mem.h"
#include "vmm/virtio/device.h"

enum { INFLATE, DEFLATE, REPORT, QUEUES };

#define QUEUE_SIZE 128
#define REQUESTS_A_TURN 64
#define PFNS_A_READ 256u

struct virtio_balloon {
	struct virtio_mmio mmio;
	struct virtio_balloon_config config;
	struct virtio_balloon_stats stats; /* under the lock */
	struct virtq_chain chain;
};

/* Gives a range back; counts what became of it. */
static void discard(struct virtio_balloon *b, uint64_t gpa, uint64_t len, uint64_t *bytes)
{
	int r = guest_mem_discard(b->mmio.mem, gpa, len);

	if (r == 0)
		*bytes += len;
	else if (r == -EFAULT || r == -EINVAL)
		b->stats.malformed++;
	else
		b->stats.failed++; /* such as too many mappings: the guest keeps working */
}

/* A list of page numbers, joined to ranges. */
static void inflate(struct virtio_balloon *b)
{
	const struct virtq_chain *c = &b->chain;
	uint64_t at = 0, len = 0;
	uint32_t off, i;

	if (c->out_len % 4)
		b->stats.malformed++;
	for (off = 0; off + 4 <= c->out_len;) {
		uint32_t pfn[PFNS_A_READ];
		uint32_t n = (c->out_len - off) / 4;

		n = n < PFNS_A_READ ? n : PFNS_A_READ;
		virtq_read(c, off, pfn, n * 4);
		off += n * 4;
		for (i = 0; i < n; i++) {
			uint64_t gpa = (uint64_t)pfn[i] * VIRTIO_BALLOON_PAGE;

			if (len && gpa == at + len) {
				len += VIRTIO_BALLOON_PAGE;
				continue;
			}
			if (len)
				discard(b, at, len, &b->stats.inflated_bytes);
			at = gpa;
			len = VIRTIO_BALLOON_PAGE;
		}
	}
	if (len)
		discard(b, at, len, &b->stats.inflated_bytes);
}

/* Free pages as buffers: whole pages of them go. */
static void report(struct virtio_balloon *b)
{
	const struct virtq_chain *c = &b->chain;
	unsigned i;

	for (i = c->nout; i < c->nout + c->nin; i++) {
		uint64_t gpa = guest_mem_gpa(b->mmio.mem, c->iov[i].iov_base);

		discard(b, gpa, c->iov[i].iov_len, &b->stats.reported_bytes);
	}
}

static void balloon_kick(void *dev, unsigned queue)
{
	struct virtio_balloon *b = dev;
	struct virtq *q = &b->mmio.queues[queue];
	unsigned left = REQUESTS_A_TURN;

	do {
		while (left > 0 && virtio_pop(&b->mmio, queue, &b->chain)) {
			if (queue == INFLATE)
				inflate(b);
			else if (queue == REPORT)
				report(b);
			virtq_push(q, b->chain.head, 0);
			left--;
		}
	} while (left > 0 && virtio_can_work(&b->mmio) && virtq_want_kick(q, true));
	virtio_publish(&b->mmio, queue);
	if (left == 0)
		virtio_kick(&b->mmio, queue);
}

/* The target moves along with the guest, who may still be on its way to it. */
static int balloon_save(void *dev, struct buf *out, struct err *e)
{
	struct virtio_balloon *b = dev;
	int r = buf_add(out, &b->config.num_pages, sizeof(b->config.num_pages));

	return r < 0 ? err_errno(e, -r, "save balloon device") : 0;
}

static int balloon_restore(void *dev, const void *p, size_t n, struct err *e)
{
	struct virtio_balloon *b = dev;

	if (n != sizeof(b->config.num_pages))
		return err_set(e, "state_invalid", EBADMSG, "balloon state of wrong length");
	memcpy(&b->config.num_pages, p, n);
	return 0;
}

static const struct virtio_ops balloon_ops = {
	.kick = balloon_kick,
	.save = balloon_save,
	.restore = balloon_restore,
};

int virtio_balloon_new(struct guest_mem *mem, struct virtio_balloon **out, struct err *e)
{
	struct virtio_spec spec = {
		.ops = &balloon_ops,
		.device_id = VIRTIO_ID_BALLOON,
		.features = 1ULL << VIRTIO_BALLOON_F_REPORTING |
			    1ULL << VIRTIO_BALLOON_F_DEFLATE_ON_OOM,
		.nqueues = QUEUES,
		.queue_size = QUEUE_SIZE,
		.config_len = sizeof(struct virtio_balloon_config),
		.writable_at = offsetof(struct virtio_balloon_config, actual),
		.writable_len = sizeof(uint32_t),
	};
	_cleanup_virtio_balloon_ struct virtio_balloon *b = calloc(1, sizeof(*b));
	int r;

	if (!b)
		return err_errno(e, ENOMEM, "balloon device");
	spec.config = &b->config;
	r = virtio_mmio_init(&b->mmio, &spec, b, mem, e);
	if (r < 0)
		return r;
	*out = steal_ptr(b);
	return 0;
}

void virtio_balloon_free(struct virtio_balloon *b)
{
	if (!b)
		return;
	virtio_mmio_fini(&b->mmio);
	free(b);
}

struct virtio_mmio *virtio_balloon_mmio(struct virtio_balloon *b)
{
	return &b->mmio;
}

void virtio_balloon_set_target(struct virtio_balloon *b, uint64_t bytes)
{
	uint64_t most = guest_mem_size(b->mmio.mem);

	virtio_enter(&b->mmio);
	b->config.num_pages = (uint32_t)((bytes < most ? bytes : most) / VIRTIO_BALLOON_PAGE);
	virtio_config_changed(&b->mmio);
	virtio_leave(&b->mmio);
}

void virtio_balloon_stats(struct virtio_balloon *b, struct virtio_balloon_stats *out)
{
	pthread_mutex_lock(&b->mmio.lock);
	*out = b->stats;
	out->target_pages = b->config.num_pages;
	out->actual_pages = b->config.actual;
	pthread_mutex_unlock(&b->mmio.lock);
}
