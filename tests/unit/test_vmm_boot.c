/* What a guest finds in memory at its first instruction, and kernels that must be refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "vmm/boot/acpi.h"
#include "vmm/boot/aml.h"
#include "vmm/boot/elf.h"
#include "vmm/boot/load.h"
#include "vmm/boot/memmap.h"
#include "vmm/layout.h"
#include "vmm/mem.h"
#include "vmm/power.h"
#include "vmm_elf_build.h"

#define MIB(n) ((uint64_t)(n) << 20)

static uint32_t get32(const void *p, size_t at)
{
	uint32_t v;

	memcpy(&v, (const char *)p + at, sizeof(v));
	return v;
}

static uint64_t get64(const void *p, size_t at)
{
	uint64_t v;

	memcpy(&v, (const char *)p + at, sizeof(v));
	return v;
}

static void elf_good(void **state)
{
	struct elf_image image;
	struct elf_build b;
	struct err e;
	int fd;

	(void)state;
	elf_build_good(&b);
	fd = elf_build_file(&b, sizeof(b));
	assert_int_equal(elf_read(fd, &image, &e), 0);
	assert_int_equal(image.entry, 0x100010);
	assert_int_equal(image.nsegments, 2);
	assert_int_equal(image.segments[1].paddr, 0x200000);
	assert_int_equal(image.segments[1].memsz, 0x10000);
	assert_int_equal(image.end, 0x210000);
	close(fd);
}

/* Each damages a good kernel in one way that must be noticed. */
static void no_magic(struct elf_build *b)
{
	b->h.e_ident[1] = 'e';
}
static void class32(struct elf_build *b)
{
	b->h.e_ident[EI_CLASS] = ELFCLASS32;
}
static void other_machine(struct elf_build *b)
{
	b->h.e_machine = EM_AARCH64;
}
static void object_file(struct elf_build *b)
{
	b->h.e_type = ET_REL;
}
static void phdrs_many(struct elf_build *b)
{
	b->h.e_phnum = 65;
}
static void phdrs_none(struct elf_build *b)
{
	b->h.e_phnum = 0;
}
static void phdrs_outside(struct elf_build *b)
{
	b->h.e_phoff = UINT64_MAX - 8;
}
static void offset_wraps(struct elf_build *b)
{
	b->ph[0].p_offset = UINT64_MAX - 15;
}
static void segment_past_file(struct elf_build *b)
{
	b->ph[1].p_filesz = 4096;
}
static void filesz_over_memsz(struct elf_build *b)
{
	b->ph[0].p_memsz = 8;
}
static void paddr_low(struct elf_build *b)
{
	b->ph[0].p_paddr = 0xff000;
}
static void paddr_high(struct elf_build *b)
{
	b->ph[1].p_paddr = 0xffffffff;
}
static void paddr_wraps(struct elf_build *b)
{
	b->ph[1].p_paddr = 0x200000;
	b->ph[1].p_memsz = UINT64_MAX - 0x1000;
}
static void segments_overlap(struct elf_build *b)
{
	b->ph[1].p_paddr = 0x100020;
}
static void note_other_owner(struct elf_build *b)
{
	memcpy(b->note.name, "Xem", 4);
}
static void note_other_type(struct elf_build *b)
{
	b->note.h.n_type = 17;
}
static void note_too_long(struct elf_build *b)
{
	b->note.h.n_descsz = 0xfffffffc;
}
static void note_name_too_long(struct elf_build *b)
{
	b->note.h.n_namesz = 0xffffffff;
}
static void entry_in_bss(struct elf_build *b)
{
	b->note.entry = 0x208000;
}
static void entry_nowhere(struct elf_build *b)
{
	b->note.entry = 0x300000;
}

static void elf_damaged(void **state)
{
	static void (*const damages[])(struct elf_build *) = {
		no_magic,	   class32,	     other_machine,
		object_file,	   phdrs_many,	     phdrs_none,
		phdrs_outside,	   offset_wraps,     segment_past_file,
		filesz_over_memsz, paddr_low,	     paddr_high,
		paddr_wraps,	   segments_overlap, note_other_owner,
		note_other_type,   note_too_long,    note_name_too_long,
		entry_in_bss,	   entry_nowhere,
	};
	struct elf_image image;
	struct elf_build b;

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(damages); i++) {
		struct err e = { 0 };
		int fd;

		elf_build_good(&b);
		damages[i](&b);
		fd = elf_build_file(&b, sizeof(b));
		if (elf_read(fd, &image, &e) == 0)
			fail_msg("damage %zu went unnoticed", i);
		assert_string_equal(e.code, "kernel_invalid");
		close(fd);
	}
}

