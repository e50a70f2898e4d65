/*
 * One thread with an event loop. For each guest it watches the VMM's pidfd and the answer of the
 * pending `wait`; whichever comes first ends the watch and hands the guest's end to a worker. A
 * VMM that ended a guest lives on for a second, in which the worker reads its console and its
 * last figures. Two timers drive leases and ticks. Nothing here blocks.
 *
 * Other threads leave new watches in m->new_watches and wake the loop; sources belong to the loop.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/loop.h"
#include "sandbox/manager.h"
#include "sandbox/vmm_ctl.h"

#define LEASE_LOOK_MS 10000 /* the wall clock may be set: never trust a long timer */

struct watch {
	struct watch *next;
	struct sandbox_manager *m;
	struct sandbox *s; /* a reference */
	unsigned epoch;
	int pidfd, wait_fd;
	struct loop_source *on_pidfd, *on_wait;
};

static void watch_free(struct watch *w)
{
	loop_remove(w->on_pidfd);
	loop_remove(w->on_wait);
	close_fd(&w->pidfd);
	close_fd(&w->wait_fd);
	manager_put(w->m, w->s);
	free(w);
}

/* ---- the end of a guest ---- */

struct ended {
	unsigned epoch;
	char reason[32]; /* "" when the VMM said nothing */
};

static void handle_end(struct sandbox_manager *m, struct sandbox *s, void *arg)
{
	_cleanup_free_ struct ended *end = arg;

	pthread_mutex_lock(&s->op);
	/* An operation that ended the guest itself has said so already. */
	if (s->live && s->epoch == end->epoch)
		lifecycle_ended(m, s, end->reason[0] ? end->reason : NULL);
	pthread_mutex_unlock(&s->op);
}

static void watch_fire(struct watch *w)
{
	_cleanup_json_ json_t *answer = NULL;
	struct ended *end = calloc(1, sizeof(*end));
	struct watch **p = &w->m->watches;
	struct err e;

	while (*p != w)
		p = &(*p)->next;
	*p = w->next;
	if (end) {
		end->epoch = w->epoch;
		if (w->wait_fd >= 0 && vmm_ctl_recv(w->wait_fd, &answer, 0, NULL) == 0)
			snprintf(end->reason, sizeof(end->reason), "%s",
				 json_get_str(answer, "reason", ""));
		if (manager_work(w->m, w->s, handle_end, end, &e) < 0) {
			log_err(LOG_ERROR, &e, "the end of a guest is handled late");
			handle_end(w->m, w->s, end);
		}
	} else {
		log_error("out of memory: the end of %s is seen at the next restart", w->s->row.id);
	}
	watch_free(w);
}

static void on_event(void *ctx, int fd, uint32_t events)
{
	(void)fd;
	(void)events;
	watch_fire(ctx);
}

/* ---- new watches ---- */

static int watch_arm(struct watch *w, struct err *e)
{
	int r = loop_add_fd(w->m->loop, w->pidfd, EPOLLIN, on_event, w, &w->on_pidfd, e);

	if (r == 0 && w->wait_fd >= 0)
		r = loop_add_fd(w->m->loop, w->wait_fd, EPOLLIN, on_event, w, &w->on_wait, e);
	return r;
}

static void take_new(struct sandbox_manager *m)
{
	struct watch *w, *next;
	struct err e;

	pthread_mutex_lock(&m->lock);
	w = m->new_watches;
	m->new_watches = NULL;
	pthread_mutex_unlock(&m->lock);
	for (; w; w = next) {
		next = w->next;
		if (watch_arm(w, &e) < 0) {
			log_err(LOG_ERROR, &e, "watch a guest");
			watch_free(w);
			continue;
		}
		w->next = m->watches;
		m->watches = w;
	}
}

