/*
 * The driver's side of a virtio-mmio device, for tests: it negotiates, lays queues out in guest
 * memory and exchanges buffers as Linux does, and lets a test break each rule by hand.
 */
#ifndef CLOCHE_TESTS_UNIT_VIRTIO_DRIVER_H
#define CLOCHE_TESTS_UNIT_VIRTIO_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define VDRV_QUEUES 4
#define VDRV_WAIT_MS 20000 /* after which a test that waits for the device fails */

struct guest_mem;
struct loop;
struct loop_source;
struct virtio_mmio;

struct vdrv_queue {
	uint16_t size;
	uint64_t desc, avail, used; /* guest addresses */
	uint16_t next_desc, next_avail, last_used;
	bool indirect; /* chains go into a table of their own */
	bool event_idx;
	uint64_t tables; /* guest address of `size` indirect tables of 64 descriptors */
};

struct vdrv {
	struct virtio_mmio *v;
	struct guest_mem *mem;
	struct loop *loop; /* serves the device on this thread, or NULL when another one does */
	struct loop_source *irq_source, *guard;
	uint64_t heap; /* next free guest address */
	uint64_t features;
	struct vdrv_queue q[VDRV_QUEUES];
};

struct vdrv_buf {
	uint64_t gpa;
	uint32_t len;
	bool in; /* the device writes it */
};

/* Over guest memory from heap on; loop may be NULL. */
void vdrv_init(struct vdrv *d, struct virtio_mmio *v, struct guest_mem *mem, struct loop *loop,
	       uint64_t heap);
void vdrv_fini(struct vdrv *d);

uint32_t vdrv_get(struct vdrv *d, uint32_t reg);
void vdrv_set(struct vdrv *d, uint32_t reg, uint32_t val);

uint64_t vdrv_alloc(struct vdrv *d, uint64_t len); /* guest address, 4 KiB aligned */
void *vdrv_ptr(struct vdrv *d, uint64_t gpa, uint64_t len);

/* Reset, ACKNOWLEDGE, DRIVER, features & mask | VERSION_1, FEATURES_OK; whether it stuck. */
bool vdrv_negotiate(struct vdrv *d, uint64_t mask);
/* One queue of at most `size` entries; whether it became ready. */
bool vdrv_queue_setup(struct vdrv *d, unsigned q, uint16_t size);
/* All of it, to DRIVER_OK; asserts. */
void vdrv_start(struct vdrv *d, uint64_t mask, uint16_t size);

/* Writes descriptor i of queue q as it is. */
void vdrv_desc(struct vdrv *d, unsigned q, uint16_t i, uint64_t gpa, uint32_t len, uint16_t flags,
	       uint16_t next);
/* Makes head available; the caller kicks. */
void vdrv_offer(struct vdrv *d, unsigned q, uint16_t head);
/* A chain of buffers; its head. */
uint16_t vdrv_add(struct vdrv *d, unsigned q, const struct vdrv_buf *bufs, unsigned n);
void vdrv_kick(struct vdrv *d, unsigned q); /* unless the device asked for none */

/* The next used entry if there is one. */
bool vdrv_used(struct vdrv *d, unsigned q, uint16_t *head, uint32_t *len);
/* Waits for it; asserts. Returns its length. */
uint32_t vdrv_wait(struct vdrv *d, unsigned q, uint16_t *head);
/* Asks for an interrupt with the next used entry; whether there is one already. */
bool vdrv_arm(struct vdrv *d, unsigned q);
/* Waits until the interrupt fires. */
void vdrv_wait_irq(struct vdrv *d);

/* One turn of the loop with what is ready. */
void vdrv_turn(struct loop *l);

#endif
