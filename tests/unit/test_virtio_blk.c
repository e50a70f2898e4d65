/*
 * The disk: what is written is what the file holds, what is out of range is refused before
 * anything happens, and the worker threads stand a driver that resets in the middle.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/virtio_blk.h>
#include <linux/virtio_config.h>
#include <linux/virtio_mmio.h>
#include <linux/virtio_ring.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/err.h"
#include "virtio_driver.h"
#include "vmm/mem.h"
#include "vmm/virtio/blk.h"
#include "vmm/virtio/blk_backend.h"
#include "vmm/virtio/mmio.h"

#define EVENT_IDX (1ULL << VIRTIO_RING_F_EVENT_IDX)
#define INDIRECT (1ULL << VIRTIO_RING_F_INDIRECT_DESC)
#define ALL UINT64_MAX
#define MIB (1u << 20)
#define DISK (8u << 20)
#define SECTORS (DISK / 512)
#define DATA (8u << 20) /* guest address of the data buffer */

struct fixture {
	struct guest_mem *mem;
	struct blk_backend *backend;
	struct virtio_blk *blk;
	struct vdrv d;
	int fd;
	uint64_t header, status; /* guest addresses */
};

static void make(struct fixture *f, struct blk_backend *backend, unsigned workers)
{
	struct virtio_blk_setup s = { .backend = backend, .serial = "disk-0", .workers = workers };

	f->backend = backend;
	assert_int_equal(virtio_blk_new(f->mem, &s, &f->blk, NULL), 0);
	vdrv_init(&f->d, virtio_blk_mmio(f->blk), f->mem, NULL, MIB);
	f->header = vdrv_alloc(&f->d, 4096);
	f->status = vdrv_alloc(&f->d, 4096);
	assert_int_equal(virtio_mmio_attach(f->d.v, NULL, NULL), 0);
}

static void drop(struct fixture *f)
{
	vdrv_fini(&f->d);
	virtio_blk_free(f->blk);
	blk_backend_free(f->backend);
	f->blk = NULL;
	f->backend = NULL;
}

static void remake(struct fixture *f, bool read_only, unsigned workers)
{
	struct blk_backend *b;

	drop(f);
	assert_int_equal(blk_raw_new(f->fd, read_only, &b, NULL), 0);
	make(f, b, workers);
}

static int set_up(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));
	struct blk_backend *b;

	assert_non_null(f);
	f->fd = memfd_create("disk", MFD_CLOEXEC);
	assert_int_equal(ftruncate(f->fd, DISK), 0);
	assert_int_equal(guest_mem_new(24 * MIB, 0, &f->mem, NULL), 0);
	assert_int_equal(blk_raw_new(f->fd, false, &b, NULL), 0);
	make(f, b, 1);
	*state = f;
	return 0;
}

static int tear_down(void **state)
{
	struct fixture *f = *state;

	drop(f);
	guest_mem_free(f->mem);
	close(f->fd);
	free(f);
	return 0;
}

static uint8_t *data(struct fixture *f)
{
	return vdrv_ptr(&f->d, DATA, DISK);
}

/* One request with its data in one buffer; returns its status. */
static uint8_t request(struct fixture *f, uint32_t type, uint64_t sector, uint32_t len, bool in,
		       uint32_t *written)
{
	struct virtio_blk_outhdr h = { .type = type, .sector = sector };
	struct vdrv_buf bufs[3] = { { f->header, sizeof(h), false },
				    { DATA, len, in },
				    { f->status, 1, true } };
	uint8_t *status = vdrv_ptr(&f->d, f->status, 1);
	uint32_t n;

	assert_int_equal(guest_mem_write(f->mem, f->header, &h, sizeof(h)), 0);
	*status = 0xee;
	if (len == 0)
		bufs[1] = bufs[2];
	vdrv_add(&f->d, 0, bufs, len ? 3 : 2);
	vdrv_kick(&f->d, 0);
	n = vdrv_wait(&f->d, 0, NULL);
	if (written)
		*written = n;
	return *status;
}

static void pattern(uint8_t *p, size_t n, unsigned seed)
{
	for (size_t i = 0; i < n; i++)
		p[i] = (uint8_t)(seed + i * 7 + (i >> 9));
}

