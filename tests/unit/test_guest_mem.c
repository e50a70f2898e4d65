/* Guest memory: where RAM is, what is refused around the hole, and what a discard leaves. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "base/err.h"
#include "vmm/mem.h"

#define MIB (1ULL << 20)
#define GIB (1ULL << 30)

static struct guest_mem *make(uint64_t size)
{
	struct guest_mem *m = NULL;

	assert_int_equal(guest_mem_new(size, 0, &m, NULL), 0);
	return m;
}

static void small(void **state)
{
	_cleanup_guest_mem_ struct guest_mem *m = make(32 * MIB);
	const struct guest_mem_region *r;
	size_t n;

	(void)state;
	r = guest_mem_regions(m, &n);
	assert_int_equal(n, 1);
	assert_int_equal(r[0].gpa, 0);
	assert_int_equal(r[0].size, 32 * MIB);
	assert_ptr_equal(guest_mem_at(m, 0, 1), r[0].host);
	assert_ptr_equal(guest_mem_at(m, 32 * MIB - 1, 1), (char *)r[0].host + 32 * MIB - 1);
	assert_null(guest_mem_at(m, 32 * MIB - 1, 2));
	assert_null(guest_mem_at(m, 32 * MIB, 1));
	assert_null(guest_mem_at(m, 0, 32 * MIB + 1));
	assert_null(guest_mem_at(m, 0, 0));
	assert_null(guest_mem_at(m, UINT64_MAX, 1));
	assert_null(guest_mem_at(m, 1, UINT64_MAX));
	assert_null(guest_mem_at(m, UINT64_MAX - 4, 16));
}

static void around_the_hole(void **state)
{
	_cleanup_guest_mem_ struct guest_mem *m = make(4 * GIB);
	const struct guest_mem_region *r;
	char back[4] = "";
	size_t n;

	(void)state;
	r = guest_mem_regions(m, &n);
	assert_int_equal(n, 2);
	assert_int_equal(r[0].size, 3 * GIB);
	assert_int_equal(r[1].gpa, 4 * GIB);
	assert_int_equal(r[1].size, 1 * GIB);
	assert_int_equal(r[1].offset, 3 * GIB);
	assert_ptr_equal((char *)r[0].host + 3 * GIB, r[1].host);
	assert_non_null(guest_mem_at(m, 3 * GIB - 8, 8));
	assert_null(guest_mem_at(m, 3 * GIB - 8, 9));
	assert_null(guest_mem_at(m, 3 * GIB, 1));
	assert_null(guest_mem_at(m, 4 * GIB - 1, 1));
	assert_null(guest_mem_at(m, 4 * GIB - 1, 2));
	assert_null(guest_mem_at(m, 0, 4 * GIB));
	assert_non_null(guest_mem_at(m, 5 * GIB - 1, 1));
	assert_null(guest_mem_at(m, 5 * GIB, 1));
	/* Last byte below and first byte above are different memory. */
	assert_int_equal(guest_mem_write(m, 3 * GIB - 1, "a", 1), 0);
	assert_int_equal(guest_mem_write(m, 4 * GIB, "bcd", 3), 0);
	assert_int_equal(guest_mem_read(m, 3 * GIB - 1, back, 1), 0);
	assert_int_equal(back[0], 'a');
	assert_int_equal(guest_mem_read(m, 4 * GIB, back, 3), 0);
	assert_memory_equal(back, "bcd", 3);
	assert_int_equal(guest_mem_write(m, 3 * GIB - 1, "xy", 2), -EFAULT);
	assert_int_equal(guest_mem_read(m, 5 * GIB - 2, back, 3), -EFAULT);
	assert_int_equal(*(char *)guest_mem_at(m, 3 * GIB - 1, 1), 'a');
}

static void refused_sizes(void **state)
{
	static const uint64_t sizes[] = { 0, 1, 4095, 4097, 65 * GIB, UINT64_MAX & ~4095ULL };
	struct guest_mem *m = NULL;
	struct err e = { 0 };

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
		assert_true(guest_mem_new(sizes[i], 0, &m, &e) < 0);
		assert_string_equal(e.code, "memory_unavailable");
		assert_null(m);
	}
}

static void discard_anonymous(void **state)
{
	_cleanup_guest_mem_ struct guest_mem *m = make(1 * MIB);
	char *p = guest_mem_at(m, 0, 1 * MIB);

	(void)state;
	memset(p, 7, 1 * MIB);
	assert_int_equal(guest_mem_discard(m, 8192, 4096), 0);
	assert_int_equal(p[8191], 7);
	assert_int_equal(p[8192], 0);
	assert_int_equal(p[12287], 0);
	assert_int_equal(p[12288], 7);
	assert_int_equal(guest_mem_discard(m, 8193, 4096), -EINVAL);
	assert_int_equal(guest_mem_discard(m, 8192, 100), -EINVAL);
	assert_int_equal(guest_mem_discard(m, 8192, 0), -EINVAL);
	assert_int_equal(guest_mem_discard(m, 1 * MIB, 4096), -EFAULT);
}

/* A memory file's bytes must not come back after a discard, and the file never changes. */
static void discard_over_file(void **state)
{
	_cleanup_close_ int fd = memfd_create("mem", MFD_CLOEXEC);
	_cleanup_guest_mem_ struct guest_mem *m = NULL;
	struct err e = { 0 };
	static char page[4096];
	char *p;

	(void)state;
	memset(page, 'f', sizeof(page));
	for (int i = 0; i < 16; i++)
		assert_int_equal(write(fd, page, sizeof(page)), sizeof(page));
	assert_true(guest_mem_new_file(fd, 17 * 4096, 0, &m, &e) < 0);
	assert_string_equal(e.code, "memory_unavailable");
	assert_int_equal(guest_mem_new_file(fd, 16 * 4096, 0, &m, &e), 0);
	p = guest_mem_at(m, 0, 16 * 4096);
	assert_int_equal(p[4096], 'f');
	p[0] = 'w';
	assert_int_equal(pread(fd, page, 1, 0), 1);
	assert_int_equal(page[0], 'f');
	assert_int_equal(guest_mem_discard(m, 4096, 8192), 0);
	assert_int_equal(p[4095], 'f');
	assert_int_equal(p[4096], 0);
	assert_int_equal(p[12287], 0);
	assert_int_equal(p[12288], 'f');
	assert_false(guest_mem_was_discarded(m, 0));
	assert_true(guest_mem_was_discarded(m, 4096));
	assert_true(guest_mem_was_discarded(m, 12287));
	assert_false(guest_mem_was_discarded(m, 12288));
	assert_false(guest_mem_was_discarded(m, 1ULL << 60));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(small),
		cmocka_unit_test(around_the_hole),
		cmocka_unit_test(refused_sizes),
		cmocka_unit_test(discard_anonymous),
		cmocka_unit_test(discard_over_file),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
