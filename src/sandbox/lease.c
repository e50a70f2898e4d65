/*
 * Leases: looked at on the watcher's thread, ended on a worker's. They are wall-clock times,
 * because people read them and they outlive the daemon.
 */
#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "sandbox/manager.h"

#define WARN_MS 60000	    /* before the end */
#define WARN_LONGER_S 120   /* leases shorter than this need no warning */
#define RETRY_MS 5000	    /* when no worker could be had */
#define STOP_GRACE_MS 10000 /* for the guest's programs to end and write */

int64_t lease_end_from_now(int64_t timeout_s)
{
	return timeout_s ? clock_wall_ms() + timeout_s * 1000 : 0;
}

static bool has_ended(const struct sandbox *s, int64_t now)
{
	return s->row.state == SANDBOX_RUNNING && s->row.lease_ends_ms &&
	       s->row.lease_ends_ms <= now;
}

static void end_lease(struct sandbox_manager *m, struct sandbox *s, void *arg)
{
	struct err e;
	int r = 0;

	(void)arg;
	pthread_mutex_lock(&s->op);
	if (has_ended(s, clock_wall_ms())) /* else renewed or stopped meanwhile */
		r = s->row.on_lease_end == LEASE_END_DELETE
			    ? lifecycle_delete(m, s, "", "lease_ended", &e)
			    : lifecycle_stop(m, s, "", "lease_ended", STOP_GRACE_MS, &e);
	if (r < 0)
		log_err(LOG_ERROR, &e, "end a lease");
	pthread_mutex_lock(&m->lock);
	s->lease_handed = false;
	pthread_mutex_unlock(&m->lock);
	pthread_mutex_unlock(&s->op);
}

static void warn_of_end(struct sandbox_manager *m, const char *id, int64_t ends_ms)
{
	struct store_event ev = { .type = "sandbox.lease_warning" };
	char when[CLOCK_RFC3339_LEN];
	json_t *data;
	struct err e;

	clock_rfc3339(ends_ms, when);
	log_event(LOG_WARN, "a lease is about to end", "sandbox", id, "leaseEndsAt", when, NULL);
	memcpy(ev.sandbox, id, ID_LEN);
	data = json_pack("{s:s}", "leaseEndsAt", when);
	ev.data_json = data ? json_dumps(data, JSON_COMPACT) : NULL;
	json_decref(data);
	if (store_event_add(m->config.store, &ev, &e) < 0)
		log_err(LOG_WARN, &e, "lease warning");
	store_event_free(&ev);
}

enum due { DUE_NONE, DUE_WARNING, DUE_END };

/* What s needs now; else *next is lowered to when it will need something. */
static enum due due_of(const struct sandbox *s, int64_t now, int64_t *next)
{
	int64_t at = s->row.lease_ends_ms;

	if (s->row.state != SANDBOX_RUNNING || !at || s->lease_handed)
		return DUE_NONE;
	if (at <= now)
		return DUE_END;
	if (!s->lease_warned && s->row.timeout_s > WARN_LONGER_S) {
		if (at - WARN_MS <= now)
			return DUE_WARNING;
		at -= WARN_MS;
	}
	if (!*next || at < *next)
		*next = at;
	return DUE_NONE;
}

/* Takes the next sandbox that needs something, with a reference; notes that it was taken. */
static struct sandbox *take_due(struct sandbox_manager *m, int64_t now, int64_t *next,
				enum due *due)
{
	struct sandbox *s;

	*next = 0;
	pthread_mutex_lock(&m->lock);
	for (s = m->first; s; s = s->next) {
		*due = due_of(s, now, next);
		if (*due == DUE_NONE)
			continue;
		s->refs++;
		s->lease_warned = true;
		s->lease_handed = *due == DUE_END;
		break;
	}
	pthread_mutex_unlock(&m->lock);
	return s;
}

int64_t lease_check(struct sandbox_manager *m)
{
	int64_t now = clock_wall_ms(), next = 0;
	bool retry = false;
	struct sandbox *s;
	enum due due;
	struct err e;

	while (!retry && (s = take_due(m, now, &next, &due))) {
		if (due == DUE_WARNING) {
			warn_of_end(m, s->row.id, s->row.lease_ends_ms);
		} else if (manager_work(m, s, end_lease, NULL, &e) < 0) {
			log_err(LOG_ERROR, &e, "end a lease");
			pthread_mutex_lock(&m->lock);
			s->lease_handed = false;
			pthread_mutex_unlock(&m->lock);
			retry = true;
		}
		manager_put(m, s);
	}
	return retry ? now + RETRY_MS : next;
}
