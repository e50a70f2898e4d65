/* A token bucket: `rate` a second on average, at most `burst` at once. */
#ifndef CLOCHE_EGRESS_BUCKET_H
#define CLOCHE_EGRESS_BUCKET_H

#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"

struct bucket {
	uint64_t paid_until; /* clock_mono_ns(); all zero is a full bucket */
};

static inline bool bucket_take(struct bucket *b, unsigned rate, unsigned burst, uint64_t now)
{
	uint64_t cost = NSEC_PER_SEC / rate, most = cost * burst;

	if (b->paid_until < now)
		b->paid_until = now;
	if (b->paid_until + cost > now + most)
		return false;
	b->paid_until += cost;
	return true;
}

#endif
