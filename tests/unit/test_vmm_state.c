/* The container of a saved machine, its memory file, and which processors can run it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/err.h"
#include "vmm/cpuid.h"
#include "vmm/mem.h"
#include "vmm/state/state_cpu.h"
#include "vmm/state/state_file.h"
#include "vmm/state/state_memory.h"

#define PAGE 4096u
#define MIB (1u << 20)

static void make_state(struct buf *b)
{
	assert_int_equal(state_begin(b), 0);
	assert_int_equal(state_add(b, STATE_SHAPE, 0, "shape", 5), 0);
	assert_int_equal(state_add(b, STATE_VCPU, 0, "first", 5), 0);
	assert_int_equal(state_add(b, STATE_VCPU, 1, "second vcpu", 11), 0);
	assert_int_equal(state_add(b, STATE_VIRTIO, 0, "", 0), 0);
	state_finish(b);
}

static void sections_are_found(void **state)
{
	_cleanup_buf_ struct buf b = { 0 };
	struct state_view v;
	struct err e = { 0 };
	const void *p;
	size_t n;

	(void)state;
	make_state(&b);
	assert_int_equal(state_open(b.data, b.len, &v, &e), 0);
	assert_int_equal(state_section(&v, STATE_VCPU, 1, 0, &p, &n, &e), 0);
	assert_int_equal(n, 11);
	assert_memory_equal(p, "second vcpu", 11);
	assert_int_equal(state_section(&v, STATE_VCPU, 0, 5, &p, &n, &e), 0);
	assert_memory_equal(p, "first", 5);
	assert_int_equal(state_section(&v, STATE_VIRTIO, 0, 0, &p, &n, &e), 0);
	assert_int_equal(n, 0);
	assert_true(state_section(&v, STATE_VCPU, 0, 6, &p, &n, &e) < 0); /* of another length */
	assert_string_equal(e.code, "state_invalid");
	assert_true(state_section(&v, STATE_VCPU, 2, 0, &p, &n, &e) < 0); /* not there */
	assert_string_equal(e.code, "state_invalid");
}

static void any_altered_byte_is_noticed(void **state)
{
	_cleanup_buf_ struct buf b = { 0 };
	struct state_view v;

	(void)state;
	make_state(&b);
	for (size_t i = 0; i < b.len; i++) {
		struct err e = { 0 };

		b.data[i] ^= 1;
		if (state_open(b.data, b.len, &v, &e) == 0)
			fail_msg("byte %zu", i);
		assert_string_equal(e.code, i >= 8 && i < 12 ? "state_version" : "state_invalid");
		b.data[i] ^= 1;
	}
	assert_int_equal(state_open(b.data, b.len, &v, NULL), 0);
}

static void any_cut_is_noticed(void **state)
{
	_cleanup_buf_ struct buf b = { 0 };
	struct state_view v;

	(void)state;
	make_state(&b);
	for (size_t n = 0; n < b.len; n++) {
		struct err e = { 0 };

		assert_true(state_open(b.data, n, &v, &e) < 0);
		assert_string_equal(e.code, "state_invalid");
	}
}

/* The checksum is right, the section's length is not. */
static void a_section_past_the_end_is_noticed(void **state)
{
	_cleanup_buf_ struct buf b = { 0 };
	uint64_t length = UINT64_MAX - 4;
	struct state_view v;
	struct err e = { 0 };
	const void *p;
	size_t n;

	(void)state;
	make_state(&b);
	memcpy(b.data + 56 + 8, &length, sizeof(length)); /* of the first section */
	state_finish(&b);
	assert_int_equal(state_open(b.data, b.len, &v, &e), 0);
	assert_true(state_section(&v, STATE_SHAPE, 0, 0, &p, &n, &e) < 0);
	assert_true(state_section(&v, STATE_VIRTIO, 0, 0, &p, &n, &e) < 0);
	assert_string_equal(e.code, "state_invalid");
}

