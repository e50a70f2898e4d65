/*
 * An address space of devices (ports or memory): ranges with a reader and a writer. Filled before
 * the guest runs, read-only afterwards, so any thread may dispatch without a lock; the devices
 * lock themselves.
 */
#ifndef CLOCHE_VMM_BUS_H
#define CLOCHE_VMM_BUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;

#define BUS_RANGES_MAX 24

/* offset is from the range's base; the access lies wholly inside the range; len is 1, 2, 4 or 8. */
struct bus_ops {
	void (*read)(void *ctx, uint64_t offset, void *data, size_t len);
	void (*write)(void *ctx, uint64_t offset, const void *data, size_t len);
};

struct bus_range {
	uint64_t base, size;
	const struct bus_ops *ops;
	void *ctx;
};

struct bus {
	unsigned n;
	struct bus_range ranges[BUS_RANGES_MAX];
};

/* Adds a range that overlaps no other. */
int bus_add(struct bus *b, uint64_t base, uint64_t size, const struct bus_ops *ops, void *ctx,
	    struct err *e);

/* Where nobody answers reads give all ones and writes vanish, and the result is false. */
bool bus_read(const struct bus *b, uint64_t addr, void *data, size_t len);
bool bus_write(const struct bus *b, uint64_t addr, const void *data, size_t len);

#endif
