/*
 * One epoll set. A source is a node in a list; removal moves it to the list of the dead, and the
 * memory goes at the end of the round, because events already fetched in the same round may still
 * name it.
 */
#include "base/loop.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"

#define ROUND 64

struct loop_source {
	struct loop *loop;
	struct loop_source *next, **link; /* *link is this source */
	int fd;
	bool is_timer;
	bool dead;
	loop_fd_fn fd_fn;
	loop_fn timer_fn;
	void *ctx;
};

struct loop {
	int epfd;
	int wakefd;
	bool stop;
	struct loop_source *sources, *dead;
	loop_fn wake_fn;
	void *wake_ctx;
};

static void on_wakefd(void *ctx, int fd, uint32_t events)
{
	struct loop *l = ctx;
	uint64_t n;

	(void)events;
	if (read(fd, &n, sizeof(n)) < 0)
		return; /* EAGAIN: another round took it */
	if (l->wake_fn)
		l->wake_fn(l->wake_ctx);
}

int loop_new(struct loop **out, struct err *e)
{
	struct loop_source *wake;
	struct loop *l = calloc(1, sizeof(*l));
	int r;

	if (!l)
		return err_errno(e, ENOMEM, "event loop");
	l->epfd = epoll_create1(EPOLL_CLOEXEC);
	l->wakefd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (l->epfd < 0 || l->wakefd < 0) {
		r = err_errno(e, errno, "event loop");
		loop_free(l);
		return r;
	}
	r = loop_add_fd(l, l->wakefd, EPOLLIN, on_wakefd, l, &wake, e);
	if (r < 0) {
		loop_free(l);
		return r;
	}
	*out = l;
	return 0;
}

static void source_free(struct loop_source *s)
{
	if (s->is_timer)
		close(s->fd);
	free(s);
}

static void sources_free(struct loop_source **list)
{
	while (*list) {
		struct loop_source *s = *list;

		*list = s->next;
		source_free(s);
	}
}

void loop_free(struct loop *l)
{
	if (!l)
		return;
	sources_free(&l->sources);
	sources_free(&l->dead);
	close_fd(&l->epfd);
	close_fd(&l->wakefd);
	free(l);
}

static void source_link(struct loop_source **list, struct loop_source *s)
{
	s->next = *list;
	s->link = list;
	if (s->next)
		s->next->link = &s->next;
	*list = s;
}

int loop_add_fd(struct loop *l, int fd, uint32_t events, loop_fd_fn fn, void *ctx,
		struct loop_source **out, struct err *e)
{
	struct loop_source *s = calloc(1, sizeof(*s));
	struct epoll_event ev = { .events = events, .data.ptr = s };

	if (!s)
		return err_errno(e, ENOMEM, "watch descriptor");
	s->loop = l;
	s->fd = fd;
	s->fd_fn = fn;
	s->ctx = ctx;
	if (epoll_ctl(l->epfd, EPOLL_CTL_ADD, fd, &ev) < 0) {
		int r = err_errno(e, errno, "watch descriptor %d", fd);

		free(s);
		return r;
	}
	source_link(&l->sources, s);
	*out = s;
	return 0;
}

int loop_set_events(struct loop_source *s, uint32_t events)
{
	struct epoll_event ev = { .events = events, .data.ptr = s };

	return epoll_ctl(s->loop->epfd, EPOLL_CTL_MOD, s->fd, &ev) < 0 ? -errno : 0;
}

int loop_add_timer(struct loop *l, loop_fn fn, void *ctx, struct loop_source **out, struct err *e)
{
	_cleanup_close_ int fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	struct loop_source *s;
	int r;

	if (fd < 0)
		return err_errno(e, errno, "timer");
	r = loop_add_fd(l, fd, EPOLLIN, NULL, ctx, &s, e);
	if (r < 0)
		return r;
	steal_fd(&fd);
	s->is_timer = true;
	s->timer_fn = fn;
	*out = s;
	return 0;
}

int loop_set_timer(struct loop_source *s, uint64_t mono_ns)
{
	struct itimerspec t = { 0 };

	t.it_value.tv_sec = (time_t)(mono_ns / NSEC_PER_SEC);
	t.it_value.tv_nsec = (long)(mono_ns % NSEC_PER_SEC);
	return timerfd_settime(s->fd, TFD_TIMER_ABSTIME, &t, NULL) < 0 ? -errno : 0;
}

void loop_remove_closed(struct loop_source *s)
{
	if (!s || s->dead)
		return;
	s->dead = true;
	*s->link = s->next;
	if (s->next)
		s->next->link = s->link;
	source_link(&s->loop->dead, s);
}

void loop_remove(struct loop_source *s)
{
	if (!s || s->dead)
		return;
	epoll_ctl(s->loop->epfd, EPOLL_CTL_DEL, s->fd, NULL);
	loop_remove_closed(s);
}

static void source_fire(struct loop_source *s, uint32_t events)
{
	uint64_t n;

	if (!s->is_timer) {
		s->fd_fn(s->ctx, s->fd, events);
		return;
	}
	if (read(s->fd, &n, sizeof(n)) == (ssize_t)sizeof(n)) /* else: re-armed meanwhile */
		s->timer_fn(s->ctx);
}

int loop_run(struct loop *l, struct err *e)
{
	struct epoll_event ev[ROUND];

	l->stop = false;
	while (!l->stop) {
		int n = epoll_wait(l->epfd, ev, ROUND, -1);

		if (n < 0 && errno != EINTR)
			return err_errno(e, errno, "epoll_wait");
		for (int i = 0; i < n; i++) {
			struct loop_source *s = ev[i].data.ptr;

			if (!s->dead)
				source_fire(s, ev[i].events);
		}
		sources_free(&l->dead);
	}
	return 0;
}

void loop_stop(struct loop *l)
{
	l->stop = true;
}

void loop_wake(struct loop *l)
{
	uint64_t one = 1;
	ssize_t ignored = write(l->wakefd, &one, sizeof(one)); /* full means already awake */

	(void)ignored;
}

void loop_on_wake(struct loop *l, loop_fn fn, void *ctx)
{
	l->wake_fn = fn;
	l->wake_ctx = ctx;
}
