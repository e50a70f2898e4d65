/*
 * Files are read straight into guest memory. The RAM disk ends at the top of low RAM, where a
 * kernel finds it out of its way; it must not reach down into the kernel. All that the start info
 * points to lies below 1 MiB at the addresses of layout.h.
 */
#include "vmm/boot/load.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "proto/vmm.h"
#include "vmm/boot/acpi.h"
#include "vmm/boot/elf.h"
#include "vmm/boot/memmap.h"
#include "vmm/layout.h"
#include "vmm/mem.h"

#define START_INFO_MAGIC 0x336ec578
#define PAGE 4096ULL
#define INITRD_ALIGN 4ULL

/* Layouts of the PVH boot ABI, version 1. */
struct start_info {
	uint32_t magic, version, flags, modules;
	uint64_t modlist, cmdline, rsdp, memmap;
	uint32_t memmap_entries, reserved;
};

struct module {
	uint64_t paddr, size, cmdline, reserved;
};

_Static_assert(sizeof(struct start_info) == 56, "PVH start info layout");
_Static_assert(sizeof(struct module) == 32, "PVH module layout");
_Static_assert(LAYOUT_START_INFO + sizeof(struct start_info) <= LAYOUT_MODULES, "layout");
_Static_assert(LAYOUT_MODULES + sizeof(struct module) <= LAYOUT_MEMMAP, "layout");
_Static_assert(LAYOUT_HOLE_START == GUEST_MEM_HOLE_START, "one MMIO hole");
_Static_assert(LAYOUT_HOLE_END == GUEST_MEM_HOLE_END, "one MMIO hole");

/* Reads n bytes at off of fd to gpa. */
static int read_to_guest(struct guest_mem *mem, uint64_t gpa, int fd, uint64_t off, uint64_t n,
			 const char *what, struct err *e)
{
	char *p = guest_mem_at(mem, gpa, n);

	if (!p)
		return err_set(e, "bad_request", ENOSPC,
			       "%s: %llu bytes at 0x%llx are not within the guest's memory", what,
			       (unsigned long long)n, (unsigned long long)gpa);
	while (n) {
		ssize_t r = pread(fd, p, n, (off_t)off);

		if (r < 0 && errno == EINTR)
			continue;
		if (r < 0)
			return err_errno(e, errno, "read %s", what);
		if (r == 0)
			return err_set(e, "bad_request", EIO, "%s became shorter while it was read",
				       what);
		p += r;
		off += (uint64_t)r;
		n -= (uint64_t)r;
	}
	return 0;
}

static int write_guest(struct guest_mem *mem, uint64_t gpa, const void *p, size_t n, struct err *e)
{
	int r = guest_mem_write(mem, gpa, p, n);

	return r < 0 ? err_errno(e, -r, "write boot data at 0x%llx", (unsigned long long)gpa) : 0;
}

static int load_kernel(struct guest_mem *mem, int fd, struct elf_image *image, struct err *e)
{
	int r = elf_read(fd, image, e);

	for (unsigned i = 0; r == 0 && i < image->nsegments; i++) {
		const struct elf_segment *s = &image->segments[i];

		if (!guest_mem_at(mem, s->paddr, s->memsz))
			return err_set(e, "bad_request", ENOSPC,
				       "kernel: %llu bytes at 0x%llx do not fit the guest's memory",
				       (unsigned long long)s->memsz, (unsigned long long)s->paddr);
		if (s->filesz)
			r = read_to_guest(mem, s->paddr, fd, s->offset, s->filesz, "kernel", e);
	}
	return r;
}

static int initrd_size(int fd, uint64_t *size, struct err *e)
{
	struct stat st;

	if (fstat(fd, &st) < 0)
		return err_errno(e, errno, "initrd");
	if (!S_ISREG(st.st_mode))
		return err_set(e, "bad_request", EINVAL, "initrd: not a regular file");
	*size = (uint64_t)st.st_size;
	return 0;
}

