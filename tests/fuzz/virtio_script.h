/*
 * Fuzz input as a script that a hostile driver runs against one virtio device: register writes,
 * writes into guest memory, descriptors, kicks. Whole structures are ops of their own, so that a
 * mutation reaches past the negotiation. Included by one target each.
 */
#ifndef CLOCHE_TESTS_FUZZ_VIRTIO_SCRIPT_H
#define CLOCHE_TESTS_FUZZ_VIRTIO_SCRIPT_H

#include <linux/virtio_config.h>
#include <linux/virtio_mmio.h>
#include <linux/virtio_ring.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/loop.h"
#include "vmm/mem.h"
#include "vmm/virtio/device.h"
#include "vmm/virtio/mmio.h"

#define SCRIPT_MEM (256u << 10)
#define SCRIPT_QUEUE 8u		      /* entries a set-up queue has */
#define SCRIPT_RINGS(q) ((q)*0x1000u) /* guest address of its descriptors; avail, used behind */
#define SCRIPT_OPS_MAX 512

struct script {
	const uint8_t *p, *end;
	struct guest_mem *mem;
	struct loop *loop;
	struct virtio_mmio *v;
	uint16_t avail[VIRTIO_QUEUES_MAX];
};

enum script_op {
	OP_WRITE_REG,  /* u8 offset / 4, u32 value */
	OP_READ_REG,   /* u8 offset / 2, u8 width */
	OP_WRITE_CONF, /* u8 offset, u8 width, u64 */
	OP_SET_UP,     /* u8 features: negotiates, readies all queues, DRIVER_OK */
	OP_POKE,       /* u24 address, u8 length, bytes */
	OP_DESC,       /* u8 queue, u8 index, u24 address, u24 length, u8 flags, u8 next */
	OP_OFFER,      /* u8 queue, u8 head */
	OP_INDEX,      /* u8 queue, u16: the available index as it is */
	OP_KICK,       /* u8 queue */
	OP_PAUSE,
	OP_RESUME,
	OP_DEVICE, /* and above: the target's own */
};

/* The next n bytes as a number; zero once the input is used up. */
static inline uint64_t script_take(struct script *s, unsigned n)
{
	uint64_t v = 0;
	unsigned i;

	for (i = 0; i < n && s->p < s->end; i++)
		v |= (uint64_t)*s->p++ << (8 * i);
	return v;
}

static inline void script_set(struct script *s, uint32_t reg, uint32_t val)
{
	virtio_mmio_write(s->v, reg, &val, sizeof(val));
}

static inline void script_set_up(struct script *s, uint8_t features)
{
	uint64_t f = s->v->spec.features | 1ULL << VIRTIO_F_VERSION_1;
	unsigned q;

	f |= (features & 1) ? 1ULL << VIRTIO_RING_F_INDIRECT_DESC : 0;
	f |= (features & 2) ? 1ULL << VIRTIO_RING_F_EVENT_IDX : 0;
	script_set(s, VIRTIO_MMIO_STATUS, 0);
	script_set(s, VIRTIO_MMIO_STATUS, 1);
	script_set(s, VIRTIO_MMIO_STATUS, 3);
	script_set(s, VIRTIO_MMIO_DRIVER_FEATURES, (uint32_t)f);
	script_set(s, VIRTIO_MMIO_DRIVER_FEATURES_SEL, 1);
	script_set(s, VIRTIO_MMIO_DRIVER_FEATURES, (uint32_t)(f >> 32));
	script_set(s, VIRTIO_MMIO_STATUS, 11);
	for (q = 0; q < s->v->spec.nqueues; q++) {
		memset(guest_mem_at(s->mem, SCRIPT_RINGS(q), 0x1000), 0, 0x1000);
		s->avail[q] = 0;
		script_set(s, VIRTIO_MMIO_QUEUE_SEL, q);
		script_set(s, VIRTIO_MMIO_QUEUE_NUM, SCRIPT_QUEUE);
		script_set(s, VIRTIO_MMIO_QUEUE_DESC_LOW, SCRIPT_RINGS(q));
		script_set(s, VIRTIO_MMIO_QUEUE_AVAIL_LOW, SCRIPT_RINGS(q) + 0x400);
		script_set(s, VIRTIO_MMIO_QUEUE_USED_LOW, SCRIPT_RINGS(q) + 0x800);
		script_set(s, VIRTIO_MMIO_QUEUE_READY, 1);
	}
	script_set(s, VIRTIO_MMIO_STATUS, 15);
}

