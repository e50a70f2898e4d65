/*
 * Guest memory: RAM from guest physical address 0 up to the MMIO hole below 4 GiB, and what does
 * not fit there from 4 GiB upwards. On the host it is one mapping in guest order, without the
 * hole, so an offset in it is also the offset in a memory file.
 *
 * The guest changes this memory at any time, also while we look at it. Whoever reads a structure
 * from it copies it once and checks the copy.
 *
 * All functions but new and free may be called from any thread.
 */
#ifndef CLOCHE_VMM_MEM_H
#define CLOCHE_VMM_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"

struct err;
struct guest_mem;

#define GUEST_MEM_HOLE_START 0xC0000000ULL /* 3 GiB */
#define GUEST_MEM_HOLE_END 0x100000000ULL  /* 4 GiB */
#define GUEST_MEM_REGIONS_MAX 2
#define GUEST_MEM_MAX (64ULL << 30) /* most bytes of one guest */

struct guest_mem_region {
	uint64_t gpa;	 /* guest physical address of its first byte */
	uint64_t size;	 /* bytes */
	uint64_t offset; /* of its first byte in the host mapping and in a memory file */
	void *host;
};

enum guest_mem_flags {
	GUEST_MEM_HUGE = 1 << 0, /* ask for transparent huge pages */
};

/*
 * Makes zeroed memory of size bytes, a multiple of the page size within 1 page..GUEST_MEM_MAX.
 * Nothing is reserved; pages appear when touched. Never part of a core dump.
 * Error code memory_unavailable.
 */
int guest_mem_new(uint64_t size, unsigned flags, struct guest_mem **out, struct err *e);

/*
 * The same over a memory file: private copy-on-write pages of fd from offset 0. The file must be
 * at least size bytes and must never change while it is mapped. fd stays the caller's and may be
 * closed.
 */
int guest_mem_new_file(int fd, uint64_t size, unsigned flags, struct guest_mem **out,
		       struct err *e);

void guest_mem_free(struct guest_mem *m); /* NULL-safe */
CLEANUP_DEFINE(struct guest_mem *, cleanup_guest_mem, guest_mem_free)
#define _cleanup_guest_mem_ _cleanup_(cleanup_guest_mem)

uint64_t guest_mem_size(const struct guest_mem *m);

/* The one or two regions in ascending order, as KVM memory slots want them. */
const struct guest_mem_region *guest_mem_regions(const struct guest_mem *m, size_t *n);

/*
 * The host address of len bytes at gpa, or NULL when len is 0 or any byte of them is not RAM. The
 * hole separates the regions, so a range that is RAM lies in one region.
 */
void *guest_mem_at(const struct guest_mem *m, uint64_t gpa, uint64_t len);

/* The guest address of a host address that guest_mem_at() gave. */
uint64_t guest_mem_gpa(const struct guest_mem *m, const void *host);

/* Copy len bytes out of or into the guest; 0, or -EFAULT with nothing copied. */
int guest_mem_read(const struct guest_mem *m, uint64_t gpa, void *to, size_t len);
int guest_mem_write(const struct guest_mem *m, uint64_t gpa, const void *from, size_t len);

/*
 * Gives pages back to the host: they read as zero afterwards, also over a memory file, whose bytes
 * do not come back. gpa and len are multiples of the page size. 0, -EINVAL, -EFAULT (not RAM), or
 * what the kernel said.
 */
int guest_mem_discard(struct guest_mem *m, uint64_t gpa, uint64_t len);

/*
 * Whether the page at offset (of the host mapping) was ever discarded: what a save must write even
 * though it has no private page there. Only meaningful over a memory file.
 */
bool guest_mem_was_discarded(const struct guest_mem *m, uint64_t offset);

#endif
