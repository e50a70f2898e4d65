/* The guest's physical memory map as PVH hands it over: what is RAM, what is not. */
#ifndef CLOCHE_VMM_BOOT_MEMMAP_H
#define CLOCHE_VMM_BOOT_MEMMAP_H

#include <stdint.h>

#define MEMMAP_MAX 4
#define MEMMAP_RAM 1
#define MEMMAP_RESERVED 2

/* Layout of the PVH boot ABI (struct hvm_memmap_table_entry). */
struct memmap_entry {
	uint64_t addr;
	uint64_t size;
	uint32_t type;
	uint32_t reserved;
};

/* The map of a guest with `size` bytes of RAM (at least 2 MiB), ascending; returns the entries. */
unsigned memmap_build(uint64_t size, struct memmap_entry out[MEMMAP_MAX]);

#endif