static void configuration(void **state)
{
	struct fixture *f = *state;
	struct virtio_blk_config c = { 0 };
	uint64_t capacity = 1;

	virtio_mmio_read(f->d.v, VIRTIO_MMIO_CONFIG, &capacity, 8);
	assert_int_equal(capacity, SECTORS);
	for (unsigned i = 0; i < sizeof(c); i++)
		virtio_mmio_read(f->d.v, VIRTIO_MMIO_CONFIG + i, (uint8_t *)&c + i, 1);
	assert_int_equal(c.capacity, SECTORS);
	assert_int_equal(c.seg_max, 254);
	assert_int_equal(c.blk_size, 512);
	/* Not writable. */
	capacity = 1;
	virtio_mmio_write(f->d.v, VIRTIO_MMIO_CONFIG, &capacity, 8);
	virtio_mmio_read(f->d.v, VIRTIO_MMIO_CONFIG, &capacity, 8);
	assert_int_equal(capacity, SECTORS);
	assert_int_equal(vdrv_get(&f->d, VIRTIO_MMIO_DEVICE_ID), 2);
	vdrv_start(&f->d, ALL, 256);
	assert_false(f->d.features & 1ULL << VIRTIO_BLK_F_RO);
	assert_true(f->d.features & 1ULL << VIRTIO_BLK_F_FLUSH);
	assert_true(f->d.features & 1ULL << VIRTIO_BLK_F_DISCARD);
	assert_int_equal(request(f, VIRTIO_BLK_T_GET_ID, 0, 20, true, NULL), VIRTIO_BLK_S_OK);
	assert_memory_equal(data(f), "disk-0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 20);
}

static void write_then_read(void **state)
{
	static const uint64_t masks[] = { 1 << VIRTIO_BLK_F_FLUSH, ALL & ~INDIRECT, ALL };
	struct fixture *f = *state;
	struct virtio_blk_stats st;
	static uint8_t want[MIB], got[MIB];
	uint32_t n;

	for (size_t i = 0; i < ARRAY_SIZE(masks); i++) {
		f->d.heap = 2 * MIB;
		vdrv_start(&f->d, masks[i], 64);
		pattern(want, MIB, (unsigned)i);
		memcpy(data(f), want, MIB);
		assert_int_equal(request(f, VIRTIO_BLK_T_OUT, 2048 + i, MIB, false, &n), 0);
		assert_int_equal(n, 1);
		assert_int_equal(pread(f->fd, got, MIB, (off_t)((2048 + i) * 512)), MIB);
		assert_memory_equal(got, want, MIB);
		memset(data(f), 0, MIB);
		assert_int_equal(request(f, VIRTIO_BLK_T_IN, 2048 + i, MIB, true, &n), 0);
		assert_int_equal(n, MIB + 1);
		assert_memory_equal(data(f), want, MIB);
		assert_int_equal(request(f, VIRTIO_BLK_T_FLUSH, 0, 0, false, NULL), 0);
	}
	virtio_blk_stats(f->blk, &st);
	assert_int_equal(st.reads, 3);
	assert_int_equal(st.writes, 3);
	assert_int_equal(st.flushes, 3);
	assert_int_equal(st.bytes_read, 3 * MIB);
	assert_int_equal(st.bytes_written, 3 * MIB);
	assert_int_equal(st.errors, 0);
}

/* Borders between descriptors mean nothing: header, data and status may share and split them. */
static void odd_framing(void **state)
{
	struct fixture *f = *state;
	struct virtio_blk_outhdr h = { .type = VIRTIO_BLK_T_OUT, .sector = 3 };
	uint8_t *p = data(f), got[1024];
	struct vdrv_buf out[] = { { DATA, 7, false },
				  { DATA + 7, 100, false },
				  { DATA + 107, 16 + 1024 - 107, false },
				  { f->status, 1, true } };
	struct vdrv_buf in[] = { { DATA, 16, false },
				 { DATA + 16, 1, true },
				 { DATA + 17, 1023 + 1, true } };

	vdrv_start(&f->d, 0, 64);
	memcpy(p, &h, 16);
	pattern(p + 16, 1024, 5);
	*(uint8_t *)vdrv_ptr(&f->d, f->status, 1) = 0xee;
	vdrv_add(&f->d, 0, out, 4);
	vdrv_kick(&f->d, 0);
	assert_int_equal(vdrv_wait(&f->d, 0, NULL), 1);
	assert_int_equal(*(uint8_t *)vdrv_ptr(&f->d, f->status, 1), 0);
	assert_int_equal(pread(f->fd, got, 1024, 3 * 512), 1024);
	assert_memory_equal(got, p + 16, 1024);

	h.type = VIRTIO_BLK_T_IN;
	memcpy(p, &h, 16);
	memset(p + 16, 0xee, 1025);
	vdrv_add(&f->d, 0, in, 3);
	vdrv_kick(&f->d, 0);
	assert_int_equal(vdrv_wait(&f->d, 0, NULL), 1025);
	assert_memory_equal(p + 16, got, 1024);
	assert_int_equal(p[16 + 1024], 0);
}

static void out_of_range(void **state)
{
	static const struct {
		uint64_t sector;
		uint32_t len;
	} bad[] = {
		{ SECTORS, 512 },
		{ SECTORS - 1, 1024 },
		{ SECTORS + 1, 512 },
		{ UINT64_MAX, 512 },
		{ UINT64_MAX / 512, 512 },
		{ (1ULL << 55) - 1, 512 },
		{ 1ULL << 55, 512 },
		{ 0, 511 },
		{ 0, 513 },
		{ SECTORS - 8192, 8u << 20 },
	};
	struct fixture *f = *state;
	struct virtio_blk_stats st;
	uint64_t i;

	vdrv_start(&f->d, ALL, 64);
	for (i = 0; i < ARRAY_SIZE(bad); i++) {
		assert_int_equal(request(f, VIRTIO_BLK_T_IN, bad[i].sector, bad[i].len, true, NULL),
				 VIRTIO_BLK_S_IOERR);
		assert_int_equal(
			request(f, VIRTIO_BLK_T_OUT, bad[i].sector, bad[i].len, false, NULL),
			VIRTIO_BLK_S_IOERR);
	}
	virtio_blk_stats(f->blk, &st);
	assert_int_equal(st.errors, 2 * i);
	assert_int_equal(st.malformed, 2 * i);
	assert_int_equal(st.reads + st.writes, 0);
	/* The last sector itself is fine. */
	assert_int_equal(request(f, VIRTIO_BLK_T_OUT, SECTORS - 1, 512, false, NULL), 0);
	assert_int_equal(request(f, VIRTIO_BLK_T_IN, SECTORS - 1, 512, true, NULL), 0);
	assert_false(virtio_mmio_is_broken(f->d.v));
}

static uint8_t clear(struct fixture *f, uint32_t type, uint64_t sector, uint32_t n, uint32_t flags)
{
	struct virtio_blk_discard_write_zeroes s = { sector, n, flags };

	memcpy(data(f), &s, sizeof(s));
	return request(f, type, 0, sizeof(s), false, NULL);
}

static void discard_and_zeroes(void **state)
{
	struct fixture *f = *state;
	static uint8_t got[DISK], want[DISK];
	struct stat before, after;

	vdrv_start(&f->d, ALL, 64);
	memset(want, 0xaa, DISK);
	assert_int_equal(pwrite(f->fd, want, DISK, 0), DISK);
	assert_int_equal(fstat(f->fd, &before), 0);
	assert_int_equal(clear(f, VIRTIO_BLK_T_DISCARD, 0, 2048, 0), 0);
	assert_int_equal(
		clear(f, VIRTIO_BLK_T_WRITE_ZEROES, 4096, 1024, VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP),
		0);
	assert_int_equal(clear(f, VIRTIO_BLK_T_WRITE_ZEROES, 8191, 1001, 0), 0);
	assert_int_equal(clear(f, VIRTIO_BLK_T_WRITE_ZEROES, SECTORS, 0, 0), 0);
	memset(want, 0, MIB);
	memset(want + 2 * MIB, 0, MIB / 2);
	memset(want + 8191 * 512, 0, 1001 * 512);
	assert_int_equal(pread(f->fd, got, DISK, 0), DISK);
	assert_memory_equal(got, want, DISK);
	/* Discarded space went back. */
	assert_int_equal(fstat(f->fd, &after), 0);
	assert_true(before.st_blocks - after.st_blocks >= (MIB + MIB / 2) / 512);
}

static void refused_clears(void **state)
{
	struct fixture *f = *state;
	struct virtio_blk_discard_write_zeroes s[33] = { 0 };
	uint8_t got[512], want[512];

	vdrv_start(&f->d, ALL, 64);
	memset(want, 0xaa, 512);
	assert_int_equal(pwrite(f->fd, want, 512, 0), 512);
	assert_int_equal(clear(f, VIRTIO_BLK_T_DISCARD, SECTORS, 1, 0), VIRTIO_BLK_S_IOERR);
	assert_int_equal(clear(f, VIRTIO_BLK_T_DISCARD, UINT64_MAX, 2, 0), VIRTIO_BLK_S_IOERR);
	assert_int_equal(clear(f, VIRTIO_BLK_T_DISCARD, 0, 0xffffffff, 0), VIRTIO_BLK_S_IOERR);
	assert_int_equal(clear(f, VIRTIO_BLK_T_WRITE_ZEROES, 0, SECTORS + 1, 0),
			 VIRTIO_BLK_S_IOERR);
	assert_int_equal(clear(f, VIRTIO_BLK_T_DISCARD, 0, 1, 1), VIRTIO_BLK_S_UNSUPP);
	assert_int_equal(clear(f, VIRTIO_BLK_T_WRITE_ZEROES, 0, 1, 2), VIRTIO_BLK_S_UNSUPP);
	/* No range, half a range, too many; and a good range before a bad one is not begun. */
	assert_int_equal(request(f, VIRTIO_BLK_T_DISCARD, 0, 0, false, NULL), VIRTIO_BLK_S_IOERR);
	assert_int_equal(request(f, VIRTIO_BLK_T_DISCARD, 0, 15, false, NULL), VIRTIO_BLK_S_IOERR);
	memcpy(data(f), s, sizeof(s));
	assert_int_equal(request(f, VIRTIO_BLK_T_DISCARD, 0, sizeof(s), false, NULL),
			 VIRTIO_BLK_S_IOERR);
	s[0].num_sectors = 1;
	s[1].num_sectors = SECTORS + 1;
	memcpy(data(f), s, sizeof(s));
	assert_int_equal(request(f, VIRTIO_BLK_T_WRITE_ZEROES, 0, 32, false, NULL),
			 VIRTIO_BLK_S_IOERR);
	assert_int_equal(pread(f->fd, got, 512, 0), 512);
	assert_memory_equal(got, want, 512);
	assert_int_equal(request(f, 99, 0, 0, false, NULL), VIRTIO_BLK_S_UNSUPP);
	assert_int_equal(request(f, VIRTIO_BLK_T_GET_ID, 0, 19, true, NULL), VIRTIO_BLK_S_IOERR);
}

static void read_only(void **state)
{
	struct fixture *f = *state;
	uint8_t zero[512] = { 0 }, got[512];

	remake(f, true, 1);
	vdrv_start(&f->d, ALL, 64);
	assert_true(f->d.features & 1ULL << VIRTIO_BLK_F_RO);
	assert_false(f->d.features & 1ULL << VIRTIO_BLK_F_DISCARD);
	memset(data(f), 1, 512);
	assert_int_equal(request(f, VIRTIO_BLK_T_OUT, 0, 512, false, NULL), VIRTIO_BLK_S_IOERR);
	assert_int_equal(clear(f, VIRTIO_BLK_T_DISCARD, 0, 1, 0), VIRTIO_BLK_S_IOERR);
	assert_int_equal(clear(f, VIRTIO_BLK_T_WRITE_ZEROES, 0, 1, 0), VIRTIO_BLK_S_IOERR);
	assert_int_equal(request(f, VIRTIO_BLK_T_FLUSH, 0, 0, false, NULL), 0);
	assert_int_equal(request(f, VIRTIO_BLK_T_IN, 0, 512, true, NULL), 0);
	assert_int_equal(pread(f->fd, got, 512, 0), 512);
	assert_memory_equal(got, zero, 512);
}

static void raw_backend_refuses(void **state)
{
	_cleanup_close_ int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	_cleanup_close_ int ro = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	struct blk_backend *b = NULL;
	struct err e = { 0 };

	(void)state;
	assert_int_equal(blk_raw_new(null, false, &b, &e), -EINVAL);
	assert_string_equal(e.code, "bad_request");
	assert_int_equal(blk_raw_new(ro, false, &b, &e), -EINVAL);
	assert_string_equal(e.code, "bad_request");
	assert_null(b);
	assert_int_equal(blk_raw_new(ro, true, &b, &e), 0);
	blk_backend_free(b);
}

/* A request that has nowhere to say how it ended. */
static void no_status(void **state)
{
	struct fixture *f = *state;
	struct vdrv_buf b = { f->header, 16, false };

	vdrv_start(&f->d, 0, 64);
	vdrv_add(&f->d, 0, &b, 1);
	vdrv_kick(&f->d, 0);
	vdrv_wait_irq(&f->d);
	assert_true(virtio_mmio_is_broken(f->d.v));
	f->d.heap = 2 * MIB;
	vdrv_start(&f->d, 0, 64);
	assert_int_equal(request(f, VIRTIO_BLK_T_IN, 0, 512, true, NULL), 0);
}

/* Too short a header still gets its answer. */
static void short_header(void **state)
{
	struct fixture *f = *state;
	struct vdrv_buf b[] = { { f->header, 15, false }, { f->status, 1, true } };

	vdrv_start(&f->d, 0, 64);
	vdrv_add(&f->d, 0, b, 2);
	vdrv_kick(&f->d, 0);
	vdrv_wait(&f->d, 0, NULL);
	assert_int_equal(*(uint8_t *)vdrv_ptr(&f->d, f->status, 1), VIRTIO_BLK_S_IOERR);
}

/* A backend of our own: it fails as told, counts flushes and can be held up. */
struct fake {
	struct blk_backend base;
	int error;
	unsigned flushes;
	int entered, go; /* eventfds: a read began, a read may end; -1: reads do not wait */
};

static int fake_io(struct blk_backend *b, const struct iovec *iov, int n, uint64_t offset,
		   uint64_t len)
{
	struct fake *f = (struct fake *)b;
	char c = 1;

	(void)iov;
	(void)n;
	(void)offset;
	(void)len;
	if (f->entered >= 0) {
		assert_int_equal(write(f->entered, &c, 1), 1);
		assert_int_equal(read(f->go, &c, 1), 1);
		memset(iov[0].iov_base, 0x5a, iov[0].iov_len);
	}
	return f->error;
}

static int fake_flush(struct blk_backend *b)
{
	((struct fake *)b)->flushes++;
	return 0;
}

static int fake_discard(struct blk_backend *b, uint64_t offset, uint64_t len)
{
	(void)offset;
	(void)len;
	return ((struct fake *)b)->error;
}

static int fake_zeroes(struct blk_backend *b, uint64_t offset, uint64_t len, bool unmap)
{
	(void)unmap;
	return fake_discard(b, offset, len);
}

static void fake_free(struct blk_backend *b)
{
	free(b);
}

static struct fake *fake_new(void)
{
	static const struct blk_backend_ops ops = { fake_io,	  fake_io,     fake_flush,
						    fake_discard, fake_zeroes, fake_free };
	struct fake *f = calloc(1, sizeof(*f));

	assert_non_null(f);
	f->base.ops = &ops;
	f->base.size = DISK;
	f->entered = f->go = -1;
	return f;
}

static void storage_errors(void **state)
{
	struct fixture *f = *state;
	struct fake *fake = fake_new();
	struct virtio_blk_stats st;

	drop(f);
	make(f, &fake->base, 1);
	vdrv_start(&f->d, ALL, 64);
	fake->error = -EIO;
	assert_int_equal(request(f, VIRTIO_BLK_T_IN, 0, 512, true, NULL), VIRTIO_BLK_S_IOERR);
	assert_int_equal(request(f, VIRTIO_BLK_T_OUT, 0, 512, false, NULL), VIRTIO_BLK_S_IOERR);
	assert_false(virtio_blk_take_no_space(f->blk));
	fake->error = -ENOSPC;
	assert_int_equal(request(f, VIRTIO_BLK_T_OUT, 0, 512, false, NULL), VIRTIO_BLK_S_IOERR);
	virtio_blk_stats(f->blk, &st);
	assert_int_equal(st.errors, 3);
	assert_int_equal(st.malformed, 0);
	assert_true(st.no_space);
	assert_true(virtio_blk_take_no_space(f->blk));
	assert_false(virtio_blk_take_no_space(f->blk));
	assert_int_equal(fake->flushes, 0);
}

/* A driver that does not know FLUSH gets durable writes. */
static void write_through(void **state)
{
	struct fixture *f = *state;
	struct fake *fake = fake_new();

	drop(f);
	make(f, &fake->base, 1);
	vdrv_start(&f->d, 0, 64);
	assert_int_equal(request(f, VIRTIO_BLK_T_OUT, 0, 512, false, NULL), 0);
	assert_int_equal(fake->flushes, 1);
}

struct held {
	struct vdrv *d;
	int done; /* pipe */
};

static void *reset_thread(void *ctx)
{
	struct held *h = ctx;
	char c = 1;

	vdrv_set(h->d, VIRTIO_MMIO_STATUS, 0);
	assert_int_equal(write(h->done, &c, 1), 1);
	return NULL;
}

/*
 * A reset does not return while the storage still fills the guest's buffer: afterwards the driver
 * may use that memory for something else.
 */
static void reset_waits_for_requests(void **state)
{
	struct fixture *f = *state;
	struct fake *fake = fake_new();
	struct virtio_blk_outhdr h = { .type = VIRTIO_BLK_T_IN };
	struct vdrv_buf b[] = { { f->header, 16, false },
				{ DATA, 512, true },
				{ f->status, 1, true } };
	int entered[2], go[2], done[2];
	struct held held = { .d = &f->d };
	uint32_t ready[2];
	pthread_t t;
	char c = 1;

	drop(f);
	assert_int_equal(pipe2(entered, O_CLOEXEC), 0);
	assert_int_equal(pipe2(go, O_CLOEXEC), 0);
	assert_int_equal(pipe2(done, O_CLOEXEC | O_NONBLOCK), 0);
	fake->entered = entered[1];
	fake->go = go[0];
	held.done = done[1];
	make(f, &fake->base, 1);
	vdrv_start(&f->d, EVENT_IDX, 64);
	assert_int_equal(guest_mem_write(f->mem, f->header, &h, sizeof(h)), 0);
	vdrv_add(&f->d, 0, b, 3);
	vdrv_add(&f->d, 0, b, 3); /* a second one, never to be begun */
	vdrv_kick(&f->d, 0);
	assert_int_equal(read(entered[0], &c, 1), 1);
	assert_int_equal(pthread_create(&t, NULL, reset_thread, &held), 0);
	/* The reset has begun once writes are ignored: selecting another queue changes nothing. */
	do {
		vdrv_set(&f->d, VIRTIO_MMIO_QUEUE_SEL, 0);
		ready[0] = vdrv_get(&f->d, VIRTIO_MMIO_QUEUE_READY);
		vdrv_set(&f->d, VIRTIO_MMIO_QUEUE_SEL, 1);
		ready[1] = vdrv_get(&f->d, VIRTIO_MMIO_QUEUE_READY);
	} while (ready[0] != ready[1]);
	assert_int_not_equal(vdrv_get(&f->d, VIRTIO_MMIO_STATUS), 0);
	assert_int_equal(read(done[0], &c, 1), -1);
	assert_int_equal(write(go[1], &c, 1), 1);
	assert_int_equal(pthread_join(t, NULL), 0);
	assert_int_equal(read(done[0], &c, 1), 1);
	assert_int_equal(data(f)[511], 0x5a);
	assert_int_equal(vdrv_get(&f->d, VIRTIO_MMIO_STATUS), 0);
	for (int i = 0; i < 2; i++) {
		close(entered[i]);
		close(go[i]);
		close(done[i]);
	}
}

/* Many requests at once over several workers: each is answered once, and the data is right. */
static void many_at_once(void **state)
{
	enum { N = 16, ROUNDS = 50 };
	struct fixture *f = *state;
	struct virtio_blk_stats st;
	static uint8_t got[DISK];

	remake(f, false, 4);
	vdrv_start(&f->d, ALL, 64);
	for (unsigned r = 0; r < ROUNDS; r++) {
		unsigned seen = 0;

		for (unsigned i = 0; i < N; i++) {
			struct virtio_blk_outhdr h = { .type = VIRTIO_BLK_T_OUT,
						       .sector = r * N * 8 + i * 8 };
			struct vdrv_buf b[] = { { f->header + i * 16, 16, false },
						{ DATA + i * 4096, 4096, false },
						{ f->status + i, 1, true } };

			assert_int_equal(guest_mem_write(f->mem, b[0].gpa, &h, 16), 0);
			memset(data(f) + i * 4096, (int)(r + i), 4096);
			*(uint8_t *)vdrv_ptr(&f->d, f->status + i, 1) = 0xee;
			vdrv_add(&f->d, 0, b, 3);
			vdrv_kick(&f->d, 0);
		}
		for (unsigned i = 0; i < N; i++) {
			uint16_t head;

			assert_int_equal(vdrv_wait(&f->d, 0, &head), 1);
			seen |= 1u << (head % N);
		}
		assert_int_equal(seen, (1u << N) - 1);
		for (unsigned i = 0; i < N; i++)
			assert_int_equal(*(uint8_t *)vdrv_ptr(&f->d, f->status + i, 1), 0);
	}
	assert_int_equal(pread(f->fd, got, DISK, 0), DISK);
	for (unsigned r = 0; r < ROUNDS; r++)
		for (unsigned i = 0; i < N; i++)
			assert_int_equal(got[(r * N + i) * 4096 + 4095], (uint8_t)(r + i));
	virtio_blk_stats(f->blk, &st);
	assert_int_equal(st.writes, N * ROUNDS);
	assert_int_equal(st.errors, 0);
}

/* Pause lets nothing through, resume serves what came meanwhile, and the state moves on. */
static void pause_save_restore(void **state)
{
	struct fixture *f = *state;
	_cleanup_buf_ struct buf b = { 0 };
	struct virtio_blk_outhdr h = { .type = VIRTIO_BLK_T_IN, .sector = 9 };
	struct vdrv_buf req[] = { { f->header, 16, false },
				  { DATA, 512, true },
				  { f->status, 1, true } };
	uint8_t want[512];
	struct vdrv d;
	struct err e = { 0 };

	memset(want, 0x77, sizeof(want));
	assert_int_equal(pwrite(f->fd, want, 512, 9 * 512), 512);
	vdrv_start(&f->d, ALL, 64);
	assert_int_equal(request(f, VIRTIO_BLK_T_IN, 0, 512, true, NULL), 0);
	virtio_mmio_pause(f->d.v);
	assert_int_equal(guest_mem_write(f->mem, f->header, &h, sizeof(h)), 0);
	vdrv_add(&f->d, 0, req, 3);
	vdrv_kick(&f->d, 0);
	assert_int_equal(virtio_mmio_save(f->d.v, &b, &e), 0);
	d = f->d;
	remake(f, true, 1); /* a disk that lacks what the driver uses */
	assert_true(virtio_mmio_restore(f->d.v, b.data, b.len, &e) < 0);
	assert_string_equal(e.code, "state_mismatch");
	remake(f, false, 2);
	drop(f);
	assert_int_equal(blk_raw_new(f->fd, false, &f->backend, NULL), 0);
	assert_int_equal(virtio_blk_new(f->mem, &(struct virtio_blk_setup){ .backend = f->backend },
					&f->blk, NULL),
			 0);
	d.v = f->d.v = virtio_blk_mmio(f->blk);
	assert_int_equal(virtio_mmio_restore(d.v, b.data, b.len, &e), 0);
	assert_int_equal(virtio_mmio_attach(d.v, NULL, &e), 0);
	virtio_mmio_resume(d.v);
	assert_int_equal(vdrv_wait(&d, 0, NULL), 513);
	assert_memory_equal(data(f), want, 512);
}

#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(configuration),
		T(write_then_read),
		T(odd_framing),
		T(out_of_range),
		T(discard_and_zeroes),
		T(refused_clears),
		T(read_only),
		T(raw_backend_refuses),
		T(no_status),
		T(short_header),
		T(storage_errors),
		T(write_through),
		T(reset_waits_for_requests),
		T(many_at_once),
		T(pause_save_restore),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