static void elf_cut_anywhere(void **state)
{
	struct elf_image image;
	struct elf_build b;

	(void)state;
	elf_build_good(&b);
	for (size_t n = 0; n < offsetof(struct elf_build, data) + sizeof(b.data); n++) {
		struct err e = { 0 };
		int fd = elf_build_file(&b, n);

		assert_true(elf_read(fd, &image, &e) < 0);
		assert_string_equal(e.code, "kernel_invalid");
		close(fd);
	}
}

static void elf_not_a_file(void **state)
{
	struct elf_image image;
	struct err e = { 0 };
	int p[2];

	(void)state;
	assert_int_equal(pipe(p), 0);
	assert_true(elf_read(p[0], &image, &e) < 0);
	assert_string_equal(e.code, "kernel_invalid");
	close(p[0]);
	close(p[1]);
}

static void memmap_below_hole(void **state)
{
	struct memmap_entry m[MEMMAP_MAX];

	(void)state;
	assert_int_equal(memmap_build(MIB(512), m), 3);
	assert_int_equal(m[0].addr, 0);
	assert_int_equal(m[0].size, 0x9fc00);
	assert_int_equal(m[0].type, MEMMAP_RAM);
	assert_int_equal(m[1].addr, 0x9fc00);
	assert_int_equal(m[1].type, MEMMAP_RESERVED);
	assert_int_equal(m[2].addr, MIB(1));
	assert_int_equal(m[2].addr + m[2].size, MIB(512));
}

static void memmap_exactly_to_hole(void **state)
{
	struct memmap_entry m[MEMMAP_MAX];

	(void)state;
	assert_int_equal(memmap_build(MIB(3072), m), 3);
	assert_int_equal(m[2].addr + m[2].size, MIB(3072));
}

static void memmap_above_hole(void **state)
{
	struct memmap_entry m[MEMMAP_MAX];

	(void)state;
	assert_int_equal(memmap_build(MIB(5000), m), 4);
	assert_int_equal(m[2].addr + m[2].size, MIB(3072));
	assert_int_equal(m[3].addr, MIB(4096));
	assert_int_equal(m[3].size, MIB(5000 - 3072));
	assert_int_equal(m[3].type, MEMMAP_RAM);
}

static uint8_t sum(const void *p, size_t n)
{
	const uint8_t *b = p;
	uint8_t s = 0;

	while (n--)
		s = (uint8_t)(s + *b++);
	return s;
}

/* The table at a guest address inside the blob, its checksum verified. */
static const char *table_at(const struct buf *b, uint64_t addr, const char *sig)
{
	const char *t;

	assert_true(addr >= LAYOUT_ACPI && addr - LAYOUT_ACPI + 36 <= b->len);
	t = b->data + (addr - LAYOUT_ACPI);
	assert_memory_equal(t, sig, 4);
	assert_true(addr - LAYOUT_ACPI + get32(t, 4) <= b->len);
	assert_int_equal(sum(t, get32(t, 4)), 0);
	return t;
}

static void acpi_tables(void **state)
{
	struct acpi_machine m = { .vcpus = 3, .virtio = 4 };
	_cleanup_buf_ struct buf b = { 0 };
	const char *xsdt, *fadt, *madt, *dsdt;
	struct err e;

	(void)state;
	assert_int_equal(acpi_build(&m, LAYOUT_ACPI, 0x20000, &b, &e), 0);
	assert_memory_equal(b.data, "RSD PTR ", 8);
	assert_int_equal(sum(b.data, 20), 0);
	assert_int_equal(sum(b.data, 36), 0);
	xsdt = table_at(&b, get64(b.data, 24), "XSDT");
	assert_int_equal(get32(xsdt, 4), 36 + 2 * 8);
	fadt = table_at(&b, get64(xsdt, 36), "FACP");
	assert_int_equal(get32(fadt, 4), 276);
	assert_true(get32(fadt, 112) & (1u << 20)); /* hardware reduced */
	assert_int_equal(get64(fadt, 116 + 4), POWER_RESET_PORT);
	assert_int_equal(get64(fadt, 244 + 4), POWER_SLEEP_CONTROL_PORT);
	madt = table_at(&b, get64(xsdt, 44), "APIC");
	assert_int_equal(get32(madt, 36), 0xfee00000);
	assert_int_equal(get32(madt, 4), 44 + 3 * 8 + 12);
	assert_int_equal(madt[44 + 2 * 8 + 3], 2); /* third processor's APIC id */
	dsdt = table_at(&b, get64(fadt, 140), "DSDT");
	assert_non_null(memmem(dsdt, get32(dsdt, 4), "VR03", 4));
	assert_null(memmem(dsdt, get32(dsdt, 4), "VR04", 4));
}

