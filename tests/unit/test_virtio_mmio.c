/*
 * The transport's registers and the rings, with the rng device behind them because its answers
 * are the simplest: what is negotiated, what is refused, and that a driver which breaks a rule
 * breaks its device and nothing else.
 */
#include <errno.h>
#include <linux/virtio_config.h>
#include <linux/virtio_mmio.h>
#include <linux/virtio_ring.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/loop.h"
#include "virtio_driver.h"
#include "vmm/mem.h"
#include "vmm/virtio/mmio.h"
#include "vmm/virtio/rng.h"

#define ACK VIRTIO_CONFIG_S_ACKNOWLEDGE
#define DRIVER VIRTIO_CONFIG_S_DRIVER
#define FEATURES_OK VIRTIO_CONFIG_S_FEATURES_OK
#define DRIVER_OK VIRTIO_CONFIG_S_DRIVER_OK
#define NEEDS_RESET VIRTIO_CONFIG_S_NEEDS_RESET
#define EVENT_IDX (1ULL << VIRTIO_RING_F_EVENT_IDX)
#define INDIRECT (1ULL << VIRTIO_RING_F_INDIRECT_DESC)
#define MEM (4u << 20)

struct fixture {
	struct loop *loop;
	struct guest_mem *mem;
	struct virtio_rng *rng;
	struct vdrv d;
};

static int set_up(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));

	assert_non_null(f);
	assert_int_equal(loop_new(&f->loop, NULL), 0);
	assert_int_equal(guest_mem_new(MEM, 0, &f->mem, NULL), 0);
	assert_int_equal(virtio_rng_new(f->mem, &f->rng, NULL), 0);
	assert_int_equal(virtio_mmio_attach(virtio_rng_mmio(f->rng), f->loop, NULL), 0);
	vdrv_init(&f->d, virtio_rng_mmio(f->rng), f->mem, f->loop, 1 << 20);
	*state = f;
	return 0;
}

static int tear_down(void **state)
{
	struct fixture *f = *state;

	vdrv_fini(&f->d);
	virtio_rng_free(f->rng);
	loop_free(f->loop);
	guest_mem_free(f->mem);
	free(f);
	return 0;
}

static uint32_t status(struct fixture *f)
{
	return vdrv_get(&f->d, VIRTIO_MMIO_STATUS);
}

/* Asks for 64 bytes and checks that they come. */
static void ask_works(struct fixture *f)
{
	struct vdrv_buf b = { .gpa = vdrv_alloc(&f->d, 64), .len = 64, .in = true };
	uint8_t *p = vdrv_ptr(&f->d, b.gpa, 64);
	uint16_t head, got;
	unsigned i, zero = 0;

	memset(p, 0, 64);
	head = vdrv_add(&f->d, 0, &b, 1);
	vdrv_kick(&f->d, 0);
	assert_int_equal(vdrv_wait(&f->d, 0, &got), 64);
	assert_int_equal(got, head);
	for (i = 0; i < 64; i++)
		zero += p[i] == 0;
	assert_true(zero < 16);
}

static void identity(void **state)
{
	struct fixture *f = *state;
	uint64_t big = UINT64_MAX;
	uint8_t byte = 0xff;
	uint16_t half = 0xffff;

	assert_int_equal(vdrv_get(&f->d, VIRTIO_MMIO_MAGIC_VALUE), 0x74726976);
	assert_int_equal(vdrv_get(&f->d, VIRTIO_MMIO_VERSION), 2);
	assert_int_equal(vdrv_get(&f->d, VIRTIO_MMIO_DEVICE_ID), 4);
	assert_int_equal(vdrv_get(&f->d, VIRTIO_MMIO_SHM_LEN_LOW), 0xffffffff);
	assert_int_equal(vdrv_get(&f->d, 0x0f0), 0);
	/* Registers are 32 bits wide; other widths read as zero. */
	virtio_mmio_read(f->d.v, VIRTIO_MMIO_MAGIC_VALUE, &big, sizeof(big));
	virtio_mmio_read(f->d.v, VIRTIO_MMIO_MAGIC_VALUE, &byte, sizeof(byte));
	virtio_mmio_read(f->d.v, VIRTIO_MMIO_MAGIC_VALUE + 2, &half, sizeof(half));
	assert_int_equal(big, 0);
	assert_int_equal(byte, 0);
	assert_int_equal(half, 0);
	/* This device has no configuration. */
	virtio_mmio_read(f->d.v, VIRTIO_MMIO_CONFIG, &big, sizeof(big));
	assert_int_equal(big, 0);
	virtio_mmio_read(f->d.v, UINT64_MAX - 3, &big, sizeof(big));
	assert_int_equal(big, 0);
	virtio_mmio_write(f->d.v, UINT64_MAX - 3, &big, sizeof(big));
	assert_int_equal(status(f), 0);
}

