/*
 * Stopping, deleting, renewing, and the ends that guests choose themselves. The functions named
 * lifecycle_ run with the sandbox's op lock held; the public ones take it.
 */
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/log.h"
#include "sandbox/agent_conn.h"
#include "sandbox/disk.h"
#include "sandbox/manager.h"
#include "sandbox/state.h"

#define STOP_MS 10000
#define CONNECT_MS 2000
#define POWEROFF_MS 5000 /* from "all programs have ended" to power off: sync and unmount */

/* ---- the end of a guest ---- */

/* Puts the console's text, when there is any, beside the disk. */
static void keep_serial(struct sandbox_manager *m, const struct sandbox *s, const char *text)
{
	char path[PATH_MAX];
	struct err e;

	if (!text || !text[0])
		return;
	if (manager_path(m, s->row.id, "serial.log", path, sizeof(path), &e) < 0 ||
	    fd_write_file_atomic(path, text, strlen(text), 0600, &e) < 0)
		log_err(LOG_WARN, &e, "keep a guest's console");
}

void lifecycle_ended(struct sandbox_manager *m, struct sandbox *s, const char *vmm_reason)
{
	_cleanup_free_ char *serial = guest_serial(m, s->row.id);
	enum sandbox_state to;
	const char *reason;
	struct err e;
	bool oom;

	meter_tick(m, s);
	keep_serial(m, s, serial);
	guest_end(m, s, &oom);
	reason = state_end_reason(vmm_reason, serial, oom);
	to = state_after_end(reason);
	if (change_state(
		    m, s, to, reason,
		    (struct change){ to == SANDBOX_FAILED ? "sandbox.failed" : "sandbox.stopped",
				     "", json_pack("{s:s}", "reason", reason) },
		    true, &e) < 0)
		log_err(LOG_ERROR, &e, "a guest ended");
	meter_tick(m, s);
}

/* ---- stop ---- */

/* Asks the agent to end the guest in order; whatever goes wrong, the end by force follows. */
static void ask_to_stop(struct sandbox_manager *m, const struct sandbox *s, unsigned timeout_ms)
{
	json_t *request = json_pack("{s:I}", "timeoutMs", (json_int_t)timeout_ms);
	_cleanup_json_ json_t *req = request;
	_cleanup_close_ int wait_fd = -1;
	struct pollfd p = { .events = POLLIN };
	struct err e;
	int fd, r = boot_wait_open(m, s, &wait_fd, &e);

	if (r == 0)
		r = boot_connect(m, s->row.id, CONNECT_MS, &fd, &e);
	if (r == 0)
		r = agent_call(fd, "stop", req, NULL, (int)timeout_ms + CONNECT_MS, &e);
	if (r < 0) {
		log_err(LOG_WARN, &e, "stop a guest in order");
		return;
	}
	p.fd = wait_fd;
	while (poll(&p, 1, (int)timeout_ms + POWEROFF_MS) < 0 && errno == EINTR)
		;
	if (!p.revents)
		log_warn("%s did not power off in time", s->row.id);
}

int lifecycle_stop(struct sandbox_manager *m, struct sandbox *s, const char *actor,
		   const char *reason, unsigned timeout_ms, struct err *e)
{
	_cleanup_free_ char *serial = NULL;
	bool must = !actor[0]; /* what the daemon decides happens even when the store is down */
	int r;

	if (s->row.state == SANDBOX_STOPPED || s->row.state == SANDBOX_FAILED)
		return 0;
	r = change_state(m, s, SANDBOX_STOPPING, reason, (struct change){ 0 }, must, e);
	if (r < 0)
		return r;
	ask_to_stop(m, s, timeout_ms ? timeout_ms : STOP_MS);
	meter_tick(m, s);
	serial = guest_serial(m, s->row.id);
	keep_serial(m, s, serial);
	guest_end(m, s, NULL);
	r = change_state(
		m, s, SANDBOX_STOPPED, reason,
		(struct change){ "sandbox.stopped", actor, json_pack("{s:s}", "reason", reason) },
		true, e);
	meter_tick(m, s);
	return r;
}

int sandbox_stop(struct sandbox_manager *m, const char *id, const char *actor, const char *reason,
		 unsigned timeout_ms, struct err *e)
{
	struct sandbox *s = manager_lock(m, id, e);
	int r;

	if (!s)
		return -ENOENT;
	r = lifecycle_stop(m, s, actor, reason, timeout_ms, e);
	manager_unlock(m, s);
	return r;
}