static void acpi_too_large(void **state)
{
	struct acpi_machine m = { .vcpus = 3, .virtio = 4 };
	_cleanup_buf_ struct buf b = { 0 };
	struct err e = { 0 };

	(void)state;
	assert_true(acpi_build(&m, LAYOUT_ACPI, 64, &b, &e) < 0);
}

/* Bytes as the ACPI specification's own encoding rules give them. */
static void aml_bytes(void **state)
{
	static const uint8_t expect[] = {
		0x10, 0xcf, 0x02, 0,	0,   '\\', '_',	 'S',  'B',  '_',  /* Scope: PkgLength of 4
									      bytes, 47 */
		0x5b, 0x82, 0xc4, 0x02, 0,   0,	   'D',	 'E',  'V',  '0',  /* Device: 36 */
		0x08, '_',  'U',  'I',	'D', 0x0a, 0x2a,		   /* Name(_UID, 42) */
		0x08, '_',  'H',  'I',	'D', 0x0c, 0x41, 0xd0, 0x05, 0x01, /* EisaId("PNP0501") */
		0x08, '_',  'C',  'C',	'A', 0x01, 0x08, 'N',  'A',  'M',  '_', 0x0d, 'x', 0,
	};
	struct aml a = { 0 };

	(void)state;
	aml_scope_open(&a, "\\_SB");
	aml_device_open(&a, "DEV0");
	aml_name_integer(&a, "_UID", 42);
	aml_name_eisa_id(&a, "_HID", "PNP0501");
	aml_name_integer(&a, "_CCA", 1);
	aml_name_string(&a, "NAM", "x");
	aml_close(&a);
	aml_close(&a);
	assert_int_equal(aml_finish(&a), 0);
	assert_int_equal(a.out.len, sizeof(expect));
	assert_memory_equal(a.out.data + 10, expect + 10, 2);
	assert_memory_equal(a.out.data + 16, expect + 16, sizeof(expect) - 16);
	/* The lengths: low nibble in the first byte, then eight bits each. */
	assert_int_equal((a.out.data[1] & 0x0f) | (uint8_t)a.out.data[2] << 4, sizeof(expect) - 1);
	assert_int_equal((a.out.data[12] & 0x0f) | (uint8_t)a.out.data[13] << 4,
			 sizeof(expect) - 12);
	assert_int_equal((uint8_t)a.out.data[1] >> 6, 3);
	aml_free(&a);
}

static void aml_misuse_sticks(void **state)
{
	struct aml open = { 0 }, closed = { 0 }, deep = { 0 }, name = { 0 };

	(void)state;
	aml_scope_open(&open, "\\_SB");
	assert_true(aml_finish(&open) < 0);
	aml_close(&closed);
	assert_true(aml_finish(&closed) < 0);
	for (int i = 0; i <= AML_DEPTH_MAX; i++)
		aml_device_open(&deep, "D");
	for (int i = 0; i <= AML_DEPTH_MAX; i++)
		aml_close(&deep);
	assert_true(aml_finish(&deep) < 0);
	aml_name_integer(&name, "TOOLONG", 1);
	assert_true(aml_finish(&name) < 0);
	aml_free(&open);
	aml_free(&closed);
	aml_free(&deep);
	aml_free(&name);
}

