/* The balloon: what the guest gives up reads as zero and is gone from the host. */
#include <linux/virtio_balloon.h>
#include <linux/virtio_config.h>
#include <linux/virtio_mmio.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/loop.h"
#include "virtio_driver.h"
#include "vmm/mem.h"
#include "vmm/virtio/balloon.h"
#include "vmm/virtio/mmio.h"

enum { INFLATE, DEFLATE, REPORT };

#define MEM (16u << 20)
#define PAGES (8u << 20) /* guest address of the pages that are given up */
#define PAGE 4096u

struct fixture {
	struct loop *loop;
	struct guest_mem *mem;
	struct virtio_balloon *b;
	struct vdrv d;
};

static void begin(struct fixture *f)
{
	assert_int_equal(loop_new(&f->loop, NULL), 0);
	assert_int_equal(virtio_balloon_new(f->mem, &f->b, NULL), 0);
	assert_int_equal(virtio_mmio_attach(virtio_balloon_mmio(f->b), f->loop, NULL), 0);
	vdrv_init(&f->d, virtio_balloon_mmio(f->b), f->mem, f->loop, 1 << 20);
	vdrv_start(&f->d, UINT64_MAX, 64);
	memset(vdrv_ptr(&f->d, PAGES, 64 * PAGE), 'x', 64 * PAGE);
}

static void end(struct fixture *f)
{
	vdrv_fini(&f->d);
	virtio_balloon_free(f->b);
	loop_free(f->loop);
	guest_mem_free(f->mem);
}

/* Which of the 64 pages are resident. */
static uint64_t resident(struct fixture *f)
{
	unsigned char v[64];
	uint64_t bits = 0;

	assert_int_equal(mincore(vdrv_ptr(&f->d, PAGES, 64 * PAGE), 64 * PAGE, v), 0);
	for (unsigned i = 0; i < 64; i++)
		bits |= (uint64_t)(v[i] & 1) << i;
	return bits;
}

/* Which of the 64 pages read as zero. */
static uint64_t zeroed(struct fixture *f)
{
	const char *p = vdrv_ptr(&f->d, PAGES, 64 * PAGE);
	uint64_t bits = 0;

	for (unsigned i = 0; i < 64; i++)
		bits |= (uint64_t)(p[i * PAGE] == 0 && p[i * PAGE + PAGE - 1] == 0) << i;
	return bits;
}

static void send_pfns(struct fixture *f, unsigned q, const uint32_t *pfns, uint32_t bytes)
{
	struct vdrv_buf b = { .gpa = 4 << 20, .len = bytes };

	assert_int_equal(guest_mem_write(f->mem, b.gpa, pfns, bytes), 0);
	vdrv_add(&f->d, q, &b, 1);
	vdrv_kick(&f->d, q);
	vdrv_wait(&f->d, q, NULL);
}

static struct virtio_balloon_stats stats(struct fixture *f)
{
	struct virtio_balloon_stats st;

	virtio_balloon_stats(f->b, &st);
	return st;
}

static void inflate_and_report(struct fixture *f)
{
	static const uint32_t pfns[] = { PAGES / PAGE + 3, PAGES / PAGE + 4, PAGES / PAGE + 9 };
	struct vdrv_buf pages[] = { { PAGES + 16 * PAGE, 2 * PAGE, true },
				    { PAGES + 32 * PAGE, PAGE, true } };

	begin(f);
	assert_true(f->d.features & 1ULL << VIRTIO_BALLOON_F_REPORTING);
	assert_true(zeroed(f) == 0);
	send_pfns(f, INFLATE, pfns, sizeof(pfns));
	assert_true(zeroed(f) == (1ULL << 3 | 1ULL << 4 | 1ULL << 9));
	vdrv_add(&f->d, REPORT, pages, 2);
	vdrv_kick(&f->d, REPORT);
	vdrv_wait(&f->d, REPORT, NULL);
	assert_true(zeroed(f) == (1ULL << 3 | 1ULL << 4 | 1ULL << 9 | 3ULL << 16 | 1ULL << 32));
	assert_int_equal(stats(f).inflated_bytes, 3 * PAGE);
	assert_int_equal(stats(f).reported_bytes, 3 * PAGE);
	assert_int_equal(stats(f).failed + stats(f).malformed, 0);
	/* The guest takes them back by using them. */
	send_pfns(f, DEFLATE, pfns, sizeof(pfns));
	memset(vdrv_ptr(&f->d, PAGES, 64 * PAGE), 'y', 64 * PAGE);
	assert_true(zeroed(f) == 0);
}

static void anonymous(void **state)
{
	struct fixture f = { 0 };
	const uint32_t pfn = PAGES / PAGE + 1;

	(void)state;
	assert_int_equal(guest_mem_new(MEM, 0, &f.mem, NULL), 0);
	inflate_and_report(&f);
	send_pfns(&f, INFLATE, &pfn, 4);
	assert_true(resident(&f) == ~(1ULL << 1));
	end(&f);
}

