/*
 * Registers as a state machine over the status bits. What the driver may write depends on how far
 * it has come:
 *
 *	features	after DRIVER, before FEATURES_OK
 *	queues		after FEATURES_OK, before DRIVER_OK; stopping one (ready = 0) also later
 *	status		bits may only be added, in order; 0 resets
 *
 * Everything else is ignored. FEATURES_OK stays clear when the driver asks for what was not
 * offered or leaves VERSION_1 out, and QueueReady stays 0 when a ring is not where RAM is: the
 * driver reads both back.
 *
 * Reset drains the device first, so that nothing writes to the guest's memory after the driver
 * has its write behind it. While that waits, writes of other vCPUs are ignored.
 *
 * Threads: see device.h. Only `isr` is touched without the lock, so that an interrupt handler
 * never waits for a transfer.
 */
#include "vmm/virtio/mmio.h"

#include <linux/virtio_config.h>
#include <linux/virtio_mmio.h>
#include <linux/virtio_ring.h>
#include <string.h>

#include "base/cleanup.h"
#include "vmm/virtio/device.h"

#define MAGIC 0x74726976u  /* "virt" */
#define VENDOR 0x484c434fu /* "OCLH" */

#define S_ACK VIRTIO_CONFIG_S_ACKNOWLEDGE
#define S_DRIVER VIRTIO_CONFIG_S_DRIVER
#define S_FEATURES_OK VIRTIO_CONFIG_S_FEATURES_OK
#define S_DRIVER_OK VIRTIO_CONFIG_S_DRIVER_OK
#define S_FAILED VIRTIO_CONFIG_S_FAILED
#define S_BY_DRIVER (S_ACK | S_DRIVER | S_FEATURES_OK | S_DRIVER_OK | S_FAILED)

static void reset(struct virtio_mmio *v)
{
	unsigned i;

	v->resetting = true;
	if (v->spec.ops->drain)
		v->spec.ops->drain(v->dev);
	for (i = 0; i < v->spec.nqueues; i++)
		virtq_reset(&v->queues[i]);
	v->driver_features = 0;
	v->device_features_sel = v->driver_features_sel = v->queue_sel = 0;
	v->status = 0;
	__atomic_store_n(&v->isr, 0, __ATOMIC_SEQ_CST);
	v->forget = true;
	v->resetting = false;
	virtio_kick(v, 0); /* the loop lets the device forget */
}

static bool features_fit(const struct virtio_mmio *v)
{
	return (v->driver_features & ~virtio_offered(v)) == 0 &&
	       (v->driver_features & 1ULL << VIRTIO_F_VERSION_1);
}

/* Whether `bits` may be added to the status: each step only after the one before. */
static bool in_order(uint32_t status, uint32_t bits)
{
	static const uint32_t steps[] = { S_ACK, S_DRIVER, S_FEATURES_OK, S_DRIVER_OK };
	size_t i;

	for (i = 1; i < ARRAY_SIZE(steps); i++)
		if ((bits & steps[i]) && !((status | bits) & steps[i - 1]))
			return false;
	return true;
}

static void write_status(struct virtio_mmio *v, uint32_t val)
{
	uint32_t bits = val & S_BY_DRIVER & ~v->status;

	if (val == 0) {
		reset(v);
		return;
	}
	if ((v->status & S_BY_DRIVER & ~val) || !in_order(v->status, bits))
		return;
	if ((bits & S_FEATURES_OK) && !features_fit(v))
		bits &= ~(uint32_t)(S_FEATURES_OK | S_DRIVER_OK);
	v->status |= bits;
	if (bits & S_DRIVER_OK)
		virtio_kick_all(v); /* the driver may have filled queues before */
}

static void write_driver_features(struct virtio_mmio *v, uint32_t val)
{
	unsigned shift = v->driver_features_sel * 32;

	if (v->driver_features_sel > 1 || !(v->status & S_DRIVER) || (v->status & S_FEATURES_OK))
		return;
	v->driver_features &= ~(0xffffffffULL << shift);
	v->driver_features |= (uint64_t)val << shift;
}

static void write_queue_ready(struct virtio_mmio *v, struct virtq *q, uint32_t val)
{
	if (val == 0 && q->ready) {
		uint16_t size = q->size;

		if ((v->status & S_DRIVER_OK) && v->spec.ops->drain) {
			v->resetting = true;
			v->spec.ops->drain(v->dev);
			v->resetting = false;
		}
		virtq_reset(q);
		q->size = size;
		virtio_kick_all(v); /* what waited for the other queues while this one drained */
	} else if (val == 1 && !q->ready) {
		if (virtq_enable(q, v->mem, virtio_has_feature(v, VIRTIO_RING_F_EVENT_IDX),
				 virtio_has_feature(v, VIRTIO_RING_F_INDIRECT_DESC)) < 0)
			virtio_complain(v, "queue of bad size or address refused");
	}
}

static void set_low(uint64_t *p, uint32_t val)
{
	*p = (*p & ~0xffffffffULL) | val;
}

static void set_high(uint64_t *p, uint32_t val)
{
	*p = (*p & 0xffffffffULL) | (uint64_t)val << 32;
}

