/*
 * What a starting daemon makes of what it finds: rows in the store, VMMs at the broker, folders on
 * disk. The store decides; a live VMM is adopted only when its row says that it runs and it
 * answers on its control socket. Everything that no row accounts for is removed.
 */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/log.h"
#include "sandbox/disk.h"
#include "sandbox/manager.h"
#include "sandbox/state.h"
#include "sandbox/vmm_ctl.h"

#define PROBE_MS 5000

struct found {
	struct broker_vmm_row *vmms;
	bool *claimed; /* by a row */
	size_t n;
};

/* The VMM of a row, which thereby is no stranger. */
static const struct broker_vmm_row *claim(const struct found *f, const char *id)
{
	for (size_t i = 0; i < f->n; i++)
		if (strcmp(f->vmms[i].id, id) == 0) {
			f->claimed[i] = true;
			return &f->vmms[i];
		}
	return NULL;
}

/* Opens the guest's descriptors, when it lives. */
static int open_guest(struct sandbox_manager *m, struct sandbox *s, struct err *e)
{
	struct broker_vmm vmm;
	int r = broker_vmm_open(m->config.broker, s->row.id, &vmm, e);

	if (r == 0)
		s->guest = (struct guest){ vmm.pidfd, vmm.log };
	return r;
}

/* Whether the guest runs, as its VMM says. */
static int probe(struct sandbox_manager *m, const struct sandbox *s, struct err *e)
{
	_cleanup_json_ json_t *reply = NULL;
	int r = vmm_ctl_call(m->config.run_dir, s->row.id, json_pack("{s:s}", "verb", "stats"),
			     NULL, 0, &reply, PROBE_MS, e);

	if (r == 0 && strcmp(json_get_str(reply, "state", ""), "running") != 0)
		r = err_set(e, "vmm_failed", EIO, "its guest is %s",
			    json_get_str(reply, "state", "in no state"));
	return r;
}

static int adopt(struct sandbox_manager *m, struct sandbox *s, struct err *e)
{
	_cleanup_close_ int wait_fd = -1;
	int r = open_guest(m, s, e);

	if (r == 0)
		r = probe(m, s, e);
	if (r == 0)
		r = boot_wait_open(m, s, &wait_fd, e);
	if (r < 0)
		return r;
	pthread_mutex_lock(&m->lock);
	s->epoch++;
	s->live = true;
	pthread_mutex_unlock(&m->lock);
	meter_adopt(m, s);
	log_event(LOG_INFO, "adopted a running sandbox", "sandbox", s->row.id, NULL);
	return watch_add(m, s, steal_fd(&wait_fd), e);
}

/* A row that says "running" whose guest is gone, or does not answer. */
static void mark_ended(struct sandbox_manager *m, struct sandbox *s,
		       const struct broker_vmm_row *vmm)
{
	const char *reason = vmm ? "vmm_crashed" : "host_restarted";
	enum sandbox_state to = vmm ? SANDBOX_FAILED : SANDBOX_STOPPED;
	bool oom = false;
	struct err e;

	if (vmm)
		guest_end(m, s, &oom);
	if (oom)
		reason = "out_of_memory";
	if (s->row.state == SANDBOX_STOPPING) {
		reason = s->row.stop_reason;
		to = SANDBOX_STOPPED;
	}
	if (change_state(
		    m, s, to, reason,
		    (struct change){ to == SANDBOX_FAILED ? "sandbox.failed" : "sandbox.stopped",
				     "", json_pack("{s:s}", "reason", reason) },
		    true, &e) < 0)
		log_err(LOG_ERROR, &e, "take over a sandbox");
}

static void drop_half_made(struct sandbox_manager *m, struct sandbox *s,
			   const struct broker_vmm_row *vmm)
{
	char dir[PATH_MAX];
	struct err e;

	if (vmm) {
		if (vmm->alive && open_guest(m, s, &e) < 0)
			log_err(LOG_WARN, &e, "roll back a create");
		guest_end(m, s, NULL);
	}
	if (manager_path(m, s->row.id, NULL, dir, sizeof(dir), &e) < 0 ||
	    disk_remove_dir(dir, &e) < 0)
		log_err(LOG_ERROR, &e, "roll back a create");
	change_state(m, s, SANDBOX_DELETED, "create_interrupted",
		     (struct change){ "sandbox.create_failed", "",
				      json_pack("{s:s}", "code", "create_interrupted") },
		     true, &e);
	manager_remove(m, s);
}