static void requests_with_each_feature(void **state)
{
	static const uint64_t masks[] = { 0, EVENT_IDX, INDIRECT, EVENT_IDX | INDIRECT };
	struct fixture *f = *state;

	for (size_t m = 0; m < ARRAY_SIZE(masks); m++) {
		f->d.heap = 1 << 20;
		vdrv_start(&f->d, masks[m], 8);
		assert_int_equal(f->d.features, masks[m] | 1ULL << VIRTIO_F_VERSION_1);
		for (int i = 0; i < 100; i++) {
			f->d.heap = 2 << 20;
			ask_works(f);
		}
	}
}

/* The 16-bit ring indexes wrap. */
static void indexes_wrap(void **state)
{
	struct fixture *f = *state;
	struct vdrv_buf b = { .gpa = 2 << 20, .len = 1, .in = true };

	vdrv_start(&f->d, EVENT_IDX, 64);
	for (int i = 0; i < 66000; i += 32) {
		for (int k = 0; k < 32; k++)
			vdrv_add(&f->d, 0, &b, 1);
		vdrv_kick(&f->d, 0);
		for (int k = 0; k < 32; k++)
			assert_int_equal(vdrv_wait(&f->d, 0, NULL), 1);
	}
	assert_true(f->d.q[0].next_avail < 1000);
}

static void status_goes_in_order(void **state)
{
	struct fixture *f = *state;

	vdrv_set(&f->d, VIRTIO_MMIO_STATUS, DRIVER);
	assert_int_equal(status(f), 0);
	vdrv_set(&f->d, VIRTIO_MMIO_STATUS, ACK);
	vdrv_set(&f->d, VIRTIO_MMIO_STATUS, ACK | FEATURES_OK);
	assert_int_equal(status(f), ACK);
	vdrv_set(&f->d, VIRTIO_MMIO_STATUS, ACK | DRIVER);
	vdrv_set(&f->d, VIRTIO_MMIO_STATUS, ACK | DRIVER | DRIVER_OK);
	assert_int_equal(status(f), ACK | DRIVER);
	/* A write that clears a bit is refused. */
	vdrv_set(&f->d, VIRTIO_MMIO_STATUS, ACK);
	assert_int_equal(status(f), ACK | DRIVER);
	vdrv_set(&f->d, VIRTIO_MMIO_STATUS, DRIVER | VIRTIO_CONFIG_S_FAILED);
	assert_int_equal(status(f), ACK | DRIVER);
	/* The driver cannot say that the device needs a reset, nor set unknown bits. */
	vdrv_set(&f->d, VIRTIO_MMIO_STATUS, ACK | DRIVER | NEEDS_RESET | 0xffffff00);
	assert_int_equal(status(f), ACK | DRIVER);
	vdrv_set(&f->d, VIRTIO_MMIO_STATUS, 0);
	assert_int_equal(status(f), 0);
}