static int file_of(const char *text, size_t n)
{
	int fd = memfd_create("file", MFD_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(pwrite(fd, text, n, 0), n);
	return fd;
}

static void load_places_everything(void **state)
{
	int initrds[3] = { file_of("abcde", 5), file_of("", 0), file_of("XYZ", 3) };
	struct boot_config c = {
		.initrd_fds = initrds, .initrds = 3, .cmdline = "console=ttyS0 x", .vcpus = 1
	};
	_cleanup_guest_mem_ struct guest_mem *mem = NULL;
	struct boot_entry entry;
	struct elf_build b;
	const char *si, *module;
	uint64_t initrd;
	struct err e;

	(void)state;
	elf_build_good(&b);
	c.kernel_fd = elf_build_file(&b, sizeof(b));
	assert_int_equal(guest_mem_new(MIB(32), 0, &mem, &e), 0);
	assert_int_equal(boot_load(mem, &c, &entry, &e), 0);
	assert_int_equal(entry.rip, 0x100010);
	si = guest_mem_at(mem, entry.start_info, 56);
	assert_int_equal(get32(si, 0), 0x336ec578);
	assert_int_equal(get32(si, 4), 1);
	assert_int_equal(get32(si, 12), 1); /* modules */
	assert_string_equal((char *)guest_mem_at(mem, get64(si, 24), 32), c.cmdline);
	assert_memory_equal(guest_mem_at(mem, get64(si, 32), 8), "RSD PTR ", 8);
	assert_int_equal(get32(si, 48), 3); /* memory map entries */
	module = guest_mem_at(mem, get64(si, 16), 32);
	initrd = get64(module, 0);
	assert_int_equal(get64(module, 8), 12);
	assert_int_equal(initrd % 4096, 0);
	assert_memory_equal(guest_mem_at(mem, initrd, 12), "abcde\0\0\0XYZ\0", 12);
	assert_memory_equal(guest_mem_at(mem, 0x100000, 64), b.text, 64);
	assert_memory_equal(guest_mem_at(mem, 0x200000, 64), b.data, 64);
	close(c.kernel_fd);
	for (int i = 0; i < 3; i++)
		close(initrds[i]);
}

static void load_without_initrd_has_no_module(void **state)
{
	struct boot_config c = { .cmdline = "", .vcpus = 1 };
	_cleanup_guest_mem_ struct guest_mem *mem = NULL;
	struct boot_entry entry;
	struct elf_build b;
	struct err e;

	(void)state;
	elf_build_good(&b);
	c.kernel_fd = elf_build_file(&b, sizeof(b));
	assert_int_equal(guest_mem_new(MIB(32), 0, &mem, &e), 0);
	assert_int_equal(boot_load(mem, &c, &entry, &e), 0);
	assert_int_equal(get32(guest_mem_at(mem, entry.start_info, 56), 12), 0);
	close(c.kernel_fd);
}

static void load_refuses_what_does_not_fit(void **state)
{
	_cleanup_guest_mem_ struct guest_mem *mem = NULL;
	int big = file_of("", 0);
	struct boot_config c = { .cmdline = "", .vcpus = 1 };
	struct boot_entry entry;
	struct elf_build b;
	struct err e = { 0 };

	(void)state;
	assert_int_equal(guest_mem_new(MIB(32), 0, &mem, &e), 0);
	elf_build_good(&b);
	b.ph[1].p_memsz = MIB(64);
	c.kernel_fd = elf_build_file(&b, sizeof(b));
	assert_true(boot_load(mem, &c, &entry, &e) < 0);
	assert_string_equal(e.code, "bad_request");
	close(c.kernel_fd);

	elf_build_good(&b);
	c.kernel_fd = elf_build_file(&b, sizeof(b));
	c.initrd_fds = &big;
	c.initrds = 1;
	assert_int_equal(ftruncate(big, (off_t)MIB(31)), 0); /* would reach into the kernel */
	assert_true(boot_load(mem, &c, &entry, &e) < 0);
	assert_string_equal(e.code, "bad_request");
	assert_int_equal(ftruncate(big, (off_t)MIB(4096)), 0);
	assert_true(boot_load(mem, &c, &entry, &e) < 0);
	assert_string_equal(e.code, "bad_request");
	close(c.kernel_fd);
	close(big);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(elf_good),
		cmocka_unit_test(elf_damaged),
		cmocka_unit_test(elf_cut_anywhere),
		cmocka_unit_test(elf_not_a_file),
		cmocka_unit_test(memmap_below_hole),
		cmocka_unit_test(memmap_exactly_to_hole),
		cmocka_unit_test(memmap_above_hole),
		cmocka_unit_test(acpi_tables),
		cmocka_unit_test(acpi_too_large),
		cmocka_unit_test(aml_bytes),
		cmocka_unit_test(aml_misuse_sticks),
		cmocka_unit_test(load_places_everything),
		cmocka_unit_test(load_without_initrd_has_no_module),
		cmocka_unit_test(load_refuses_what_does_not_fit),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
