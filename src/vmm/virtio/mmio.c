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

#include <errno.h>
#include <linux/virtio_config.h>
#include <linux/virtio_mmio.h>
#include <linux/virtio_ring.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/err.h"
#include "base/log.h"
#include "base/loop.h"
#include "vmm/mem.h"
#include "vmm/virtio/device.h"

#define MAGIC 0x74726976u  /* "virt" */
#define VENDOR 0x484c434fu /* "OCLH" */

#define S_ACK VIRTIO_CONFIG_S_ACKNOWLEDGE
#define S_DRIVER VIRTIO_CONFIG_S_DRIVER
#define S_FEATURES_OK VIRTIO_CONFIG_S_FEATURES_OK
#define S_DRIVER_OK VIRTIO_CONFIG_S_DRIVER_OK
#define S_NEEDS_RESET VIRTIO_CONFIG_S_NEEDS_RESET
#define S_FAILED VIRTIO_CONFIG_S_FAILED
#define S_BY_DRIVER (S_ACK | S_DRIVER | S_FEATURES_OK | S_DRIVER_OK | S_FAILED)

#define BIT64(n) (1ULL << (n))
#define RING_FEATURES                                                     \
	(BIT64(VIRTIO_F_VERSION_1) | BIT64(VIRTIO_RING_F_INDIRECT_DESC) | \
	 BIT64(VIRTIO_RING_F_EVENT_IDX))

static void bump(int eventfd)
{
	uint64_t one = 1;
	ssize_t ignored = write(eventfd, &one, sizeof(one)); /* full means already raised */

	(void)ignored;
}

static void raise_interrupt(struct virtio_mmio *v, uint32_t why)
{
	__atomic_fetch_or(&v->isr, why, __ATOMIC_SEQ_CST);
	bump(v->irq_fd);
}

static uint64_t device_features(const struct virtio_mmio *v)
{
	return v->spec.features | RING_FEATURES;
}

int virtio_mmio_init(struct virtio_mmio *v, const struct virtio_spec *spec, void *dev,
		     struct guest_mem *mem, struct err *e)
{
	unsigned i;

	v->spec = *spec;
	v->dev = dev;
	v->mem = mem;
	for (i = 0; i < VIRTIO_QUEUES_MAX; i++)
		v->kick_fds[i] = -1;
	v->irq_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (v->irq_fd < 0)
		return err_errno(e, errno, "interrupt of a virtio device");
	for (i = 0; i < spec->nqueues; i++) {
		v->queues[i].size_max = spec->queue_size;
		v->kick_fds[i] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
		if (v->kick_fds[i] < 0)
			return err_errno(e, errno, "queue of a virtio device");
	}
	if ((errno = pthread_mutex_init(&v->lock, NULL)) != 0)
		return err_errno(e, errno, "lock of a virtio device");
	return 0;
}

void virtio_mmio_fini(struct virtio_mmio *v)
{
	unsigned i;

	if (!v->dev)
		return;
	for (i = 0; i < v->spec.nqueues; i++) {
		loop_remove(v->kick_sources[i]);
		close_fd(&v->kick_fds[i]);
	}
	close_fd(&v->irq_fd);
	pthread_mutex_destroy(&v->lock);
	v->dev = NULL;
}

/* What devices call. */

bool virtio_can_work(const struct virtio_mmio *v)
{
	return (v->status & S_DRIVER_OK) && !(v->status & S_NEEDS_RESET) && !v->paused &&
	       !v->resetting;
}

bool virtio_has_feature(const struct virtio_mmio *v, unsigned bit)
{
	return v->driver_features & BIT64(bit);
}

int virtio_pop(struct virtio_mmio *v, unsigned queue, struct virtq_chain *c)
{
	int r;

	if (!virtio_can_work(v))
		return 0;
	r = virtq_pop(&v->queues[queue], c);
	if (r < 0)
		virtio_break(v, "invalid descriptor chain or ring index");
	return r > 0;
}

void virtio_publish(struct virtio_mmio *v, unsigned queue)
{
	if (virtq_publish(&v->queues[queue]))
		raise_interrupt(v, VIRTIO_MMIO_INT_VRING);
}

void virtio_break(struct virtio_mmio *v, const char *why)
{
	if (v->status & S_NEEDS_RESET)
		return;
	log_warn("virtio device %u needs a reset: %s", v->spec.device_id, why);
	v->status |= S_NEEDS_RESET;
	v->forget = true;
	virtio_kick(v, 0);
	if (v->status & S_DRIVER_OK)
		raise_interrupt(v, VIRTIO_MMIO_INT_CONFIG);
}

