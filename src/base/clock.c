/* Thin over clock_gettime(2); no state. */
#include "base/clock.h"

#include <stdio.h>
#include <time.h>

int64_t clock_wall_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

uint64_t clock_mono_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * NSEC_PER_SEC + (uint64_t)t.tv_nsec;
}

void clock_rfc3339(int64_t wall_ms, char out[CLOCK_RFC3339_LEN])
{
	int64_t ms = wall_ms % 1000;
	time_t s = (time_t)(wall_ms / 1000);
	char secs[20];
	struct tm tm;

	if (ms < 0) {
		ms += 1000;
		s--;
	}
	if (!gmtime_r(&s, &tm) || !strftime(secs, sizeof(secs), "%Y-%m-%dT%H:%M:%S", &tm))
		snprintf(secs, sizeof(secs), "0000-00-00T00:00:00");
	snprintf(out, CLOCK_RFC3339_LEN, "%s.%03uZ", secs, (unsigned)ms % 1000u);
}
