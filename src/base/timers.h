/*
 * Many timers over one loop timer, for programs with a deadline per connection. A struct timer is
 * embedded in its owner, zeroed before first use, and must be cancelled before it is freed.
 * Functions belong to the loop's thread.
 */
#ifndef CLOCHE_BASE_TIMERS_H
#define CLOCHE_BASE_TIMERS_H

#include <stddef.h>
#include <stdint.h>

#include "base/loop.h"

struct err;
struct timers;

struct timer {
	uint64_t at; /* clock_mono_ns() */
	size_t pos;  /* place in the heap plus one; 0 when not armed */
	loop_fn fn;
	void *ctx;
};

int timers_new(struct loop *l, struct timers **out, struct err *e);
void timers_free(struct timers *t); /* NULL-safe; before loop_free() */

/* Arms or moves tm to call fn(ctx) once at `at`. 0 or -ENOMEM (then tm is not armed). */
int timer_set(struct timers *t, struct timer *tm, uint64_t at, loop_fn fn, void *ctx);
void timer_cancel(struct timers *t, struct timer *tm);

#endif
