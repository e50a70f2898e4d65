/* A kernel file from a stranger, loaded into a small guest. */
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "vmm/boot/elf.h"
#include "vmm/boot/load.h"
#include "vmm/mem.h"

#define MEMORY_BYTES (4u << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* What elf_read() promises about an image that it accepts. */
static void check_promises(const struct elf_image *i, size_t file)
{
	for (unsigned a = 0; a < i->nsegments; a++) {
		const struct elf_segment *s = &i->segments[a];

		if (s->filesz > s->memsz || s->offset + s->filesz > file || s->paddr < 0x100000 ||
		    s->paddr + s->memsz > i->end || i->end > 1ULL << 32)
			abort();
		for (unsigned b = 0; b < a; b++)
			if (s->paddr < i->segments[b].paddr + i->segments[b].memsz &&
			    i->segments[b].paddr < s->paddr + s->memsz)
				abort();
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	int fd = memfd_create("kernel", MFD_CLOEXEC);
	struct boot_config c = { .kernel_fd = fd, .cmdline = "", .vcpus = 1 };
	struct guest_mem *mem = NULL;
	struct elf_image image;
	struct boot_entry entry;

	if (fd < 0 || write(fd, data, n) != (ssize_t)n)
		abort();
	if (elf_read(fd, &image, NULL) == 0) {
		check_promises(&image, n);
		if (guest_mem_new(MEMORY_BYTES, 0, &mem, NULL) == 0)
			boot_load(mem, &c, &entry, NULL);
		guest_mem_free(mem);
	}
	close(fd);
	return 0;
}