static void features_are_checked(void **state)
{
	struct fixture *f = *state;

	/* Without VERSION_1. */
	vdrv_set(&f->d, VIRTIO_MMIO_STATUS, ACK);
	vdrv_set(&f->d, VIRTIO_MMIO_STATUS, ACK | DRIVER);
	vdrv_set(&f->d, VIRTIO_MMIO_DRIVER_FEATURES, 0);
	vdrv_set(&f->d, VIRTIO_MMIO_STATUS, ACK | DRIVER | FEATURES_OK);
	assert_int_equal(status(f), ACK | DRIVER);
	/* With one that was not offered. */
	vdrv_set(&f->d, VIRTIO_MMIO_DRIVER_FEATURES_SEL, 1);
	vdrv_set(&f->d, VIRTIO_MMIO_DRIVER_FEATURES, 1u << (VIRTIO_F_VERSION_1 - 32));
	vdrv_set(&f->d, VIRTIO_MMIO_DRIVER_FEATURES_SEL, 0);
	vdrv_set(&f->d, VIRTIO_MMIO_DRIVER_FEATURES, 1u << 7);
	vdrv_set(&f->d, VIRTIO_MMIO_STATUS, ACK | DRIVER | FEATURES_OK | DRIVER_OK);
	assert_int_equal(status(f), ACK | DRIVER);
	vdrv_set(&f->d, VIRTIO_MMIO_DRIVER_FEATURES, 0);
	/* A selector past the end changes nothing. */
	vdrv_set(&f->d, VIRTIO_MMIO_DRIVER_FEATURES_SEL, 2);
	vdrv_set(&f->d, VIRTIO_MMIO_DRIVER_FEATURES, 0xffffffff);
	vdrv_set(&f->d, VIRTIO_MMIO_DEVICE_FEATURES_SEL, 2);
	assert_int_equal(vdrv_get(&f->d, VIRTIO_MMIO_DEVICE_FEATURES), 0);
	vdrv_set(&f->d, VIRTIO_MMIO_STATUS, ACK | DRIVER | FEATURES_OK);
	assert_int_equal(status(f), ACK | DRIVER | FEATURES_OK);
	/* Too late to change one's mind. */
	vdrv_set(&f->d, VIRTIO_MMIO_DRIVER_FEATURES_SEL, 0);
	vdrv_set(&f->d, VIRTIO_MMIO_DRIVER_FEATURES, 0xffffffff);
	assert_true(vdrv_queue_setup(&f->d, 0, 8));
	vdrv_set(&f->d, VIRTIO_MMIO_STATUS, ACK | DRIVER | FEATURES_OK | DRIVER_OK);
	f->d.q[0].indirect = f->d.q[0].event_idx = false;
	ask_works(f);
}

static bool queue_ready_with(struct fixture *f, uint32_t reg, uint32_t val)
{
	assert_true(vdrv_negotiate(&f->d, 0));
	f->d.heap = 1 << 20;
	assert_true(vdrv_queue_setup(&f->d, 0, 8));
	vdrv_set(&f->d, VIRTIO_MMIO_QUEUE_READY, 0);
	assert_int_equal(vdrv_get(&f->d, VIRTIO_MMIO_QUEUE_READY), 0);
	vdrv_set(&f->d, VIRTIO_MMIO_QUEUE_NUM, 8);
	vdrv_set(&f->d, VIRTIO_MMIO_QUEUE_DESC_LOW, (uint32_t)f->d.q[0].desc);
	vdrv_set(&f->d, VIRTIO_MMIO_QUEUE_AVAIL_LOW, (uint32_t)f->d.q[0].avail);
	vdrv_set(&f->d, VIRTIO_MMIO_QUEUE_USED_LOW, (uint32_t)f->d.q[0].used);
	vdrv_set(&f->d, reg, val);
	vdrv_set(&f->d, VIRTIO_MMIO_QUEUE_READY, 1);
	return vdrv_get(&f->d, VIRTIO_MMIO_QUEUE_READY);
}

static void queues_are_checked(void **state)
{
	struct fixture *f = *state;

	assert_true(queue_ready_with(f, VIRTIO_MMIO_QUEUE_NUM, 8));
	assert_false(queue_ready_with(f, VIRTIO_MMIO_QUEUE_NUM, 0));
	assert_false(queue_ready_with(f, VIRTIO_MMIO_QUEUE_NUM, 3));
	assert_false(queue_ready_with(f, VIRTIO_MMIO_QUEUE_NUM, 65536 + 8));
	assert_false(queue_ready_with(f, VIRTIO_MMIO_QUEUE_NUM, 0xffffffff));
	assert_false(queue_ready_with(f, VIRTIO_MMIO_QUEUE_NUM, 512)); /* more than offered */
	assert_false(queue_ready_with(f, VIRTIO_MMIO_QUEUE_DESC_LOW, 0x1008));
	assert_false(queue_ready_with(f, VIRTIO_MMIO_QUEUE_AVAIL_LOW, 0x1001));
	assert_false(queue_ready_with(f, VIRTIO_MMIO_QUEUE_USED_LOW, 0x1002));
	assert_false(queue_ready_with(f, VIRTIO_MMIO_QUEUE_DESC_LOW, MEM - 64));
	assert_false(queue_ready_with(f, VIRTIO_MMIO_QUEUE_AVAIL_LOW, MEM - 16));
	assert_false(queue_ready_with(f, VIRTIO_MMIO_QUEUE_USED_LOW, MEM - 16));
	assert_false(queue_ready_with(f, VIRTIO_MMIO_QUEUE_USED_HIGH, 1));
	assert_false(queue_ready_with(f, VIRTIO_MMIO_QUEUE_DESC_HIGH, 0xffffffff));
}

