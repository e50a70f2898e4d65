/*
 * The saved form of a device: a header, its queues, and the device's own bytes, little-endian and
 * packed, so that it is the same on every host. A file may come from anywhere: everything is
 * checked before the device is touched, and addresses are resolved against the memory at hand.
 *
 *	VERSION grows when the layout changes; an unknown one is refused.
 */
#include <errno.h>
#include <linux/virtio_config.h>
#include <linux/virtio_ring.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "vmm/mem.h"
#include "vmm/virtio/device.h"

#define STATE_MAGIC 0x54534456u /* "VDST" */
#define STATE_VERSION 1

struct queue_state {
	uint16_t size_max, size, ready, next_avail, next_used, zero[3];
	uint64_t desc, avail, used;
} __attribute__((packed));

struct device_state {
	uint32_t magic, version, device_id, nqueues;
	uint64_t driver_features;
	uint32_t device_features_sel, driver_features_sel, queue_sel;
	uint32_t config_generation, status, isr;
	uint32_t config_len, own_len; /* bytes that follow the queues, in this order */
} __attribute__((packed));

#define S_ALL                                                                                 \
	(VIRTIO_CONFIG_S_ACKNOWLEDGE | VIRTIO_CONFIG_S_DRIVER | VIRTIO_CONFIG_S_FEATURES_OK | \
	 VIRTIO_CONFIG_S_DRIVER_OK | VIRTIO_CONFIG_S_NEEDS_RESET | VIRTIO_CONFIG_S_FAILED)

static struct device_state device_header(const struct virtio_mmio *v, size_t own_len)
{
	return (struct device_state){
		.magic = STATE_MAGIC,
		.version = STATE_VERSION,
		.device_id = v->spec.device_id,
		.nqueues = v->spec.nqueues,
		.driver_features = v->driver_features,
		.device_features_sel = v->device_features_sel,
		.driver_features_sel = v->driver_features_sel,
		.queue_sel = v->queue_sel,
		.config_generation = v->config_generation,
		.status = v->status,
		.isr = __atomic_load_n(&v->isr, __ATOMIC_SEQ_CST),
		.config_len = v->spec.config_len,
		.own_len = (uint32_t)own_len,
	};
}

static int save_locked(struct virtio_mmio *v, struct buf *b, struct err *e)
{
	_cleanup_buf_ struct buf own = { 0 };
	struct device_state d;
	unsigned i;
	int r = 0;

	if (v->spec.ops->save && (r = v->spec.ops->save(v->dev, &own, e)) < 0)
		return r;
	d = device_header(v, own.len);
	r = buf_add(b, &d, sizeof(d));
	for (i = 0; i < v->spec.nqueues && r == 0; i++) {
		const struct virtq *q = &v->queues[i];
		struct queue_state s = {
			.size_max = q->size_max,
			.size = q->size,
			.ready = q->ready,
			.next_avail = q->next_avail,
			.next_used = q->next_used,
			.desc = q->desc_gpa,
			.avail = q->avail_gpa,
			.used = q->used_gpa,
		};

		r = buf_add(b, &s, sizeof(s));
	}
	if (r == 0 && v->spec.config_len)
		r = buf_add(b, v->spec.config, v->spec.config_len);
	if (r == 0 && own.len)
		r = buf_add(b, own.data, own.len);
	return r < 0 ? err_errno(e, -r, "save virtio device %u", v->spec.device_id) : 0;
}

int virtio_mmio_save(struct virtio_mmio *v, struct buf *b, struct err *e)
{
	size_t len = b->len;
	int r;

	pthread_mutex_lock(&v->lock);
	r = v->paused ? save_locked(v, b, e)
		      : err_set(e, "wrong_state", EBUSY, "save of a device that is not paused");
	pthread_mutex_unlock(&v->lock);
	if (r < 0)
		b->len = len;
	return r;
}

static int invalid(const struct virtio_mmio *v, const char *what, struct err *e)
{
	return err_set(e, "state_invalid", EBADMSG, "state of virtio device %u: %s",
		       v->spec.device_id, what);
}

static int check_header(const struct virtio_mmio *v, const struct device_state *d, size_t n,
			struct err *e)
{
	uint64_t want = sizeof(*d) + (uint64_t)d->nqueues * sizeof(struct queue_state) +
			d->config_len + d->own_len;

