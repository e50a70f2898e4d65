#include "virtio_driver.h"

#include <errno.h>
#include <linux/virtio_config.h>
#include <linux/virtio_mmio.h>
#include <linux/virtio_ring.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/loop.h"
#include "vmm/mem.h"
#include "vmm/virtio/mmio.h"

#define TABLE_DESCS 64

static void on_irq(void *ctx, int fd, uint32_t events)
{
	struct vdrv *d = ctx;
	uint64_t n;

	(void)events;
	if (read(fd, &n, sizeof(n)) > 0)
		loop_stop(d->loop);
}

static void on_guard(void *ctx)
{
	(void)ctx;
	fail_msg("the device did not answer within %d ms", VDRV_WAIT_MS);
}

static void on_turn(void *ctx)
{
	loop_stop(ctx);
}

void vdrv_turn(struct loop *l)
{
	loop_on_wake(l, on_turn, l);
	loop_wake(l);
	assert_int_equal(loop_run(l, NULL), 0);
}

void vdrv_init(struct vdrv *d, struct virtio_mmio *v, struct guest_mem *mem, struct loop *loop,
	       uint64_t heap)
{
	memset(d, 0, sizeof(*d));
	d->v = v;
	d->mem = mem;
	d->loop = loop;
	d->heap = heap;
	if (!loop)
		return;
	assert_int_equal(
		loop_add_fd(loop, virtio_mmio_irq_fd(v), EPOLLIN, on_irq, d, &d->irq_source, NULL),
		0);
	assert_int_equal(loop_add_timer(loop, on_guard, d, &d->guard, NULL), 0);
}

void vdrv_fini(struct vdrv *d)
{
	loop_remove(d->irq_source);
	loop_remove(d->guard);
}

uint32_t vdrv_get(struct vdrv *d, uint32_t reg)
{
	uint32_t val;

	virtio_mmio_read(d->v, reg, &val, sizeof(val));
	return val;
}

void vdrv_set(struct vdrv *d, uint32_t reg, uint32_t val)
{
	virtio_mmio_write(d->v, reg, &val, sizeof(val));
}

uint64_t vdrv_alloc(struct vdrv *d, uint64_t len)
{
	uint64_t at = (d->heap + 4095) & ~4095ULL;

	d->heap = at + len;
	assert_non_null(guest_mem_at(d->mem, at, len));
	return at;
}

void *vdrv_ptr(struct vdrv *d, uint64_t gpa, uint64_t len)
{
	void *p = guest_mem_at(d->mem, gpa, len);

	assert_non_null(p);
	return p;
}

static uint64_t offered(struct vdrv *d)
{
	uint64_t f;

	vdrv_set(d, VIRTIO_MMIO_DEVICE_FEATURES_SEL, 0);
	f = vdrv_get(d, VIRTIO_MMIO_DEVICE_FEATURES);
	vdrv_set(d, VIRTIO_MMIO_DEVICE_FEATURES_SEL, 1);
	return f | (uint64_t)vdrv_get(d, VIRTIO_MMIO_DEVICE_FEATURES) << 32;
}

bool vdrv_negotiate(struct vdrv *d, uint64_t mask)
{
	uint32_t status = VIRTIO_CONFIG_S_ACKNOWLEDGE;

	vdrv_set(d, VIRTIO_MMIO_STATUS, 0);
	vdrv_set(d, VIRTIO_MMIO_STATUS, status);
	status |= VIRTIO_CONFIG_S_DRIVER;
	vdrv_set(d, VIRTIO_MMIO_STATUS, status);
	d->features = offered(d) & (mask | 1ULL << VIRTIO_F_VERSION_1);
	vdrv_set(d, VIRTIO_MMIO_DRIVER_FEATURES_SEL, 0);
	vdrv_set(d, VIRTIO_MMIO_DRIVER_FEATURES, (uint32_t)d->features);
	vdrv_set(d, VIRTIO_MMIO_DRIVER_FEATURES_SEL, 1);
	vdrv_set(d, VIRTIO_MMIO_DRIVER_FEATURES, (uint32_t)(d->features >> 32));
	vdrv_set(d, VIRTIO_MMIO_STATUS, status | VIRTIO_CONFIG_S_FEATURES_OK);
	return vdrv_get(d, VIRTIO_MMIO_STATUS) & VIRTIO_CONFIG_S_FEATURES_OK;
}