static void take_over(struct sandbox_manager *m, struct sandbox *s, const struct found *f)
{
	const struct broker_vmm_row *vmm = claim(f, s->row.id);
	struct err e;

	if (s->row.state == SANDBOX_CREATING) {
		drop_half_made(m, s, vmm);
		return;
	}
	if (s->row.state == SANDBOX_RUNNING && vmm && vmm->alive) {
		if (adopt(m, s, &e) == 0)
			return;
		log_err(LOG_WARN, &e, "a live guest could not be adopted");
	}
	if (state_has_guest(s->row.state)) {
		if (vmm && vmm->alive && s->guest.pidfd < 0 && open_guest(m, s, &e) < 0)
			log_err(LOG_WARN, &e, "take over a sandbox");
		mark_ended(m, s, vmm);
	} else if (vmm) {
		/* A start that was under way when the daemon died. */
		if (vmm->alive && open_guest(m, s, &e) < 0)
			log_err(LOG_WARN, &e, "take over a sandbox");
		guest_end(m, s, NULL);
	}
}

static int take_over_rows(struct sandbox_manager *m, const struct found *f, struct err *e)
{
	const struct store_sandbox_filter all = { 0 };
	struct store_sandbox *rows;
	size_t n;
	int r = store_sandbox_list(m->config.store, &all, &rows, &n, e);

	if (r < 0)
		return r;
	for (size_t i = 0; i < n && r == 0; i++) {
		struct sandbox *s;

		if (strcmp(rows[i].host, m->config.host) != 0)
			continue;
		s = manager_add(m, &rows[i], e);
		if (!s) {
			r = -ENOMEM;
			break;
		}
		take_over(m, s, f);
		manager_unlock(m, s);
	}
	store_sandboxes_free(rows, n);
	return r;
}

static void drop_strangers(struct sandbox_manager *m, const struct found *f)
{
	for (size_t i = 0; i < f->n; i++) {
		struct sandbox stranger = { .guest = { -1, -1 } };
		struct err e;

		if (f->claimed[i])
			continue;
		memcpy(stranger.row.id, f->vmms[i].id, ID_LEN);
		log_event(LOG_WARN, "ending a VMM that no sandbox owns", "sandbox", stranger.row.id,
			  NULL);
		if (f->vmms[i].alive && open_guest(m, &stranger, &e) < 0)
			log_err(LOG_WARN, &e, "end a VMM");
		guest_end(m, &stranger, NULL);
	}
}

static int drop_stray_folders(struct sandbox_manager *m, struct err *e)
{
	_cleanup_closedir_ DIR *d = NULL;
	char path[PATH_MAX];
	struct dirent *de;

	snprintf(path, sizeof(path), "%s/sandboxes", m->config.state_dir);
	d = opendir(path);
	if (!d)
		return err_errno(e, errno, "open %s", path);
	while ((de = readdir(d))) {
		struct sandbox *known;
		struct err why;

		if (!id_valid("sbx", de->d_name))
			continue;
		known = manager_get(m, de->d_name, NULL);
		if (known) {
			manager_put(m, known);
			continue;
		}
		log_event(LOG_WARN, "removing a disk that no sandbox owns", "sandbox", de->d_name,
			  NULL);
		if (manager_path(m, de->d_name, NULL, path, sizeof(path), &why) < 0 ||
		    disk_remove_dir(path, &why) < 0)
			log_err(LOG_ERROR, &why, "remove a stray disk");
	}
	return 0;
}

int recover(struct sandbox_manager *m, struct err *e)
{
	struct found f = { 0 };
	int r = broker_vmm_list(m->config.broker, &f.vmms, &f.n, e);

	if (r == 0) {
		f.claimed = calloc(f.n + 1, sizeof(*f.claimed));
		r = f.claimed ? take_over_rows(m, &f, e) : err_errno(e, ENOMEM, "recover");
	}
	/* Only what a complete list of rows does not know is a stranger. */
	if (r == 0)
		drop_strangers(m, &f);
	if (r == 0)
		r = drop_stray_folders(m, e);
	free(f.vmms);
	free(f.claimed);
	return r;
}