static void memory_is_saved_without_its_zeroes(void **state)
{
	_cleanup_guest_mem_ struct guest_mem *mem = NULL, *back = NULL;
	int fd = memfd_create("memory", MFD_CLOEXEC);
	uint8_t *host, *copy;
	uint64_t written;
	struct err e = { 0 };
	struct stat st;

	(void)state;
	assert_true(fd >= 0);
	assert_int_equal(guest_mem_new(8 * MIB, 0, &mem, &e), 0);
	host = guest_mem_at(mem, 0, 8 * MIB);
	host[0] = 1;			 /* first byte of the first page */
	host[3 * PAGE - 1] = 2;		 /* last byte of the third */
	host[3 * PAGE] = 3;		 /* and the fourth, in one run with it */
	host[8 * MIB - 1] = 4;		 /* the very last byte */
	host[100 * PAGE + 4096 / 2] = 5; /* a page by itself */
	assert_int_equal(memory_save(mem, fd, &written, &e), 0);
	assert_int_equal(written, 5 * PAGE);
	assert_int_equal(fstat(fd, &st), 0);
	assert_int_equal(st.st_size, 8 * MIB);
	assert_int_equal(st.st_blocks * 512, 5 * PAGE);
	assert_int_equal(guest_mem_new_file(fd, 8 * MIB, 0, &back, &e), 0);
	copy = guest_mem_at(back, 0, 8 * MIB);
	assert_memory_equal(copy, host, 8 * MIB);
	copy[5] = 9; /* a restored guest's writes are its own */
	assert_int_equal(pread(fd, &copy[6], 1, 5), 1);
	assert_int_equal(copy[6], 0);
	close(fd);
}

static void memory_goes_to_an_empty_file_only(void **state)
{
	_cleanup_guest_mem_ struct guest_mem *mem = NULL;
	int fd = memfd_create("memory", MFD_CLOEXEC), p[2];
	uint64_t written;
	struct err e = { 0 };

	(void)state;
	assert_int_equal(guest_mem_new(MIB, 0, &mem, &e), 0);
	assert_int_equal(pwrite(fd, "x", 1, 0), 1);
	assert_true(memory_save(mem, fd, &written, &e) < 0);
	assert_string_equal(e.code, "bad_request");
	assert_int_equal(pipe(p), 0);
	assert_true(memory_save(mem, p[1], &written, &e) < 0);
	assert_string_equal(e.code, "bad_request");
	close(p[0]);
	close(p[1]);
	close(fd);
}

static struct cpuid processor(void)
{
	return (struct cpuid){
		.nent = 3,
		.entries = {
			{ .function = 0, .ebx = 0x756e6547, .edx = 0x49656e69, .ecx = 0x6c65746e },
			{ .function = 1, .ebx = 0x01020304, .ecx = 0x80202201, .edx = 0x078bfbff },
			{ .function = 7, .ebx = 1 << 5 },
		},
	};
}

static void a_state_runs_where_its_features_are(void **state)
{
	struct cpuid saved = processor(), host = processor();
	struct err e = { 0 };

	(void)state;
	assert_int_equal(cpuid_check_runs_on(&saved, &host, &e), 0);
	host.entries[2].ebx |= 1 << 8; /* more than it needs */
	host.entries[1].ebx = 0;       /* no features: APIC id, cache lines */
	assert_int_equal(cpuid_check_runs_on(&saved, &host, &e), 0);
	host.entries[2].ebx = 1 << 8; /* but not AVX2 */
	assert_true(cpuid_check_runs_on(&saved, &host, &e) < 0);
	assert_string_equal(e.code, "state_mismatch");
	assert_non_null(strstr(e.msg, "leaf 0x7"));
	host = processor();
	host.nent = 2; /* no leaf 7 at all */
	assert_true(cpuid_check_runs_on(&saved, &host, &e) < 0);
	host = processor();
	host.entries[0].ebx = 0x68747541; /* another vendor */
	assert_true(cpuid_check_runs_on(&saved, &host, &e) < 0);
	assert_string_equal(e.code, "state_mismatch");
}

static void impossible_vcpus_are_refused(void **state)
{
	static struct vcpu_state v;
	struct cpuid host = processor();
	struct err e = { 0 };

	(void)state;
	v.cpuid = processor();
	v.nmsrs = 1;
	v.msrs[0].index = 0xc0000081; /* STAR */
	assert_int_equal(vcpu_state_check(&v, &host, &e), 0);
	v.msrs[0].index = 0x10a; /* of the host, never in a state of ours */
	assert_true(vcpu_state_check(&v, &host, &e) < 0);
	assert_string_equal(e.code, "state_invalid");
	v.nmsrs = STATE_MSRS_MAX + 1;
	assert_true(vcpu_state_check(&v, &host, &e) < 0);
	v.nmsrs = 0;
	v.cpuid.nent = CPUID_ENTRIES_MAX + 1;
	assert_true(vcpu_state_check(&v, &host, &e) < 0);
	assert_string_equal(e.code, "state_invalid");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sections_are_found),
		cmocka_unit_test(any_altered_byte_is_noticed),
		cmocka_unit_test(any_cut_is_noticed),
		cmocka_unit_test(a_section_past_the_end_is_noticed),
		cmocka_unit_test(memory_is_saved_without_its_zeroes),
		cmocka_unit_test(memory_goes_to_an_empty_file_only),
		cmocka_unit_test(a_state_runs_where_its_features_are),
		cmocka_unit_test(impossible_vcpus_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