bool vdrv_queue_setup(struct vdrv *d, unsigned i, uint16_t size)
{
	struct vdrv_queue *q = &d->q[i];
	uint32_t max;

	vdrv_set(d, VIRTIO_MMIO_QUEUE_SEL, i);
	max = vdrv_get(d, VIRTIO_MMIO_QUEUE_NUM_MAX);
	memset(q, 0, sizeof(*q));
	q->size = size < max ? size : (uint16_t)max;
	q->indirect = d->features & 1ULL << VIRTIO_RING_F_INDIRECT_DESC;
	q->event_idx = d->features & 1ULL << VIRTIO_RING_F_EVENT_IDX;
	q->desc = vdrv_alloc(d, q->size * sizeof(struct vring_desc));
	q->avail = vdrv_alloc(d, 6 + 2ULL * q->size);
	q->used = vdrv_alloc(d, 6 + 8ULL * q->size);
	q->tables = vdrv_alloc(d, (uint64_t)q->size * TABLE_DESCS * sizeof(struct vring_desc));
	memset(vdrv_ptr(d, q->avail, 6 + 2ULL * q->size), 0, 6 + 2ULL * q->size);
	memset(vdrv_ptr(d, q->used, 6 + 8ULL * q->size), 0, 6 + 8ULL * q->size);
	vdrv_set(d, VIRTIO_MMIO_QUEUE_NUM, q->size);
	vdrv_set(d, VIRTIO_MMIO_QUEUE_DESC_LOW, (uint32_t)q->desc);
	vdrv_set(d, VIRTIO_MMIO_QUEUE_DESC_HIGH, (uint32_t)(q->desc >> 32));
	vdrv_set(d, VIRTIO_MMIO_QUEUE_AVAIL_LOW, (uint32_t)q->avail);
	vdrv_set(d, VIRTIO_MMIO_QUEUE_AVAIL_HIGH, (uint32_t)(q->avail >> 32));
	vdrv_set(d, VIRTIO_MMIO_QUEUE_USED_LOW, (uint32_t)q->used);
	vdrv_set(d, VIRTIO_MMIO_QUEUE_USED_HIGH, (uint32_t)(q->used >> 32));
	vdrv_set(d, VIRTIO_MMIO_QUEUE_READY, 1);
	return vdrv_get(d, VIRTIO_MMIO_QUEUE_READY) == 1;
}

void vdrv_start(struct vdrv *d, uint64_t mask, uint16_t size)
{
	unsigned i;

	assert_true(vdrv_negotiate(d, mask));
	for (i = 0; i < virtio_mmio_queues(d->v); i++)
		assert_true(vdrv_queue_setup(d, i, size));
	vdrv_set(d, VIRTIO_MMIO_STATUS,
		 vdrv_get(d, VIRTIO_MMIO_STATUS) | VIRTIO_CONFIG_S_DRIVER_OK);
	assert_true(vdrv_get(d, VIRTIO_MMIO_STATUS) & VIRTIO_CONFIG_S_DRIVER_OK);
}

static void put_desc(struct vring_desc *t, uint16_t i, uint64_t gpa, uint32_t len, uint16_t flags,
		     uint16_t next)
{
	t[i] = (struct vring_desc){ .addr = gpa, .len = len, .flags = flags, .next = next };
}

void vdrv_desc(struct vdrv *d, unsigned q, uint16_t i, uint64_t gpa, uint32_t len, uint16_t flags,
	       uint16_t next)
{
	put_desc(vdrv_ptr(d, d->q[q].desc, d->q[q].size * sizeof(struct vring_desc)), i, gpa, len,
		 flags, next);
}

static struct vring_avail *avail_ring(struct vdrv *d, unsigned q)
{
	return vdrv_ptr(d, d->q[q].avail, 6 + 2ULL * d->q[q].size);
}

static struct vring_used *used_ring(struct vdrv *d, unsigned q)
{
	return vdrv_ptr(d, d->q[q].used, 6 + 8ULL * d->q[q].size);
}

void vdrv_offer(struct vdrv *d, unsigned i, uint16_t head)
{
	struct vdrv_queue *q = &d->q[i];
	struct vring_avail *a = avail_ring(d, i);

	__atomic_store_n(&a->ring[q->next_avail % q->size], head, __ATOMIC_RELAXED);
	q->next_avail++;
	__atomic_store_n(&a->idx, q->next_avail, __ATOMIC_RELEASE);
}

