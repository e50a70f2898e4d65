/*
 * A list under one lock, walked every few seconds by a thread that shuts down what is late. It
 * does not close: the connection's own thread sees the end of its socket and cleans up. A
 * descriptor is in the list only while its owner keeps it open, so it is never another's.
 */
#include "api/conns.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>

#include "base/clock.h"
#include "base/err.h"

#define LOOK_NS NSEC_PER_SEC

struct conn {
	struct conn *next, *prev;
	int fd;
	uint64_t deadline;
};

struct conns {
	pthread_mutex_t lock;
	pthread_cond_t end;
	pthread_t thread;
	bool ending;
	struct conn head; /* of the ring */
};

static void end_late(struct conns *cs, uint64_t now)
{
	for (struct conn *c = cs->head.next; c != &cs->head; c = c->next) {
		if (c->deadline > now)
			continue;
		shutdown(c->fd, SHUT_RDWR);
		c->deadline = UINT64_MAX;
	}
}

static void *run(void *arg)
{
	struct conns *cs = arg;

	pthread_mutex_lock(&cs->lock);
	while (!cs->ending) {
		uint64_t at = clock_mono_ns() + LOOK_NS;
		const struct timespec ts = { .tv_sec = (time_t)(at / NSEC_PER_SEC),
					     .tv_nsec = (long)(at % NSEC_PER_SEC) };

		pthread_cond_timedwait(&cs->end, &cs->lock, &ts);
		end_late(cs, clock_mono_ns());
	}
	pthread_mutex_unlock(&cs->lock);
	return NULL;
}

int conns_new(struct conns **out, struct err *e)
{
	struct conns *cs = calloc(1, sizeof(*cs));
	pthread_condattr_t attr;
	int r;

	if (!cs)
		return err_errno(e, ENOMEM, "watch connections");
	cs->head.next = cs->head.prev = &cs->head;
	pthread_mutex_init(&cs->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&cs->end, &attr);
	pthread_condattr_destroy(&attr);
	r = pthread_create(&cs->thread, NULL, run, cs);
	if (r) {
		pthread_cond_destroy(&cs->end);
		pthread_mutex_destroy(&cs->lock);
		free(cs);
		return err_errno(e, r, "start a thread");
	}
	*out = cs;
	return 0;
}

void conns_free(struct conns *cs)
{
	if (!cs)
		return;
	pthread_mutex_lock(&cs->lock);
	cs->ending = true;
	pthread_cond_signal(&cs->end);
	pthread_mutex_unlock(&cs->lock);
	pthread_join(cs->thread, NULL);
	pthread_cond_destroy(&cs->end);
	pthread_mutex_destroy(&cs->lock);
	free(cs);
}

struct conn *conn_opened(struct conns *cs, int fd)
{
	struct conn *c = malloc(sizeof(*c));

	if (!c)
		return NULL;
	c->fd = fd;
	c->deadline = UINT64_MAX;
	pthread_mutex_lock(&cs->lock);
	c->next = &cs->head;
	c->prev = cs->head.prev;
	c->prev->next = c->next->prev = c;
	pthread_mutex_unlock(&cs->lock);
	return c;
}

void conn_closed(struct conns *cs, struct conn *c)
{
	if (!c)
		return;
	pthread_mutex_lock(&cs->lock);
	c->prev->next = c->next;
	c->next->prev = c->prev;
	pthread_mutex_unlock(&cs->lock);
	free(c);
}

void conn_deadline(struct conns *cs, struct conn *c, uint64_t mono_ns)
{
	if (!c)
		return;
	pthread_mutex_lock(&cs->lock);
	c->deadline = mono_ns;
	pthread_mutex_unlock(&cs->lock);
}
