/* A short array searched in order: the devices that answer most come first. */
#include "vmm/bus.h"

#include <errno.h>
#include <string.h>

#include "base/err.h"

int bus_add(struct bus *b, uint64_t base, uint64_t size, const struct bus_ops *ops, void *ctx,
	    struct err *e)
{
	if (b->n == BUS_RANGES_MAX)
		return err_set(e, "internal", ENOSPC, "no room for another device range");
	for (unsigned i = 0; i < b->n; i++) {
		const struct bus_range *r = &b->ranges[i];

		if (base < r->base + r->size && r->base < base + size)
			return err_set(e, "internal", EEXIST, "device ranges overlap at 0x%llx",
				       (unsigned long long)base);
	}
	b->ranges[b->n++] = (struct bus_range){ base, size, ops, ctx };
	return 0;
}

static const struct bus_range *bus_find(const struct bus *b, uint64_t addr, size_t len)
{
	for (unsigned i = 0; i < b->n; i++) {
		const struct bus_range *r = &b->ranges[i];

		if (addr >= r->base && addr - r->base < r->size &&
		    len <= r->size - (addr - r->base))
			return r;
	}
	return NULL;
}

bool bus_read(const struct bus *b, uint64_t addr, void *data, size_t len)
{
	const struct bus_range *r = bus_find(b, addr, len);

	if (!r) {
		memset(data, 0xff, len);
		return false;
	}
	r->ops->read(r->ctx, addr - r->base, data, len);
	return true;
}

bool bus_write(const struct bus *b, uint64_t addr, const void *data, size_t len)
{
	const struct bus_range *r = bus_find(b, addr, len);

	if (!r)
		return false;
	r->ops->write(r->ctx, addr - r->base, data, len);
	return true;
}