static uint64_t align_up(uint64_t v, uint64_t to)
{
	return (v + to - 1) & ~(to - 1);
}

/* Fills m; its size is 0 when there is no RAM disk. */
static int load_initrds(struct guest_mem *mem, const struct boot_config *c, uint64_t kernel_end,
			struct module *m, struct err *e)
{
	uint64_t sizes[VMM_INITRDS_MAX], total = 0, top, at;
	size_t n;
	int r;

	for (unsigned i = 0; i < c->initrds; i++) {
		r = initrd_size(c->initrd_fds[i], &sizes[i], e);
		if (r < 0)
			return r;
		if (sizes[i] > LAYOUT_HOLE_START)
			return err_set(e, "bad_request", EFBIG, "initrd: larger than 3 GiB");
		total += align_up(sizes[i], INITRD_ALIGN);
	}
	if (total == 0)
		return 0;
	top = guest_mem_regions(mem, &n)[0].size;
	if (total > top || ((top - total) & ~(PAGE - 1)) < kernel_end)
		return err_set(e, "bad_request", ENOSPC,
			       "initrd: %llu bytes do not fit the guest's memory beside the kernel",
			       (unsigned long long)total);
	m->paddr = at = (top - total) & ~(PAGE - 1);
	m->size = total;
	for (unsigned i = 0; i < c->initrds; i++) {
		if (sizes[i] == 0)
			continue;
		r = read_to_guest(mem, at, c->initrd_fds[i], 0, sizes[i], "initrd", e);
		if (r < 0)
			return r;
		at += align_up(sizes[i], INITRD_ALIGN);
	}
	return 0;
}

static int write_acpi(struct guest_mem *mem, const struct boot_config *c, struct err *e)
{
	struct acpi_machine m = { .vcpus = c->vcpus, .virtio = c->virtio };
	_cleanup_buf_ struct buf tables = { 0 };
	int r = acpi_build(&m, LAYOUT_ACPI, LAYOUT_ACPI_END - LAYOUT_ACPI, &tables, e);

	return r < 0 ? r : write_guest(mem, LAYOUT_ACPI, tables.data, tables.len, e);
}

int boot_load(struct guest_mem *mem, const struct boot_config *c, struct boot_entry *out,
	      struct err *e)
{
	struct start_info si = { .magic = START_INFO_MAGIC,
				 .version = 1,
				 .cmdline = LAYOUT_CMDLINE,
				 .rsdp = LAYOUT_ACPI,
				 .memmap = LAYOUT_MEMMAP };
	struct memmap_entry map[MEMMAP_MAX];
	struct module initrd = { 0 };
	struct elf_image image;
	int r;

	if (c->initrds > VMM_INITRDS_MAX || strlen(c->cmdline) > LAYOUT_CMDLINE_MAX)
		return err_set(e, "bad_request", EINVAL, "too many initrds or too long a cmdline");
	if ((r = load_kernel(mem, c->kernel_fd, &image, e)) < 0 ||
	    (r = load_initrds(mem, c, image.end, &initrd, e)) < 0 ||
	    (r = write_acpi(mem, c, e)) < 0)
		return r;
	if (initrd.size) {
		si.modules = 1;
		si.modlist = LAYOUT_MODULES;
	}
	si.memmap_entries = memmap_build(guest_mem_size(mem), map);
	r = write_guest(mem, LAYOUT_MODULES, &initrd, sizeof(initrd), e);
	if (r == 0)
		r = write_guest(mem, LAYOUT_MEMMAP, map, si.memmap_entries * sizeof(map[0]), e);
	if (r == 0)
		r = write_guest(mem, LAYOUT_CMDLINE, c->cmdline, strlen(c->cmdline) + 1, e);
	if (r == 0)
		r = write_guest(mem, LAYOUT_START_INFO, &si, sizeof(si), e);
	if (r < 0)
		return r;
	out->rip = image.entry;
	out->start_info = LAYOUT_START_INFO;
	return 0;
}
