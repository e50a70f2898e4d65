/* RAM below 1 MiB ends where a PC's extended BIOS data would; from there to 1 MiB lie the tables.
 */
#include "vmm/boot/memmap.h"

#include "vmm/layout.h"

unsigned memmap_build(uint64_t size, struct memmap_entry out[MEMMAP_MAX])
{
	uint64_t low = size < LAYOUT_HOLE_START ? size : LAYOUT_HOLE_START;
	unsigned n = 0;

	out[n++] = (struct memmap_entry){ 0, LAYOUT_LOW_RAM_END, MEMMAP_RAM, 0 };
	out[n++] = (struct memmap_entry){ LAYOUT_LOW_RAM_END, LAYOUT_MIB - LAYOUT_LOW_RAM_END,
					  MEMMAP_RESERVED, 0 };
	out[n++] = (struct memmap_entry){ LAYOUT_MIB, low - LAYOUT_MIB, MEMMAP_RAM, 0 };
	if (size > low)
		out[n++] = (struct memmap_entry){ LAYOUT_HOLE_END, size - low, MEMMAP_RAM, 0 };
	return n;
}