/* Over a memory file its bytes must not come back, and the pages are marked for a later save. */
static void over_file(void **state)
{
	_cleanup_close_ int fd = memfd_create("mem", MFD_CLOEXEC);
	struct fixture f = { 0 };
	char c = 'f';

	(void)state;
	for (unsigned i = 0; i < 64; i++) {
		assert_int_equal(pwrite(fd, &c, 1, PAGES + i * PAGE), 1);
		assert_int_equal(pwrite(fd, &c, 1, PAGES + i * PAGE + PAGE - 1), 1);
	}
	assert_int_equal(ftruncate(fd, MEM), 0);
	assert_int_equal(guest_mem_new_file(fd, MEM, 0, &f.mem, NULL), 0);
	inflate_and_report(&f);
	assert_true(guest_mem_was_discarded(f.mem, PAGES + 3 * PAGE));
	assert_false(guest_mem_was_discarded(f.mem, PAGES + 5 * PAGE));
	assert_true(guest_mem_was_discarded(f.mem, PAGES + 17 * PAGE));
	assert_int_equal(pread(fd, &c, 1, PAGES + 3 * PAGE), 1);
	assert_int_equal(c, 'f');
	end(&f);
}

static void hostile_lists(void **state)
{
	static const uint32_t outside[] = { MEM / PAGE, 0xffffffff, 0xfffff };
	const uint32_t last = MEM / PAGE - 1;
	struct fixture f = { 0 };
	struct vdrv_buf odd = { PAGES + 100, PAGE, true };

	(void)state;
	assert_int_equal(guest_mem_new(MEM, 0, &f.mem, NULL), 0);
	begin(&f);
	send_pfns(&f, INFLATE, outside, sizeof(outside));
	assert_int_equal(stats(&f).malformed, 3);
	send_pfns(&f, INFLATE, &last, 3);
	assert_int_equal(stats(&f).malformed, 4);
	vdrv_add(&f.d, REPORT, &odd, 1);
	vdrv_kick(&f.d, REPORT);
	vdrv_wait(&f.d, REPORT, NULL);
	assert_int_equal(stats(&f).malformed, 5);
	assert_true(zeroed(&f) == 0);
	send_pfns(&f, INFLATE, &last, 4);
	assert_int_equal(stats(&f).inflated_bytes, PAGE);
	end(&f);
}

static void target(void **state)
{
	_cleanup_buf_ struct buf b = { 0 };
	struct virtio_balloon *other = NULL;
	struct fixture f = { 0 };
	uint32_t val, gen;

	(void)state;
	assert_int_equal(guest_mem_new(MEM, 0, &f.mem, NULL), 0);
	begin(&f);
	gen = vdrv_get(&f.d, VIRTIO_MMIO_CONFIG_GENERATION);
	virtio_balloon_set_target(f.b, 1 << 20);
	assert_int_not_equal(vdrv_get(&f.d, VIRTIO_MMIO_CONFIG_GENERATION), gen);
	assert_int_equal(vdrv_get(&f.d, VIRTIO_MMIO_INTERRUPT_STATUS), 2);
	assert_int_equal(vdrv_get(&f.d, VIRTIO_MMIO_CONFIG), 256);
	/* The driver may write `actual` and nothing else. */
	val = 77;
	virtio_mmio_write(f.d.v, VIRTIO_MMIO_CONFIG + 4, &val, 4);
	virtio_mmio_write(f.d.v, VIRTIO_MMIO_CONFIG, &val, 4);
	virtio_mmio_write(f.d.v, VIRTIO_MMIO_CONFIG + 6, &val, 4);
	virtio_mmio_write(f.d.v, VIRTIO_MMIO_CONFIG + 2, &val, 4);
	assert_int_equal(stats(&f).actual_pages, 77);
	assert_int_equal(stats(&f).target_pages, 256);
	/* Both come along in a saved state. */
	virtio_mmio_pause(f.d.v);
	assert_int_equal(virtio_mmio_save(f.d.v, &b, NULL), 0);
	assert_int_equal(virtio_balloon_new(f.mem, &other, NULL), 0);
	assert_int_equal(virtio_mmio_restore(virtio_balloon_mmio(other), b.data, b.len, NULL), 0);
	virtio_balloon_free(f.b);
	f.b = other;
	assert_int_equal(stats(&f).actual_pages, 77);
	assert_int_equal(stats(&f).target_pages, 256);
	virtio_balloon_set_target(f.b, UINT64_MAX);
	assert_int_equal(stats(&f).target_pages, MEM / PAGE);
	end(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(anonymous),
		cmocka_unit_test(over_file),
		cmocka_unit_test(hostile_lists),
		cmocka_unit_test(target),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