static void queue_writes_in_wrong_states(void **state)
{
	struct fixture *f = *state;

	/* Before FEATURES_OK nothing sticks. */
	vdrv_set(&f->d, VIRTIO_MMIO_STATUS, ACK);
	vdrv_set(&f->d, VIRTIO_MMIO_QUEUE_NUM, 8);
	vdrv_set(&f->d, VIRTIO_MMIO_QUEUE_READY, 1);
	assert_int_equal(vdrv_get(&f->d, VIRTIO_MMIO_QUEUE_READY), 0);
	/* Queues that do not exist. */
	vdrv_start(&f->d, 0, 8);
	vdrv_set(&f->d, VIRTIO_MMIO_QUEUE_SEL, 1);
	assert_int_equal(vdrv_get(&f->d, VIRTIO_MMIO_QUEUE_NUM_MAX), 0);
	vdrv_set(&f->d, VIRTIO_MMIO_QUEUE_READY, 1);
	vdrv_set(&f->d, VIRTIO_MMIO_QUEUE_SEL, 0xffffffff);
	assert_int_equal(vdrv_get(&f->d, VIRTIO_MMIO_QUEUE_READY), 0);
	vdrv_set(&f->d, VIRTIO_MMIO_QUEUE_NUM, 8);
	vdrv_set(&f->d, VIRTIO_MMIO_QUEUE_NOTIFY, 7);
	/* A running queue does not move. */
	vdrv_set(&f->d, VIRTIO_MMIO_QUEUE_SEL, 0);
	vdrv_set(&f->d, VIRTIO_MMIO_QUEUE_DESC_LOW, 0);
	vdrv_set(&f->d, VIRTIO_MMIO_QUEUE_NUM, 1);
	ask_works(f);
	/* It can be stopped, and then not be started before a reset. */
	vdrv_set(&f->d, VIRTIO_MMIO_QUEUE_READY, 0);
	assert_int_equal(vdrv_get(&f->d, VIRTIO_MMIO_QUEUE_READY), 0);
	vdrv_set(&f->d, VIRTIO_MMIO_QUEUE_READY, 1);
	assert_int_equal(vdrv_get(&f->d, VIRTIO_MMIO_QUEUE_READY), 0);
	vdrv_kick(&f->d, 0);
	vdrv_turn(f->loop);
	f->d.heap = 1 << 20;
	vdrv_start(&f->d, 0, 8);
	ask_works(f);
}

static void nothing_before_driver_ok(void **state)
{
	struct fixture *f = *state;
	struct vdrv_buf b = { .gpa = 2 << 20, .len = 16, .in = true };

	assert_true(vdrv_negotiate(&f->d, 0));
	assert_true(vdrv_queue_setup(&f->d, 0, 8));
	vdrv_add(&f->d, 0, &b, 1);
	vdrv_kick(&f->d, 0);
	vdrv_turn(f->loop);
	assert_false(vdrv_used(&f->d, 0, NULL, NULL));
	/* The kick was early, but the request is found all the same. */
	vdrv_set(&f->d, VIRTIO_MMIO_STATUS, ACK | DRIVER | FEATURES_OK | DRIVER_OK);
	assert_int_equal(vdrv_wait(&f->d, 0, NULL), 16);
}

