/*
 * Every change of a row goes through here: first the store, with the event in the same
 * transaction, then memory. The JSON texts of a row never change, so rows are copied flat and the
 * sandbox keeps owning them.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/log.h"
#include "sandbox/manager.h"
#include "sandbox/state.h"

static void fill_event(const struct sandbox *s, const struct change *c, struct store_event *ev)
{
	snprintf(ev->type, sizeof(ev->type), "%s", c->event);
	snprintf(ev->actor, sizeof(ev->actor), "%s", c->actor ? c->actor : "");
	memcpy(ev->sandbox, s->row.id, ID_LEN);
	ev->data_json = c->data ? json_dumps(c->data, JSON_COMPACT) : NULL;
}

int change_row(struct sandbox_manager *m, struct sandbox *s, const struct store_sandbox *next,
	       struct change c, bool must, struct err *e)
{
	_cleanup_json_ json_t *data = c.data;
	struct store_event ev = { 0 };
	struct err why;
	int r;

	if (c.event)
		fill_event(s, &c, &ev);
	r = store_sandbox_update(m->config.store, next, c.event ? &ev : NULL, &why);
	store_event_free(&ev);
	if (r < 0 && !must) {
		if (e)
			*e = why;
		return r;
	}
	if (r < 0)
		log_err(LOG_ERROR, &why, "write a sandbox's row; will try again");
	pthread_mutex_lock(&m->lock);
	s->row = *next;
	s->unsaved = r < 0;
	pthread_mutex_unlock(&m->lock);
	return 0;
}

int change_state(struct sandbox_manager *m, struct sandbox *s, enum sandbox_state to,
		 const char *reason, struct change c, bool must, struct err *e)
{
	struct store_sandbox next = s->row;
	enum sandbox_state from = s->row.state;
	int r;

	if (!state_may_follow(from, to)) {
		json_decref(c.data);
		return err_set(e, "sandbox_wrong_state", EBUSY, "%s is %s and cannot become %s",
			       s->row.id, sandbox_state_name(from), sandbox_state_name(to));
	}
	next.state = to;
	snprintf(next.stop_reason, sizeof(next.stop_reason), "%s", reason ? reason : "");
	if (!state_has_guest(to)) {
		next.vmm_pid = 0;
		next.vmm_start = 0;
		next.lease_ends_ms = 0;
	}
	r = change_row(m, s, &next, c, must, e);
	if (r == 0)
		log_event(LOG_INFO, "sandbox changed", "sandbox", s->row.id, "from",
			  sandbox_state_name(from), "to", sandbox_state_name(to), "reason",
			  reason ? reason : "", NULL);
	return r;
}
