/* Queues are static, of VQ_SIZE entries, completions polled. */
#include "virtio.h"

#define WINDOWS 0xd0000000ULL
#define WINDOW_BYTES 0x1000ULL
#define WINDOWS_MAX 16
#define FIRST_GSI 5
#define MAGIC 0x74726976
#define STATUS_DRIVER 3
#define STATUS_FEATURES_OK 8
#define STATUS_DRIVER_OK 4
#define SPINS 100000000ULL

uint64_t virtio_find(uint32_t id, uint32_t *gsi)
{
	for (uint32_t i = 0; i < WINDOWS_MAX; i++) {
		uint64_t base = WINDOWS + i * WINDOW_BYTES;

		if (mmio_read(base) != MAGIC)
			return 0;
		if (mmio_read(base + VR_DEVICE_ID) == id) {
			*gsi = FIRST_GSI + i;
			return base;
		}
	}
	return 0;
}

bool virtio_begin(uint64_t base)
{
	mmio_write(base + VR_STATUS, 0);
	while (mmio_read(base + VR_STATUS))
		relax();
	mmio_write(base + VR_STATUS, STATUS_DRIVER);
	mmio_write(base + VR_DRIVER_FEATURES_SEL, 0);
	mmio_write(base + VR_DRIVER_FEATURES, 0);
	mmio_write(base + VR_DRIVER_FEATURES_SEL, 1);
	mmio_write(base + VR_DRIVER_FEATURES, 1); /* VERSION_1 */
	mmio_write(base + VR_STATUS, STATUS_DRIVER | STATUS_FEATURES_OK);
	return mmio_read(base + VR_STATUS) & STATUS_FEATURES_OK;
}

static void write64(uint64_t base, uint32_t reg, uint64_t v)
{
	mmio_write(base + reg, (uint32_t)v);
	mmio_write(base + reg + 4, (uint32_t)(v >> 32));
}

void virtio_queue(uint64_t base, uint16_t index, struct vq *q)
{
	memset(q, 0, sizeof(*q));
	q->base = base;
	q->index = index;
	mmio_write(base + VR_QUEUE_SEL, index);
	mmio_write(base + VR_QUEUE_NUM, VQ_SIZE);
	write64(base, VR_QUEUE_DESC, (uint64_t)q->desc);
	write64(base, VR_QUEUE_DRIVER, (uint64_t)&q->avail);
	write64(base, VR_QUEUE_DEVICE, (uint64_t)&q->used);
	mmio_write(base + VR_QUEUE_READY, 1);
}

void virtio_ready(uint64_t base)
{
	mmio_write(base + VR_STATUS, STATUS_DRIVER | STATUS_FEATURES_OK | STATUS_DRIVER_OK);
}

void vq_submit(struct vq *q, uint16_t head)
{
	q->avail.ring[q->avail.idx % VQ_SIZE] = head;
	barrier();
	q->avail.idx++;
	barrier();
	mmio_write(q->base + VR_QUEUE_NOTIFY, q->index);
}

int64_t vq_poll(struct vq *q, uint16_t *head)
{
	uint16_t at;

	if (q->used.idx == q->seen)
		return -1;
	at = q->seen++ % VQ_SIZE;
	barrier();
	*head = (uint16_t)q->used.ring[at].id;
	return q->used.ring[at].len;
}

int64_t vq_wait(struct vq *q, uint16_t *head)
{
	for (uint64_t i = 0; i < SPINS; i++) {
		int64_t n = vq_poll(q, head);

		if (n >= 0)
			return n;
		relax();
	}
	return -1;
}
