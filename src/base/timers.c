/*
 * A binary heap by deadline; each timer knows its place, so it can be moved or taken out. The
 * loop's timer is armed for the root and touched only when the root changes.
 */
#include "base/timers.h"

#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/err.h"

struct timers {
	struct loop_source *source;
	struct timer **heap;
	size_t n, cap;
	uint64_t armed; /* what the loop's timer is set to; 0: disarmed */
};

static void place(struct timers *t, size_t i, struct timer *tm)
{
	t->heap[i] = tm;
	tm->pos = i + 1;
}

static void sift_up(struct timers *t, size_t i, struct timer *tm)
{
	while (i > 0 && t->heap[(i - 1) / 2]->at > tm->at) {
		place(t, i, t->heap[(i - 1) / 2]);
		i = (i - 1) / 2;
	}
	place(t, i, tm);
}

static void sift_down(struct timers *t, size_t i, struct timer *tm)
{
	for (;;) {
		size_t c = 2 * i + 1;

		if (c + 1 < t->n && t->heap[c + 1]->at < t->heap[c]->at)
			c++;
		if (c >= t->n || t->heap[c]->at >= tm->at)
			break;
		place(t, i, t->heap[c]);
		i = c;
	}
	place(t, i, tm);
}

static void rearm(struct timers *t)
{
	uint64_t at = t->n ? t->heap[0]->at : 0;

	if (at == t->armed)
		return;
	/* 0 would disarm: a deadline of 0 is long past, so any past moment does. */
	loop_set_timer(t->source, t->n && at == 0 ? 1 : at);
	t->armed = at;
}

static void fire(void *ctx)
{
	struct timers *t = ctx;
	uint64_t now = clock_mono_ns();

	t->armed = 0;
	while (t->n && t->heap[0]->at <= now) {
		struct timer *tm = t->heap[0];

		timer_cancel(t, tm);
		tm->fn(tm->ctx);
	}
	rearm(t);
}

int timers_new(struct loop *l, struct timers **out, struct err *e)
{
	struct timers *t = calloc(1, sizeof(*t));
	int r;

	if (!t)
		return err_errno(e, ENOMEM, "timers");
	r = loop_add_timer(l, fire, t, &t->source, e);
	if (r < 0) {
		free(t);
		return r;
	}
	*out = t;
	return 0;
}

void timers_free(struct timers *t)
{
	if (!t)
		return;
	loop_remove(t->source);
	free(t->heap);
	free(t);
}

int timer_set(struct timers *t, struct timer *tm, uint64_t at, loop_fn fn, void *ctx)
{
	timer_cancel(t, tm);
	if (t->n == t->cap) {
		size_t cap = t->cap ? t->cap * 2 : 64;
		struct timer **heap = reallocarray(t->heap, cap, sizeof(struct timer *));

		if (!heap)
			return -ENOMEM;
		t->heap = heap;
		t->cap = cap;
	}
	tm->at = at;
	tm->fn = fn;
	tm->ctx = ctx;
	sift_up(t, t->n++, tm);
	rearm(t);
	return 0;
}

void timer_cancel(struct timers *t, struct timer *tm)
{
	struct timer *last;
	size_t i;

	if (!tm->pos)
		return;
	i = tm->pos - 1;
	tm->pos = 0;
	last = t->heap[--t->n];
	if (last != tm) {
		last->pos = 0;
		if (i > 0 && t->heap[(i - 1) / 2]->at > last->at)
			sift_up(t, i, last);
		else
			sift_down(t, i, last);
	}
}
