/*
 * Reads the headers of a 64-bit x86 ELF kernel that can be entered by PVH (a Xen note of type
 * XEN_ELFNOTE_PHYS32_ENTRY). The file is hostile input: everything in it is checked, nothing of
 * it is trusted twice.
 */
#ifndef CLOCHE_VMM_BOOT_ELF_H
#define CLOCHE_VMM_BOOT_ELF_H

#include <stdint.h>

struct err;

#define ELF_SEGMENTS_MAX 32

/* filesz bytes of the file from offset go to paddr; up to memsz the memory is zero. */
struct elf_segment {
	uint64_t offset, filesz;
	uint64_t paddr, memsz;
};

struct elf_image {
	uint32_t entry; /* physical address, inside a segment */
	uint64_t end;	/* first physical address after every segment */
	unsigned nsegments;
	struct elf_segment segments[ELF_SEGMENTS_MAX];
};

/*
 * Fills out from a regular file. Segments do not overlap, lie at or above 1 MiB and below 4 GiB,
 * and what they take from the file is within it. Error code kernel_invalid, or system when the
 * file cannot be read.
 */
int elf_read(int fd, struct elf_image *out, struct err *e);

#endif
