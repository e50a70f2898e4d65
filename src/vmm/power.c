/* Writes only; a read tells of nothing pending. The machine decides what an event leads to. */
#include "vmm/power.h"

#include <stdint.h>
#include <string.h>

#include "base/err.h"
#include "vmm/bus.h"

#define SLEEP_ENABLE (1 << 5)
#define SLEEP_TYPE(v) (((v) >> 2) & 7)
#define POWER_PORTS 3
#define KBC_COMMAND_PORT 0x64
#define KBC_RESET 0xfe

static void power_read(void *ctx, uint64_t offset, void *data, size_t len)
{
	(void)ctx;
	(void)offset;
	memset(data, 0, len);
}

static void power_write(void *ctx, uint64_t offset, const void *data, size_t len)
{
	struct power *p = ctx;
	uint8_t v = *(const uint8_t *)data;

	(void)len;
	if (LAYOUT_POWER_PORT + offset == POWER_SLEEP_CONTROL_PORT && (v & SLEEP_ENABLE) &&
	    SLEEP_TYPE(v) == POWER_SLEEP_TYPE_S5)
		p->fn(p->ctx, POWER_OFF);
	else if (LAYOUT_POWER_PORT + offset == POWER_RESET_PORT && v == POWER_RESET_VALUE)
		p->fn(p->ctx, POWER_RESET);
}

/* No keyboard controller: status reads as all ones, as for any port without a device. */
static void kbc_read(void *ctx, uint64_t offset, void *data, size_t len)
{
	(void)ctx;
	(void)offset;
	memset(data, 0xff, len);
}

static void kbc_write(void *ctx, uint64_t offset, const void *data, size_t len)
{
	struct power *p = ctx;

	(void)offset;
	(void)len;
	if (*(const uint8_t *)data == KBC_RESET)
		p->fn(p->ctx, POWER_RESET);
}

int power_attach(struct power *p, struct bus *ports, struct err *e)
{
	static const struct bus_ops power_ops = { power_read, power_write };
	static const struct bus_ops kbc_ops = { kbc_read, kbc_write };
	int r = bus_add(ports, LAYOUT_POWER_PORT, POWER_PORTS, &power_ops, p, e);

	return r < 0 ? r : bus_add(ports, KBC_COMMAND_PORT, 1, &kbc_ops, p, e);
}
