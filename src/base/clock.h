/*
 * Time. Wall time is milliseconds since 1970 UTC, for people and records; monotonic time is
 * nanoseconds since an arbitrary point, for durations and deadlines. Never mix them.
 */
#ifndef CLOCHE_BASE_CLOCK_H
#define CLOCHE_BASE_CLOCK_H

#include <stdint.h>

#define CLOCK_RFC3339_LEN 25 /* "2026-01-31T23:59:59.123Z" and NUL */
#define NSEC_PER_MSEC 1000000ULL
#define NSEC_PER_SEC 1000000000ULL

int64_t clock_wall_ms(void);
uint64_t clock_mono_ns(void);

/* Writes wall_ms as RFC 3339 UTC with milliseconds, for example 2026-01-31T23:59:59.123Z. */
void clock_rfc3339(int64_t wall_ms, char out[CLOCK_RFC3339_LEN]);

/*
 * The inverse, for what APIs send: an optional fraction of any length, "Z" at the end. Returns 0,
 * or -EINVAL when s is anything else (offsets are refused).
 */
int clock_parse_rfc3339(const char *s, int64_t *wall_ms);

#endif