static void interrupt_status(void **state)
{
	struct fixture *f = *state;
	struct vdrv_buf b = { .gpa = 2 << 20, .len = 16, .in = true };

	vdrv_start(&f->d, 0, 8);
	assert_int_equal(vdrv_get(&f->d, VIRTIO_MMIO_INTERRUPT_STATUS), 0);
	vdrv_add(&f->d, 0, &b, 1);
	vdrv_kick(&f->d, 0);
	vdrv_turn(f->loop);
	assert_int_equal(vdrv_get(&f->d, VIRTIO_MMIO_INTERRUPT_STATUS), 1);
	vdrv_set(&f->d, VIRTIO_MMIO_INTERRUPT_ACK, 2);
	assert_int_equal(vdrv_get(&f->d, VIRTIO_MMIO_INTERRUPT_STATUS), 1);
	vdrv_set(&f->d, VIRTIO_MMIO_INTERRUPT_ACK, 1);
	assert_int_equal(vdrv_get(&f->d, VIRTIO_MMIO_INTERRUPT_STATUS), 0);
}

/* Whether the driver asked not to be interrupted is respected, both ways of asking. */
static void interrupts_are_suppressed(void **state)
{
	struct fixture *f = *state;
	struct vdrv_buf b = { .gpa = 2 << 20, .len = 16, .in = true };
	struct vring_avail *a;

	vdrv_start(&f->d, 0, 8);
	a = vdrv_ptr(&f->d, f->d.q[0].avail, 32);
	a->flags = VRING_AVAIL_F_NO_INTERRUPT;
	vdrv_add(&f->d, 0, &b, 1);
	vdrv_kick(&f->d, 0);
	vdrv_turn(f->loop);
	assert_true(vdrv_used(&f->d, 0, NULL, NULL));
	assert_int_equal(vdrv_get(&f->d, VIRTIO_MMIO_INTERRUPT_STATUS), 0);

	vdrv_start(&f->d, EVENT_IDX, 8);
	a = vdrv_ptr(&f->d, f->d.q[0].avail, 32);
	a->ring[8] = 2; /* interrupt once the third entry is used */
	for (int i = 0; i < 3; i++) {
		vdrv_add(&f->d, 0, &b, 1);
		vdrv_kick(&f->d, 0);
		vdrv_turn(f->loop);
		assert_true(vdrv_used(&f->d, 0, NULL, NULL));
		assert_int_equal(vdrv_get(&f->d, VIRTIO_MMIO_INTERRUPT_STATUS), i == 2);
	}
}

/* Offers head 0 and expects the device to be broken; then that a reset heals it. */
static void expect_broken(struct fixture *f)
{
	vdrv_offer(&f->d, 0, 0);
	vdrv_kick(&f->d, 0);
	vdrv_turn(f->loop);
	assert_true(status(f) & NEEDS_RESET);
	assert_true(virtio_mmio_is_broken(f->d.v));
	assert_int_equal(vdrv_get(&f->d, VIRTIO_MMIO_INTERRUPT_STATUS) & 2, 2);
	assert_false(vdrv_used(&f->d, 0, NULL, NULL));
	/* More kicks change nothing. */
	vdrv_kick(&f->d, 0);
	vdrv_turn(f->loop);
	assert_true(status(f) & NEEDS_RESET);
	f->d.heap = 1 << 20;
	vdrv_start(&f->d, INDIRECT, 8);
	assert_false(virtio_mmio_is_broken(f->d.v));
	ask_works(f);
	f->d.heap = 1 << 20;
	vdrv_start(&f->d, INDIRECT, 8);
}

#define W VRING_DESC_F_WRITE
#define N VRING_DESC_F_NEXT
#define I VRING_DESC_F_INDIRECT
#define AT (2u << 20)

static void bad_chains(void **state)
{
	static const struct {
		uint64_t gpa;
		uint32_t len;
		uint16_t flags, next;
	} chains[][2] = {
		{ { AT, 16, W | N, 0 } },			/* itself */
		{ { AT, 16, W | N, 1 }, { AT, 16, W | N, 0 } }, /* a loop of two */
		{ { AT, 16, W | N, 8 } },			/* next outside of the table */
		{ { AT, 16, W | N, 0xffff } },			/* far outside */
		{ { MEM, 16, W, 0 } },				/* not RAM */
		{ { MEM - 8, 16, W, 0 } },			/* half in RAM */
		{ { UINT64_MAX - 7, 16, W, 0 } },		/* wraps */
		{ { AT, 0, W, 0 } },				/* empty */
		{ { AT, 0xffffffff, W, 0 } },			/* longer than RAM */
		{ { AT, 16, W | N, 1 }, { AT, 16, 0, 0 } },	/* readable after writable */
		{ { AT, 16, I | N, 1 }, { AT, 16, W, 0 } },	/* indirect and next */
		{ { AT, 15, I, 0 } },				/* a table of odd length */
		{ { AT, 0, I, 0 } },				/* an empty table */
		{ { AT, 16 * 257, I, 0 } },			/* a table too long */
		{ { MEM, 16, I, 0 } },				/* a table outside of RAM */
		{ { AT + 1, 16, I, 0 } },			/* misaligned */
		{ { AT, 16, 0, 0 } },				/* the rng can write nothing */
	};
	struct fixture *f = *state;

	vdrv_start(&f->d, INDIRECT, 8);
	for (size_t c = 0; c < ARRAY_SIZE(chains); c++) {
		for (uint16_t i = 0; i < 2; i++)
			vdrv_desc(&f->d, 0, i, chains[c][i].gpa, chains[c][i].len,
				  chains[c][i].flags, chains[c][i].next);
		expect_broken(f);
	}
}

