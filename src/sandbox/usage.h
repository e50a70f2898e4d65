/*
 * What a running stretch of a sandbox has cost so far. Amounts are totals since its start, and a
 * tick is the difference to what was recorded before: rounding never adds up, and what was not
 * recorded while the daemon was away is in the next tick.
 */
#ifndef CLOCHE_SANDBOX_USAGE_H
#define CLOCHE_SANDBOX_USAGE_H

#include <stdint.h>

#include "store/store.h"

struct meter {
	int64_t started_ms;	     /* wall clock; 0: not running */
	struct store_usage recorded; /* since then */
};

struct usage_prices {
	int64_t vcpu_hour_micros;
	int64_t gib_hour_micros;
};

extern const struct usage_prices usage_default_prices;

/*
 * The total of a stretch of ms in which the vCPU threads ran cpu_ns: at least 1/20 of a CPU is
 * charged while it runs, memory as reserved. Never negative; 2^63 is not reached in a century.
 */
struct store_usage usage_total(const struct usage_prices *p, int64_t cpu_ns, int64_t ms,
			       int64_t memory_mib);

/* total - recorded, each at least 0. */
struct store_usage usage_since(const struct store_usage *total, const struct store_usage *recorded);

#endif