void virtio_config_changed(struct virtio_mmio *v)
{
	v->config_generation++;
	if (v->status & S_DRIVER_OK)
		raise_interrupt(v, VIRTIO_MMIO_INT_CONFIG);
}

void virtio_kick(struct virtio_mmio *v, unsigned queue)
{
	bump(v->kick_fds[queue]);
}

static void kick_all(struct virtio_mmio *v)
{
	unsigned i;

	for (i = 0; i < v->spec.nqueues; i++)
		virtio_kick(v, i);
}

void virtio_enter(struct virtio_mmio *v)
{
	pthread_mutex_lock(&v->lock);
	if (!v->forget)
		return;
	v->forget = false;
	if (v->spec.ops->forget)
		v->spec.ops->forget(v->dev);
}

void virtio_leave(struct virtio_mmio *v)
{
	pthread_mutex_unlock(&v->lock);
	if (v->spec.ops->unlocked)
		v->spec.ops->unlocked(v->dev);
}

/* Kicks on the loop. */

static void on_kick(void *ctx, int fd, uint32_t events)
{
	struct virtio_mmio *v = ctx;
	uint64_t n;
	unsigned q;

	(void)events;
	if (read(fd, &n, sizeof(n)) < 0)
		return; /* EAGAIN: nothing new */
	for (q = 0; v->kick_fds[q] != fd; q++)
		;
	virtio_enter(v);
	if (virtio_can_work(v) && v->queues[q].ready)
		v->spec.ops->kick(v->dev, q);
	virtio_leave(v);
}

int virtio_mmio_attach(struct virtio_mmio *v, struct loop *l, struct err *e)
{
	unsigned i;
	int r;

	v->loop = l;
	for (i = 0; i < v->spec.nqueues && !v->spec.own_kicks; i++) {
		r = loop_add_fd(l, v->kick_fds[i], EPOLLIN, on_kick, v, &v->kick_sources[i], e);
		if (r < 0)
			return r;
	}
	return v->spec.ops->attach ? v->spec.ops->attach(v->dev, l, e) : 0;
}

void virtio_mmio_pause(struct virtio_mmio *v)
{
	virtio_enter(v);
	v->paused = true;
	if (v->spec.ops->drain)
		v->spec.ops->drain(v->dev);
	if (v->spec.ops->paused)
		v->spec.ops->paused(v->dev, true);
	virtio_leave(v);
}

void virtio_mmio_resume(struct virtio_mmio *v)
{
	virtio_enter(v);
	v->paused = false;
	if (v->spec.ops->paused)
		v->spec.ops->paused(v->dev, false);
	virtio_leave(v);
	/* What came while paused, and an interrupt that a restore would have lost. */
	kick_all(v);
	if (__atomic_load_n(&v->isr, __ATOMIC_SEQ_CST))
		bump(v->irq_fd);
}

/* Registers. */

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
	return (v->driver_features & ~device_features(v)) == 0 &&
	       (v->driver_features & BIT64(VIRTIO_F_VERSION_1));
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
		kick_all(v); /* the driver may have filled queues before */
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
		kick_all(v); /* what waited for the other queues while this one drained */
	} else if (val == 1 && !q->ready) {
		if (virtq_enable(q, v->mem, virtio_has_feature(v, VIRTIO_RING_F_EVENT_IDX),
				 virtio_has_feature(v, VIRTIO_RING_F_INDIRECT_DESC)) < 0)
			log_warn("virtio device %u: queue %u refused: bad size or address",
				 v->spec.device_id, v->queue_sel);
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
			       : (uint32_t)(device_features(v) >> (32 * v->device_features_sel));
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

uint32_t virtio_mmio_device_id(const struct virtio_mmio *v)
{
	return v->spec.device_id;
}

unsigned virtio_mmio_queues(const struct virtio_mmio *v)
{
	return v->spec.nqueues;
}

int virtio_mmio_kick_fd(const struct virtio_mmio *v, unsigned queue)
{
	return queue < v->spec.nqueues ? v->kick_fds[queue] : -EINVAL;
}

int virtio_mmio_irq_fd(const struct virtio_mmio *v)
{
	return v->irq_fd;
}

bool virtio_mmio_is_broken(struct virtio_mmio *v)
{
	bool r;

	pthread_mutex_lock(&v->lock);
	r = v->status & S_NEEDS_RESET;
	pthread_mutex_unlock(&v->lock);
	return r;
}
