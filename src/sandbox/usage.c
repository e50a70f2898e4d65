/* Plain arithmetic; 128-bit products, because nanoseconds times micros pass 2^63 within days. */
#include "sandbox/usage.h"

#define NS_PER_HOUR 3600000000000LL
#define MIB_MS_PER_GIB_HOUR (1024LL * 3600000LL)
#define FLOOR_NS_PER_MS 50000LL /* 1/20 of a CPU */

const struct usage_prices usage_default_prices = { .vcpu_hour_micros = 25000,
						   .gib_hour_micros = 7500 };

struct store_usage usage_total(const struct usage_prices *p, int64_t cpu_ns, int64_t ms,
			       int64_t memory_mib)
{
	struct store_usage u = { .cpu_ns = cpu_ns > 0 ? cpu_ns : 0 };
	int64_t charged;
	__int128 micros;

	if (ms < 0)
		ms = 0;
	u.memory_mib_ms = memory_mib * ms;
	charged = u.cpu_ns > ms * FLOOR_NS_PER_MS ? u.cpu_ns : ms * FLOOR_NS_PER_MS;
	micros = (__int128)charged * p->vcpu_hour_micros / NS_PER_HOUR +
		 (__int128)u.memory_mib_ms * p->gib_hour_micros / MIB_MS_PER_GIB_HOUR;
	u.cost_micros = (int64_t)micros;
	return u;
}

static int64_t more(int64_t total, int64_t recorded)
{
	return total > recorded ? total - recorded : 0;
}

struct store_usage usage_since(const struct store_usage *total, const struct store_usage *recorded)
{
	return (struct store_usage){
		.cpu_ns = more(total->cpu_ns, recorded->cpu_ns),
		.memory_mib_ms = more(total->memory_mib_ms, recorded->memory_mib_ms),
		.cost_micros = more(total->cost_micros, recorded->cost_micros),
	};
}