static void bad_indirect_tables(void **state)
{
	static const struct vring_desc tables[][2] = {
		{ { AT, 16, I, 0 } },				/* indirect in indirect */
		{ { AT, 16, W | N, 2 } },			/* next outside of the table */
		{ { AT, 16, W | N, 1 }, { AT, 16, W | N, 0 } }, /* a loop */
		{ { AT, 16, W | N, 1 }, { MEM, 16, W, 0 } },	/* not RAM */
		{ { AT, 16, W | N, 1 }, { AT, 16, 0, 0 } },	/* readable after writable */
	};
	struct fixture *f = *state;
	uint64_t at = 3 << 20;

	vdrv_start(&f->d, INDIRECT, 8);
	for (size_t c = 0; c < ARRAY_SIZE(tables); c++) {
		assert_int_equal(guest_mem_write(f->mem, at, tables[c], sizeof(tables[c])), 0);
		vdrv_desc(&f->d, 0, 0, at, sizeof(tables[c]), I, 0);
		expect_broken(f);
	}
}

/* An indirect descriptor without the feature is a plain broken rule. */
static void indirect_not_negotiated(void **state)
{
	struct fixture *f = *state;

	vdrv_start(&f->d, 0, 8);
	vdrv_desc(&f->d, 0, 0, AT, 16, I, 0);
	expect_broken(f);
}

static void bad_ring(void **state)
{
	struct fixture *f = *state;
	struct vring_avail *a;

	vdrv_start(&f->d, INDIRECT, 8);
	vdrv_desc(&f->d, 0, 0, AT, 16, W, 0);
	a = vdrv_ptr(&f->d, f->d.q[0].avail, 32);
	f->d.q[0].next_avail = 100; /* the index jumps by more than the ring holds */
	expect_broken(f);

	f->d.q[0].next_avail = 0xfff0; /* or backwards */
	expect_broken(f);

	vdrv_desc(&f->d, 0, 0, AT, 16, W, 0);
	a->ring[0] = 8; /* a head outside of the table */
	f->d.q[0].next_avail = 1;
	expect_broken(f);
}

/* A guest that breaks its device for ever does not fill the host's log. */
static void faults_are_logged_a_few_times(void **state)
{
	_cleanup_close_ int saved = dup(STDERR_FILENO), log = memfd_create("log", MFD_CLOEXEC);
	struct fixture *f = *state;
	static char text[65536];
	unsigned lines = 0;
	ssize_t n;

	assert_int_equal(dup2(log, STDERR_FILENO), STDERR_FILENO);
	for (int i = 0; i < 50; i++) {
		f->d.heap = 1 << 20;
		vdrv_start(&f->d, 0, 8);
		vdrv_desc(&f->d, 0, 0, MEM, 16, W, 0);
		vdrv_offer(&f->d, 0, 0);
		vdrv_kick(&f->d, 0);
		vdrv_turn(f->loop);
		assert_true(virtio_mmio_is_broken(f->d.v));
	}
	assert_int_equal(dup2(saved, STDERR_FILENO), STDERR_FILENO);
	n = pread(log, text, sizeof(text), 0);
	for (ssize_t i = 0; i < n; i++)
		lines += text[i] == '\n';
	assert_int_equal(lines, 8);
}