static void stop_one(struct sandbox_manager *m, struct sandbox *s, void *arg)
{
	struct err e;

	pthread_mutex_lock(&s->op);
	if (s->row.state == SANDBOX_RUNNING && lifecycle_stop(m, s, "", arg, STOP_MS, &e) < 0)
		log_err(LOG_ERROR, &e, "stop a sandbox");
	pthread_mutex_unlock(&s->op);
}

void sandbox_stop_all(struct sandbox_manager *m, const char *reason)
{
	_cleanup_free_ struct sandbox **all = NULL;
	struct err e;
	size_t n;

	all = manager_all(m, &n);
	for (size_t i = 0; i < n; i++) {
		void *arg = (void *)(uintptr_t)reason;

		if (manager_work(m, all[i], stop_one, arg, &e) < 0)
			stop_one(m, all[i], arg);
		manager_put(m, all[i]);
	}
	pthread_mutex_lock(&m->lock);
	while (m->workers)
		pthread_cond_wait(&m->idle, &m->lock);
	pthread_mutex_unlock(&m->lock);
}

/* ---- delete ---- */

/*
 * The row first: what is left when we die behind it belongs to no row, and the next start of the
 * daemon removes such things.
 */
int lifecycle_delete(struct sandbox_manager *m, struct sandbox *s, const char *actor,
		     const char *reason, struct err *e)
{
	char dir[PATH_MAX];
	struct err why;
	int r;

	meter_tick(m, s);
	r = change_state(
		m, s, SANDBOX_DELETED, reason,
		(struct change){ "sandbox.deleted", actor, json_pack("{s:s}", "reason", reason) },
		false, e);
	if (r < 0)
		return r;
	if (s->guest.pidfd >= 0)
		guest_end(m, s, NULL);
	meter_tick(m, s);
	if (manager_path(m, s->row.id, NULL, dir, sizeof(dir), &why) < 0 ||
	    disk_remove_dir(dir, &why) < 0)
		log_err(LOG_ERROR, &why, "remove a deleted sandbox's disk");
	manager_remove(m, s);
	return 0;
}

/* Makes an operation that holds s give up: its guest dies under it. */
static void interrupt(struct sandbox_manager *m, struct sandbox *s)
{
	struct err e;

	pthread_mutex_lock(&m->lock);
	s->deleting = true;
	pthread_mutex_unlock(&m->lock);
	if (pthread_mutex_trylock(&s->op) == 0)
		return;
	if (broker_vmm_kill(m->config.broker, s->row.id, &e) < 0 &&
	    strcmp(e.code, "vmm_not_found") != 0)
		log_err(LOG_WARN, &e, "interrupt an operation");
	pthread_mutex_lock(&s->op);
}

int sandbox_delete(struct sandbox_manager *m, const char *id, const char *actor, struct err *e)
{
	struct sandbox *s = manager_get(m, id, e);
	int r = 0;

	if (!s)
		return -ENOENT;
	interrupt(m, s);
	/* A create that gave up has deleted it already. */
	if (s->row.state != SANDBOX_DELETED)
		r = lifecycle_delete(m, s, actor, "deleted", e);
	pthread_mutex_lock(&m->lock);
	s->deleting = false;
	pthread_mutex_unlock(&m->lock);
	manager_unlock(m, s);
	return r;
}

/* ---- lease ---- */

int sandbox_renew(struct sandbox_manager *m, const char *id, const char *actor, int64_t timeout_s,
		  struct err *e)
{
	struct sandbox *s = manager_lock(m, id, e);
	struct store_sandbox next;
	int r;

	if (!s)
		return -ENOENT;
	next = s->row;
	next.timeout_s = timeout_s;
	next.lease_ends_ms = lease_end_from_now(timeout_s);
	if (s->row.state != SANDBOX_RUNNING)
		r = err_set(e, "sandbox_wrong_state", EBUSY,
			    "%s is %s; only a running one has a lease", id,
			    sandbox_state_name(s->row.state));
	else
		r = change_row(m, s, &next, (struct change){ "sandbox.renewed", actor, NULL },
			       false, e);
	if (r == 0) {
		pthread_mutex_lock(&m->lock);
		s->lease_warned = false;
		pthread_mutex_unlock(&m->lock);
		watch_leases(m);
	}
	manager_unlock(m, s);
	return r;
}
