/* Fills guest memory for a PVH boot: kernel, initial RAM disk, command line, ACPI, start info. */
#ifndef CLOCHE_VMM_BOOT_LOAD_H
#define CLOCHE_VMM_BOOT_LOAD_H

#include <stdint.h>

struct err;
struct guest_mem;

struct boot_config {
	int kernel_fd;
	const int *initrd_fds; /* regular files; concatenated, each padded to 4 bytes with zeros */
	unsigned initrds;
	const char *cmdline; /* at most LAYOUT_CMDLINE_MAX bytes */
	unsigned vcpus;
	unsigned virtio; /* virtio-mmio windows in use */
};

struct boot_entry {
	uint32_t rip;	     /* 32-bit protected mode, paging off */
	uint64_t start_info; /* goes to rbx */
};

/*
 * Loads into fresh (zeroed) guest memory. The descriptors stay the caller's. Error codes:
 * kernel_invalid, bad_request (something does not fit), system.
 */
int boot_load(struct guest_mem *mem, const struct boot_config *c, struct boot_entry *out,
	      struct err *e);

#endif