static void save_and_restore(void **state)
{
	struct fixture *f = *state;
	struct virtio_rng *other = NULL;
	_cleanup_buf_ struct buf b = { 0 };
	struct vdrv_buf req = { .gpa = AT, .len = 16, .in = true };
	struct err e = { 0 };
	struct vdrv d;

	vdrv_start(&f->d, EVENT_IDX, 8);
	for (int i = 0; i < 5; i++)
		ask_works(f);
	assert_true(virtio_mmio_save(f->d.v, &b, &e) < 0);
	assert_string_equal(e.code, "wrong_state");
	virtio_mmio_pause(f->d.v);
	/* Asked for while paused: the machine that goes on from the state has to serve it. */
	vdrv_add(&f->d, 0, &req, 1);
	vdrv_kick(&f->d, 0);
	vdrv_turn(f->loop);
	assert_false(vdrv_used(&f->d, 0, NULL, NULL));
	assert_int_equal(virtio_mmio_save(f->d.v, &b, &e), 0);

	assert_int_equal(virtio_rng_new(f->mem, &other, NULL), 0);
	/* Every cut is refused. */
	for (size_t n = 0; n < b.len; n++) {
		assert_true(virtio_mmio_restore(virtio_rng_mmio(other), b.data, n, &e) < 0);
		assert_string_equal(e.code, "state_invalid");
	}
	assert_int_equal(virtio_mmio_restore(virtio_rng_mmio(other), b.data, b.len, &e), 0);
	vdrv_fini(&f->d);
	d = f->d;
	vdrv_init(&f->d, virtio_rng_mmio(other), f->mem, f->loop, d.heap);
	f->d.features = d.features;
	f->d.q[0] = d.q[0];
	assert_int_equal(virtio_mmio_attach(f->d.v, f->loop, NULL), 0);
	virtio_mmio_resume(f->d.v);
	assert_int_equal(vdrv_wait(&f->d, 0, NULL), 16);
	for (int i = 0; i < 20; i++)
		ask_works(f);
	virtio_rng_free(f->rng);
	f->rng = other;
}

static void altered_states(void **state)
{
	enum { QUEUE = 24 + 8 * 4 };
	static const size_t offsets[] = {
		0,
		4,
		8,
		12, /* magic, version, id, queues */
		16,
		23, /* features */
		40,
		41,
		44, /* status, interrupt status */
		48,
		52, /* lengths */
		QUEUE,
		QUEUE + 2,
		QUEUE + 4, /* sizes, ready */
		QUEUE + 6,
		QUEUE + 8, /* next_avail without next_used */
		QUEUE + 16,
		QUEUE + 23,
		QUEUE + 24 + 3, /* misaligned and outside addresses */
		QUEUE + 32 + 4,
	};
	struct fixture *f = *state;
	struct virtio_rng *other = NULL;
	_cleanup_buf_ struct buf b = { 0 };
	struct err e = { 0 };

	vdrv_start(&f->d, 0, 8);
	virtio_mmio_pause(f->d.v);
	assert_int_equal(virtio_mmio_save(f->d.v, &b, &e), 0);
	assert_int_equal(virtio_rng_new(f->mem, &other, NULL), 0);
	/* Fields of the header and of its one queue, by their offset in the saved form. */
	for (size_t i = 0; i < ARRAY_SIZE(offsets); i++) {
		b.data[offsets[i]] ^= 0x55;
		assert_true(virtio_mmio_restore(virtio_rng_mmio(other), b.data, b.len, &e) < 0);
		assert_true(strcmp(e.code, "state_invalid") == 0 ||
			    strcmp(e.code, "state_mismatch") == 0);
		b.data[offsets[i]] ^= 0x55;
	}
	assert_int_equal(virtio_mmio_restore(virtio_rng_mmio(other), b.data, b.len, &e), 0);
	virtio_rng_free(other);
}

#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(identity),
		T(requests_with_each_feature),
		T(indexes_wrap),
		T(status_goes_in_order),
		T(features_are_checked),
		T(queues_are_checked),
		T(queue_writes_in_wrong_states),
		T(nothing_before_driver_ok),
		T(interrupt_status),
		T(interrupts_are_suppressed),
		T(bad_chains),
		T(bad_indirect_tables),
		T(indirect_not_negotiated),
		T(bad_ring),
		T(faults_are_logged_a_few_times),
		T(save_and_restore),
		T(altered_states),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