static void write_queue(struct virtio_mmio *v, uint64_t offset, uint32_t val)
{
	struct virtq *q;
	bool set_up = (v->status & S_FEATURES_OK) && !(v->status & S_DRIVER_OK);

	if (v->queue_sel >= v->spec.nqueues)
		return;
	q = &v->queues[v->queue_sel];
	if (offset == VIRTIO_MMIO_QUEUE_READY) {
		if (set_up || ((v->status & S_DRIVER_OK) && val == 0))
			write_queue_ready(v, q, val);
		return;
	}
	if (!set_up || q->ready)
		return;
	switch (offset) {
	case VIRTIO_MMIO_QUEUE_NUM:
		q->size = val <= q->size_max ? (uint16_t)val : 0;
		break;
	case VIRTIO_MMIO_QUEUE_DESC_LOW:
		set_low(&q->desc_gpa, val);
		break;
	case VIRTIO_MMIO_QUEUE_DESC_HIGH:
		set_high(&q->desc_gpa, val);
		break;
	case VIRTIO_MMIO_QUEUE_AVAIL_LOW:
		set_low(&q->avail_gpa, val);
		break;
	case VIRTIO_MMIO_QUEUE_AVAIL_HIGH:
		set_high(&q->avail_gpa, val);
		break;
	case VIRTIO_MMIO_QUEUE_USED_LOW:
		set_low(&q->used_gpa, val);
		break;
	case VIRTIO_MMIO_QUEUE_USED_HIGH:
		set_high(&q->used_gpa, val);
		break;
	}
}

static void write_register(struct virtio_mmio *v, uint64_t offset, uint32_t val)
{
	switch (offset) {
	case VIRTIO_MMIO_DEVICE_FEATURES_SEL:
		v->device_features_sel = val;
		break;
	case VIRTIO_MMIO_DRIVER_FEATURES:
		write_driver_features(v, val);
		break;
	case VIRTIO_MMIO_DRIVER_FEATURES_SEL:
		v->driver_features_sel = val;
		break;
	case VIRTIO_MMIO_QUEUE_SEL:
		v->queue_sel = val;
		break;
	case VIRTIO_MMIO_STATUS:
		write_status(v, val);
		break;
	default:
		write_queue(v, offset, val);
	}
}

static uint32_t read_queue(const struct virtio_mmio *v, uint64_t offset)
{
	const struct virtq *q;

	if (v->queue_sel >= v->spec.nqueues)
		return 0;
	q = &v->queues[v->queue_sel];
	return offset == VIRTIO_MMIO_QUEUE_READY ? q->ready : q->size_max;
}

static uint32_t read_register(const struct virtio_mmio *v, uint64_t offset)
{
	switch (offset) {
	case VIRTIO_MMIO_MAGIC_VALUE:
		return MAGIC;
	case VIRTIO_MMIO_VERSION:
		return 2;
	case VIRTIO_MMIO_DEVICE_ID:
		return v->spec.device_id;
	case VIRTIO_MMIO_VENDOR_ID:
		return VENDOR;
	case VIRTIO_MMIO_DEVICE_FEATURES:
		return v->device_features_sel > 1
			       ? 0
			       : (uint32_t)(virtio_offered(v) >> (32 * v->device_features_sel));
	case VIRTIO_MMIO_QUEUE_NUM_MAX:
	case VIRTIO_MMIO_QUEUE_READY:
		return read_queue(v, offset);
	case VIRTIO_MMIO_STATUS:
		return v->status;
	case VIRTIO_MMIO_CONFIG_GENERATION:
		return v->config_generation;
	case VIRTIO_MMIO_SHM_LEN_LOW: /* no shared memory: a length of all ones */
	case VIRTIO_MMIO_SHM_LEN_HIGH:
	case VIRTIO_MMIO_SHM_BASE_LOW:
	case VIRTIO_MMIO_SHM_BASE_HIGH:
		return 0xffffffff;
	default:
		return 0;
	}
}

static void read_config(const struct virtio_mmio *v, uint64_t at, void *data, size_t len)
{
	if (at < v->spec.config_len && len <= v->spec.config_len - at)
		memcpy(data, (const uint8_t *)v->spec.config + at, len);
}

static void write_config(struct virtio_mmio *v, uint64_t at, const void *data, size_t len)
{
	uint64_t from = v->spec.writable_at, n = v->spec.writable_len;

	if (at < from || at - from >= n || len > n - (at - from) || !(v->status & S_DRIVER))
		return;
	memcpy((uint8_t *)v->spec.config + at, data, len);
	if (v->spec.ops->config_written)
		v->spec.ops->config_written(v->dev);
}

void virtio_mmio_read(struct virtio_mmio *v, uint64_t offset, void *data, size_t len)
{
	uint32_t val;

	memset(data, 0, len);
	if (offset == VIRTIO_MMIO_INTERRUPT_STATUS && len == 4) {
		val = __atomic_load_n(&v->isr, __ATOMIC_SEQ_CST);
		memcpy(data, &val, 4);
		return;
	}
	pthread_mutex_lock(&v->lock);
	if (offset >= VIRTIO_MMIO_CONFIG) {
		read_config(v, offset - VIRTIO_MMIO_CONFIG, data, len);
	} else if (len == 4) {
		val = read_register(v, offset);
		memcpy(data, &val, 4);
	}
	pthread_mutex_unlock(&v->lock);
}

void virtio_mmio_write(struct virtio_mmio *v, uint64_t offset, const void *data, size_t len)
{
	uint32_t val = 0;

	if (offset < VIRTIO_MMIO_CONFIG) {
		if (len != 4)
			return;
		memcpy(&val, data, 4);
	}
	if (offset == VIRTIO_MMIO_INTERRUPT_ACK) {
		__atomic_fetch_and(&v->isr, ~val, __ATOMIC_SEQ_CST);
		return;
	}
	if (offset == VIRTIO_MMIO_QUEUE_NOTIFY) {
		if (val < v->spec.nqueues)
			virtio_kick(v, val);
		return;
	}
	pthread_mutex_lock(&v->lock);
	if (v->resetting)
		; /* another vCPU is in the middle of it */
	else if (offset >= VIRTIO_MMIO_CONFIG)
		write_config(v, offset - VIRTIO_MMIO_CONFIG, data, len);
	else
		write_register(v, offset, val);
	pthread_mutex_unlock(&v->lock);
}