	if (d->magic != STATE_MAGIC)
		return invalid(v, "not one", e);
	if (d->version != STATE_VERSION || d->device_id != v->spec.device_id ||
	    d->nqueues != v->spec.nqueues || d->config_len != v->spec.config_len)
		return err_set(e, "state_mismatch", EINVAL,
			       "state of virtio device %u is of device %u, version %u, %u queues",
			       v->spec.device_id, d->device_id, d->version, d->nqueues);
	if (d->driver_features & ~virtio_offered(v))
		return err_set(e, "state_mismatch", EINVAL,
			       "state of virtio device %u uses features this one lacks",
			       d->device_id);
	if (want != n)
		return invalid(v, "wrong length", e);
	if ((d->status & ~(uint32_t)S_ALL) || (d->isr & ~3u))
		return invalid(v, "impossible registers", e);
	if ((d->status & VIRTIO_CONFIG_S_FEATURES_OK) &&
	    !(d->driver_features & 1ULL << VIRTIO_F_VERSION_1))
		return invalid(v, "impossible features", e);
	return 0;
}

/* Fills a queue of our own making; a ready one must fit this memory. */
static int take_queue(const struct virtio_mmio *v, const struct device_state *d,
		      const struct queue_state *s, uint16_t size_max, struct virtq *q,
		      struct err *e)
{
	*q = (struct virtq){
		.size_max = size_max,
		.size = s->size,
		.next_avail = s->next_avail,
		.next_used = s->next_used,
		.desc_gpa = s->desc,
		.avail_gpa = s->avail,
		.used_gpa = s->used,
	};
	if (s->size_max != size_max)
		return err_set(e, "state_mismatch", EINVAL,
			       "state of virtio device %u has queues of another size",
			       v->spec.device_id);
	if (s->size > size_max || s->ready > 1)
		return invalid(v, "impossible queue", e);
	if (!s->ready)
		return 0;
	/* Nothing is in flight in a saved device. */
	if (s->next_avail != s->next_used || !(d->status & VIRTIO_CONFIG_S_FEATURES_OK))
		return invalid(v, "impossible queue", e);
	if (virtq_enable(q, v->mem, d->driver_features & 1ULL << VIRTIO_RING_F_EVENT_IDX,
			 d->driver_features & 1ULL << VIRTIO_RING_F_INDIRECT_DESC) < 0)
		return invalid(v, "queue outside of the memory", e);
	return 0;
}

int virtio_mmio_restore(struct virtio_mmio *v, const void *p, size_t n, struct err *e)
{
	struct virtq queues[VIRTIO_QUEUES_MAX] = { 0 };
	const uint8_t *at = p;
	struct device_state d;
	unsigned i;
	int r;

	if (n < sizeof(d))
		return invalid(v, "too short", e);
	memcpy(&d, at, sizeof(d));
	at += sizeof(d);
	if ((r = check_header(v, &d, n, e)) < 0)
		return r;
	for (i = 0; i < d.nqueues; i++) {
		struct queue_state s;

		memcpy(&s, at, sizeof(s));
		at += sizeof(s);
		r = take_queue(v, &d, &s, v->queues[i].size_max, &queues[i], e);
		if (r < 0)
			return r;
	}
	if (!v->spec.ops->restore && d.own_len)
		return invalid(v, "bytes that nobody knows", e);
	if (v->spec.ops->restore &&
	    (r = v->spec.ops->restore(v->dev, at + d.config_len, d.own_len, e)) < 0)
		return r;
	/* Only what the driver may write comes back; the rest is this device's configuration. */
	if (v->spec.writable_len)
		memcpy((uint8_t *)v->spec.config + v->spec.writable_at, at + v->spec.writable_at,
		       v->spec.writable_len);
	memcpy(v->queues, queues, sizeof(queues));
	v->driver_features = d.driver_features;
	v->device_features_sel = d.device_features_sel;
	v->driver_features_sel = d.driver_features_sel;
	v->queue_sel = d.queue_sel;
	v->config_generation = d.config_generation;
	v->status = d.status;
	v->isr = d.isr;
	v->paused = true;
	return 0;
}
