/* A small polling driver of virtio-mmio devices. */
#ifndef CLOCHE_TESTS_PAYLOAD_VIRTIO_H
#define CLOCHE_TESTS_PAYLOAD_VIRTIO_H

#include "payload.h"

#define VQ_SIZE 8
#define VIRTIO_ID_BLK 2
#define VIRTIO_ID_RNG 4
#define VIRTIO_ID_VSOCK 19
#define VIRTIO_NEEDS_RESET 0x40

enum virtio_reg {
	VR_DEVICE_ID = 0x008,
	VR_DEVICE_FEATURES = 0x010,
	VR_DEVICE_FEATURES_SEL = 0x014,
	VR_DRIVER_FEATURES = 0x020,
	VR_DRIVER_FEATURES_SEL = 0x024,
	VR_QUEUE_SEL = 0x030,
	VR_QUEUE_NUM_MAX = 0x034,
	VR_QUEUE_NUM = 0x038,
	VR_QUEUE_READY = 0x044,
	VR_QUEUE_NOTIFY = 0x050,
	VR_INTERRUPT_STATUS = 0x060,
	VR_INTERRUPT_ACK = 0x064,
	VR_STATUS = 0x070,
	VR_QUEUE_DESC = 0x080,
	VR_QUEUE_DRIVER = 0x090,
	VR_QUEUE_DEVICE = 0x0a0,
	VR_CONFIG = 0x100,
};

struct vq_desc {
	uint64_t addr;
	uint32_t len;
	uint16_t flags, next;
};

#define VQ_NEXT 1
#define VQ_WRITE 2

struct vq {
	struct vq_desc desc[VQ_SIZE] __attribute__((aligned(16)));
	struct {
		uint16_t flags, idx, ring[VQ_SIZE];
	} avail __attribute__((aligned(4)));
	struct {
		uint16_t flags;
		volatile uint16_t idx;
		struct {
			uint32_t id, len;
		} ring[VQ_SIZE];
	} used __attribute__((aligned(4)));
	uint64_t base;
	uint16_t index; /* of the queue */
	uint16_t seen;	/* used entries taken */
};

/* The window of the first device of a kind, or 0; *gsi its interrupt. */
uint64_t virtio_find(uint32_t id, uint32_t *gsi);

/* Reset, negotiate VERSION_1 only, and up to FEATURES_OK. */
bool virtio_begin(uint64_t base);
void virtio_queue(uint64_t base, uint16_t index, struct vq *q);
void virtio_ready(uint64_t base); /* DRIVER_OK */

/* Puts the chain that starts at descriptor `head` into the ring and kicks. */
void vq_submit(struct vq *q, uint16_t head);

/* One completion if there is one: its length, else -1. */
int64_t vq_poll(struct vq *q, uint16_t *head);

/* Waits for one completion; its length, or -1 when none came. */
int64_t vq_wait(struct vq *q, uint16_t *head);

#endif
