/* Thin over clock_gettime(2); no state. */
#include "base/clock.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
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

int clock_parse_rfc3339(const char *s, int64_t *wall_ms)
{
	struct tm tm = { 0 };
	const char *p = strptime(s, "%Y-%m-%dT%H:%M:%S", &tm);
	int ms = 0, scale = 100;

	if (!p)
		return -EINVAL;
	if (*p == '.') {
		if (p[1] < '0' || p[1] > '9')
			return -EINVAL;
		for (p++; *p >= '0' && *p <= '9'; p++, scale /= 10)
			ms += (*p - '0') * scale;
	}
	if (strcmp(p, "Z") != 0)
		return -EINVAL;
	*wall_ms = (int64_t)timegm(&tm) * 1000 + ms;
	return 0;
}