static uint16_t add_indirect(struct vdrv *d, unsigned i, const struct vdrv_buf *bufs, unsigned n)
{
	struct vdrv_queue *q = &d->q[i];
	uint16_t head = q->next_desc++ % q->size;
	uint64_t table = q->tables + (uint64_t)head * TABLE_DESCS * sizeof(struct vring_desc);
	struct vring_desc *t = vdrv_ptr(d, table, TABLE_DESCS * sizeof(*t));
	unsigned k;

	assert_true(n <= TABLE_DESCS);
	for (k = 0; k < n; k++)
		put_desc(t, (uint16_t)k, bufs[k].gpa, bufs[k].len,
			 (uint16_t)((bufs[k].in ? VRING_DESC_F_WRITE : 0) |
				    (k + 1 < n ? VRING_DESC_F_NEXT : 0)),
			 (uint16_t)(k + 1));
	vdrv_desc(d, i, head, table, (uint32_t)(n * sizeof(*t)), VRING_DESC_F_INDIRECT, 0);
	return head;
}

/* Descriptors are taken in a circle: a test never has more than a ring of them outstanding. */
static uint16_t add_direct(struct vdrv *d, unsigned i, const struct vdrv_buf *bufs, unsigned n)
{
	struct vdrv_queue *q = &d->q[i];
	uint16_t head = q->next_desc % q->size;
	unsigned k;

	for (k = 0; k < n; k++) {
		uint16_t at = q->next_desc++ % q->size;

		vdrv_desc(d, i, at, bufs[k].gpa, bufs[k].len,
			  (uint16_t)((bufs[k].in ? VRING_DESC_F_WRITE : 0) |
				     (k + 1 < n ? VRING_DESC_F_NEXT : 0)),
			  (uint16_t)((at + 1) % q->size));
	}
	return head;
}

uint16_t vdrv_add(struct vdrv *d, unsigned q, const struct vdrv_buf *bufs, unsigned n)
{
	uint16_t head = d->q[q].indirect ? add_indirect(d, q, bufs, n) : add_direct(d, q, bufs, n);

	vdrv_offer(d, q, head);
	return head;
}

void vdrv_kick(struct vdrv *d, unsigned i)
{
	struct vdrv_queue *q = &d->q[i];
	struct vring_used *u = used_ring(d, i);

	__sync_synchronize();
	if (!q->event_idx &&
	    (__atomic_load_n(&u->flags, __ATOMIC_RELAXED) & VRING_USED_F_NO_NOTIFY))
		return;
	/* With event indexes a kick too many does no harm, so tests kick always. */
	vdrv_set(d, VIRTIO_MMIO_QUEUE_NOTIFY, i);
}

bool vdrv_used(struct vdrv *d, unsigned i, uint16_t *head, uint32_t *len)
{
	struct vdrv_queue *q = &d->q[i];
	struct vring_used *u = used_ring(d, i);
	struct vring_used_elem *el = &u->ring[q->last_used % q->size];

	if (__atomic_load_n(&u->idx, __ATOMIC_ACQUIRE) == q->last_used)
		return false;
	if (head)
		*head = (uint16_t)__atomic_load_n(&el->id, __ATOMIC_RELAXED);
	if (len)
		*len = __atomic_load_n(&el->len, __ATOMIC_RELAXED);
	q->last_used++;
	return true;
}

void vdrv_wait_irq(struct vdrv *d)
{
	struct pollfd p = { .fd = virtio_mmio_irq_fd(d->v), .events = POLLIN };
	uint64_t n;

	if (d->loop) {
		loop_set_timer(d->guard, clock_mono_ns() + VDRV_WAIT_MS * NSEC_PER_MSEC);
		assert_int_equal(loop_run(d->loop, NULL), 0);
		loop_set_timer(d->guard, 0);
	} else {
		assert_int_equal(poll(&p, 1, VDRV_WAIT_MS), 1);
		/* Another thread of the test may have been quicker. */
		assert_true(read(p.fd, &n, sizeof(n)) > 0 || errno == EAGAIN);
	}
	vdrv_set(d, VIRTIO_MMIO_INTERRUPT_ACK, vdrv_get(d, VIRTIO_MMIO_INTERRUPT_STATUS));
}

bool vdrv_arm(struct vdrv *d, unsigned i)
{
	struct vdrv_queue *q = &d->q[i];

	__atomic_store_n(&avail_ring(d, i)->ring[q->size], q->last_used, __ATOMIC_RELAXED);
	__sync_synchronize();
	return __atomic_load_n(&used_ring(d, i)->idx, __ATOMIC_ACQUIRE) != q->last_used;
}

uint32_t vdrv_wait(struct vdrv *d, unsigned i, uint16_t *head)
{
	uint32_t len = 0;

	while (!vdrv_used(d, i, head, &len))
		if (!vdrv_arm(d, i))
			vdrv_wait_irq(d);
	return len;
}