static inline void script_index(struct script *s, unsigned q, uint16_t idx)
{
	s->avail[q] = idx;
	guest_mem_write(s->mem, SCRIPT_RINGS(q) + 0x402, &idx, 2);
}

static inline void script_desc(struct script *s)
{
	unsigned q = (unsigned)script_take(s, 1) % VIRTIO_QUEUES_MAX;
	unsigned i = (unsigned)script_take(s, 1) % SCRIPT_QUEUE;
	struct vring_desc d = { 0 };

	d.addr = script_take(s, 3);
	d.len = (uint32_t)script_take(s, 3);
	d.flags = (uint16_t)script_take(s, 1);
	d.next = (uint16_t)script_take(s, 1);
	guest_mem_write(s->mem, SCRIPT_RINGS(q) + i * sizeof(d), &d, sizeof(d));
}

static inline void script_poke(struct script *s)
{
	uint64_t at = script_take(s, 3), n = script_take(s, 1);

	n = n < (size_t)(s->end - s->p) ? n : (size_t)(s->end - s->p);
	guest_mem_write(s->mem, at, s->p, n);
	s->p += n;
}

static inline void script_on_turn(void *ctx)
{
	loop_stop(ctx);
}

/* One turn of the loop with what is ready. */
static inline void script_turn(struct script *s)
{
	loop_on_wake(s->loop, script_on_turn, s->loop);
	loop_wake(s->loop);
	if (loop_run(s->loop, NULL) < 0)
		abort();
}

/* Runs one op of the transport; false when it is the device's. */
static inline bool script_common(struct script *s, unsigned op)
{
	uint64_t a, b;
	uint8_t bytes[16];

	switch (op) {
	case OP_WRITE_REG:
		a = script_take(s, 1) * 4;
		script_set(s, (uint32_t)a, (uint32_t)script_take(s, 4));
		return true;
	case OP_READ_REG:
		a = script_take(s, 1) * 2;
		virtio_mmio_read(s->v, a, bytes, script_take(s, 1) % 9);
		return true;
	case OP_WRITE_CONF:
		a = VIRTIO_MMIO_CONFIG + script_take(s, 1);
		b = script_take(s, 1) % 9;
		memset(bytes, (int)script_take(s, 1), sizeof(bytes));
		virtio_mmio_write(s->v, a, bytes, b);
		return true;
	case OP_SET_UP:
		script_set_up(s, (uint8_t)script_take(s, 1));
		return true;
	case OP_POKE:
		script_poke(s);
		return true;
	case OP_DESC:
		script_desc(s);
		return true;
	case OP_OFFER:
		a = script_take(s, 1) % VIRTIO_QUEUES_MAX;
		b = script_take(s, 1);
		guest_mem_write(s->mem, SCRIPT_RINGS(a) + 0x404 + 2 * (s->avail[a] % SCRIPT_QUEUE),
				&b, 2);
		script_index(s, (unsigned)a, (uint16_t)(s->avail[a] + 1));
		return true;
	case OP_INDEX:
		a = script_take(s, 1) % VIRTIO_QUEUES_MAX;
		script_index(s, (unsigned)a, (uint16_t)script_take(s, 2));
		return true;
	case OP_KICK:
		script_set(s, VIRTIO_MMIO_QUEUE_NOTIFY, (uint32_t)script_take(s, 1));
		script_turn(s);
		return true;
	case OP_PAUSE:
		virtio_mmio_pause(s->v);
		return true;
	case OP_RESUME:
		virtio_mmio_resume(s->v);
		script_turn(s);
		return true;
	default:
		return false;
	}
}

static inline void script_begin(struct script *s, const uint8_t *data, size_t size)
{
	*s = (struct script){ .p = data, .end = data + size };
	log_init("fuzz", LOG_ERROR);
	if (guest_mem_new(SCRIPT_MEM, 0, &s->mem, NULL) < 0 || loop_new(&s->loop, NULL) < 0)
		abort();
}

static inline void script_end(struct script *s)
{
	loop_free(s->loop);
	guest_mem_free(s->mem);
}

/* What must hold whatever the driver did: never more taken than there was room for. */
static inline void script_check(const struct script *s)
{
	unsigned i;

	for (i = 0; i < s->v->spec.nqueues; i++) {
		const struct virtq *q = &s->v->queues[i];

		if (q->ready && (uint16_t)(q->next_avail - q->next_used) > q->size)
			abort();
	}
}

#endif
