/*
 * Devices between two threads, as in the VMM: this one is a vCPU that sets up, asks, and resets in
 * the middle; the other runs the I/O loop. Meant for a build with the thread sanitizer.
 */
#include <errno.h>
#include <linux/virtio_config.h>
#include <linux/virtio_mmio.h>
#include <linux/virtio_ring.h>
#include <linux/virtio_vsock.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/loop.h"
#include "virtio_driver.h"
#include "vmm/mem.h"
#include "vmm/virtio/mmio.h"
#include "vmm/virtio/rng.h"
#include "vmm/virtio/vsock.h"

#define EVENT_IDX (1ULL << VIRTIO_RING_F_EVENT_IDX)
#define CID 3

struct fixture {
	struct loop *loop;
	struct guest_mem *mem;
	struct virtio_rng *rng;
	struct virtio_vsock *vsock;
	pthread_t thread;
	int ended; /* connects that were told their end; the loop's thread alone */
	int stop;  /* atomic */
	int open;  /* atomic: connects that shall be begun */
};

static void on_connected(void *ctx, int result)
{
	struct fixture *f = ctx;

	(void)result;
	f->ended++;
}

/* On the loop: begins the connects that were asked for, or stops. */
static void on_wake(void *ctx)
{
	struct fixture *f = ctx;
	int sv[2];

	if (__atomic_load_n(&f->stop, __ATOMIC_ACQUIRE)) {
		loop_stop(f->loop);
		return;
	}
	while (__atomic_load_n(&f->open, __ATOMIC_ACQUIRE) > 0) {
		__atomic_fetch_sub(&f->open, 1, __ATOMIC_ACQ_REL);
		assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv), 0);
		assert_int_equal(write(sv[0], "hello", 5), 5);
		close(sv[0]); /* the bytes stay readable; the connect may be given up */
		assert_int_equal(
			virtio_vsock_connect(f->vsock, 1, sv[1], 1000, on_connected, f, NULL), 0);
	}
}

static void *loop_main(void *ctx)
{
	struct fixture *f = ctx;

	assert_int_equal(loop_run(f->loop, NULL), 0);
	return NULL;
}

static int set_up(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));

	assert_non_null(f);
	assert_int_equal(loop_new(&f->loop, NULL), 0);
	assert_int_equal(guest_mem_new(16 << 20, 0, &f->mem, NULL), 0);
	assert_int_equal(virtio_rng_new(f->mem, &f->rng, NULL), 0);
	assert_int_equal(virtio_vsock_new(f->mem, CID, &f->vsock, NULL), 0);
	assert_int_equal(virtio_mmio_attach(virtio_rng_mmio(f->rng), f->loop, NULL), 0);
	assert_int_equal(virtio_mmio_attach(virtio_vsock_mmio(f->vsock), f->loop, NULL), 0);
	loop_on_wake(f->loop, on_wake, f);
	assert_int_equal(pthread_create(&f->thread, NULL, loop_main, f), 0);
	*state = f;
	return 0;
}

static int tear_down(void **state)
{
	struct fixture *f = *state;

	__atomic_store_n(&f->stop, 1, __ATOMIC_RELEASE);
	loop_wake(f->loop);
	assert_int_equal(pthread_join(f->thread, NULL), 0);
	virtio_rng_free(f->rng);
	virtio_vsock_free(f->vsock);
	loop_free(f->loop);
	guest_mem_free(f->mem);
	free(f);
	return 0;
}

static void requests_and_resets(void **state)
{
	struct fixture *f = *state;
	struct vdrv d;

	vdrv_init(&d, virtio_rng_mmio(f->rng), f->mem, NULL, 1 << 20);
	for (unsigned round = 0; round < 60; round++) {
		struct vdrv_buf b = { .gpa = 8 << 20, .len = 4096, .in = true };

		d.heap = 1 << 20;
		vdrv_start(&d, round % 2 ? EVENT_IDX : 0, 16);
		for (unsigned i = 0; i < 40; i++) {
			vdrv_add(&d, 0, &b, 1);
			vdrv_kick(&d, 0);
			assert_int_equal(vdrv_wait(&d, 0, NULL), 4096);
		}
		/* And one more, which the reset may or may not overtake. */
		vdrv_add(&d, 0, &b, 1);
		vdrv_kick(&d, 0);
		vdrv_set(&d, VIRTIO_MMIO_STATUS, 0);
		/* After a reset nothing writes to this memory: the sanitizer watches. */
		memset(vdrv_ptr(&d, b.gpa, b.len), 0, b.len);
	}
}

/* Streams come and go while the driver starts over; each connect hears of its end once. */
static void streams_and_resets(void **state)
{
	enum { ROUNDS = 40, EACH = 8 };
	struct fixture *f = *state;
	struct vdrv d;

	vdrv_init(&d, virtio_vsock_mmio(f->vsock), f->mem, NULL, 1 << 20);
	for (unsigned round = 0; round < ROUNDS; round++) {
		__atomic_fetch_add(&f->open, EACH, __ATOMIC_ACQ_REL);
		loop_wake(f->loop);
		d.heap = 1 << 20;
		vdrv_start(&d, EVENT_IDX, 64);
		for (unsigned i = 0; i < 32; i++) {
			struct vdrv_buf b = { (8 << 20) + i * 4096, 4096, true };

			vdrv_add(&d, 0, &b, 1);
		}
		vdrv_kick(&d, 0);
		if (round % 4 == 3) { /* some rounds see what was sent first */
			struct vdrv_buf b = { .gpa = 12 << 20, .len = 44 };
			struct virtio_vsock_hdr h = { .src_cid = CID,
						      .dst_cid = 2,
						      .type = 1,
						      .op = VIRTIO_VSOCK_OP_REQUEST };

			assert_int_equal(guest_mem_write(f->mem, b.gpa, &h, sizeof(h)), 0);
			vdrv_add(&d, 1, &b, 1);
			vdrv_kick(&d, 1);
			vdrv_wait(&d, 1, NULL);
			assert_true(vdrv_wait(&d, 0, NULL) >= 44);
		}
		vdrv_set(&d, VIRTIO_MMIO_STATUS, 0);
		memset(vdrv_ptr(&d, 8 << 20, 32 * 4096), 0, 32 * 4096);
	}
}

#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(requests_and_resets),
		T(streams_and_resets),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