int watch_add(struct sandbox_manager *m, struct sandbox *s, int wait_fd, struct err *e)
{
	struct watch *w = calloc(1, sizeof(*w));
	int r;

	if (!w || (w->pidfd = fcntl(s->guest.pidfd, F_DUPFD_CLOEXEC, 3)) < 0) {
		r = err_errno(e, w ? errno : ENOMEM, "watch a guest");
		free(w);
		close_fd(&wait_fd);
		return r;
	}
	w->m = m;
	w->s = s;
	w->epoch = s->epoch;
	w->wait_fd = wait_fd;
	pthread_mutex_lock(&m->lock);
	s->refs++;
	w->next = m->new_watches;
	m->new_watches = w;
	pthread_mutex_unlock(&m->lock);
	loop_wake(m->loop);
	return 0;
}

/* ---- timers ---- */

static void look_at_leases(struct sandbox_manager *m)
{
	int64_t now = clock_wall_ms(), next = lease_check(m), ms = LEASE_LOOK_MS;

	if (next && next - now < ms)
		ms = next > now ? next - now : 1;
	loop_set_timer(m->lease_timer, clock_mono_ns() + (uint64_t)ms * NSEC_PER_MSEC);
}

static void on_lease_timer(void *ctx)
{
	look_at_leases(ctx);
}

static void on_tick_timer(void *ctx)
{
	struct sandbox_manager *m = ctx;
	bool busy;
	struct err e;

	pthread_mutex_lock(&m->lock);
	busy = m->ticking;
	m->ticking = true;
	pthread_mutex_unlock(&m->lock);
	if (!busy && manager_work(m, NULL, tick, NULL, &e) < 0) {
		log_err(LOG_WARN, &e, "tick left out");
		pthread_mutex_lock(&m->lock);
		m->ticking = false;
		pthread_mutex_unlock(&m->lock);
	}
	loop_set_timer(m->tick_timer, clock_mono_ns() + TICK_MS * NSEC_PER_MSEC);
}

static void on_wake(void *ctx)
{
	struct sandbox_manager *m = ctx;
	bool ending;

	pthread_mutex_lock(&m->lock);
	ending = m->ending;
	pthread_mutex_unlock(&m->lock);
	if (ending) {
		loop_stop(m->loop);
		return;
	}
	take_new(m);
	look_at_leases(m);
}

void watch_leases(struct sandbox_manager *m)
{
	loop_wake(m->loop);
}

/* ---- the thread ---- */

static void *run(void *p)
{
	struct sandbox_manager *m = p;
	struct err e;

	/* Without its watcher the daemon is blind: better restarted than half alive. */
	if (loop_run(m->loop, &e) < 0) {
		log_err(LOG_ERROR, &e, "the watcher");
		abort();
	}
	return NULL;
}

int watch_start(struct sandbox_manager *m, struct err *e)
{
	int r = loop_new(&m->loop, e);

	if (r == 0)
		r = loop_add_timer(m->loop, on_lease_timer, m, &m->lease_timer, e);
	if (r == 0)
		r = loop_add_timer(m->loop, on_tick_timer, m, &m->tick_timer, e);
	if (r < 0)
		return r;
	loop_on_wake(m->loop, on_wake, m);
	loop_set_timer(m->tick_timer, clock_mono_ns() + TICK_MS * NSEC_PER_MSEC);
	r = pthread_create(&m->thread, NULL, run, m);
	if (r)
		return err_errno(e, r, "start the watcher");
	m->has_thread = true;
	return 0;
}

static void free_all(struct watch *w)
{
	while (w) {
		struct watch *next = w->next;

		watch_free(w);
		w = next;
	}
}

void watch_stop(struct sandbox_manager *m)
{
	if (m->has_thread) {
		loop_wake(m->loop);
		pthread_join(m->thread, NULL);
		m->has_thread = false;
	}
	free_all(m->watches);
	free_all(m->new_watches);
	m->watches = m->new_watches = NULL;
	loop_free(m->loop);
	m->loop = NULL;
}
