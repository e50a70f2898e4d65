/*
 * The list of this host's sandboxes, references to them, and worker threads for what must not
 * hold up the watcher. A sandbox leaves the list when it is deleted and its memory when the last
 * reference goes.
 */
#include "sandbox/manager.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/log.h"
#include "sandbox/images.h"
#include "sandbox/state.h"
#include "sandbox/vmm_ctl.h"

#define BOOT_TIMEOUT_MS 60000
#define SANDBOXES_MAX 1000
#define SERIAL_MAX (1u << 20)
#define STACK_BYTES (512u << 10)

static void sandbox_free(struct sandbox *s)
{
	close_fd(&s->guest.pidfd);
	close_fd(&s->guest.log);
	store_sandbox_free(&s->row);
	pthread_mutex_destroy(&s->op);
	free(s);
}

static int not_found(const char *id, struct err *e)
{
	int r = err_set(e, "sandbox_not_found", ENOENT, "no sandbox \"%.64s\" on this host", id);

	err_fix(e, "List the sandboxes with GET /v1/sandboxes.");
	return r;
}

struct sandbox *manager_get(struct sandbox_manager *m, const char *id, struct err *e)
{
	struct sandbox *s;

	pthread_mutex_lock(&m->lock);
	for (s = m->first; s; s = s->next)
		if (strcmp(s->row.id, id) == 0)
			break;
	if (s)
		s->refs++;
	pthread_mutex_unlock(&m->lock);
	if (!s)
		not_found(id, e);
	return s;
}

void manager_put(struct sandbox_manager *m, struct sandbox *s)
{
	bool last;

	pthread_mutex_lock(&m->lock);
	last = --s->refs == 0;
	pthread_mutex_unlock(&m->lock);
	if (last)
		sandbox_free(s);
}

struct sandbox *manager_lock(struct sandbox_manager *m, const char *id, struct err *e)
{
	struct sandbox *s = manager_get(m, id, e);

	if (!s)
		return NULL;
	pthread_mutex_lock(&s->op);
	if (s->row.state != SANDBOX_DELETED)
		return s;
	manager_unlock(m, s);
	not_found(id, e);
	return NULL;
}

void manager_unlock(struct sandbox_manager *m, struct sandbox *s)
{
	pthread_mutex_unlock(&s->op);
	manager_put(m, s);
}

struct sandbox *manager_add(struct sandbox_manager *m, struct store_sandbox *row, struct err *e)
{
	struct sandbox *s = calloc(1, sizeof(*s));

	if (!s) {
		err_errno(e, ENOMEM, "sandbox");
		return NULL;
	}
	pthread_mutex_init(&s->op, NULL);
	s->refs = 2;
	s->guest.pidfd = s->guest.log = -1;
	s->row = *row;
	memset(row, 0, sizeof(*row));
	pthread_mutex_lock(&s->op);
	pthread_mutex_lock(&m->lock);
	s->next = m->first;
	m->first = s;
	pthread_mutex_unlock(&m->lock);
	return s;
}

void manager_remove(struct sandbox_manager *m, struct sandbox *s)
{
	pthread_mutex_lock(&m->lock);
	for (struct sandbox **p = &m->first; *p; p = &(*p)->next)
		if (*p == s) {
			*p = s->next;
			s->refs--; /* the caller holds another */
			break;
		}
	pthread_mutex_unlock(&m->lock);
}

unsigned manager_live(struct sandbox_manager *m)
{
	unsigned n = 0;

	pthread_mutex_lock(&m->lock);
	for (const struct sandbox *s = m->first; s; s = s->next)
		n += state_has_guest(s->row.state) || s->row.state == SANDBOX_CREATING;
	pthread_mutex_unlock(&m->lock);
	return n;
}

int manager_path(const struct sandbox_manager *m, const char *id, const char *file, char *out,
		 size_t n, struct err *e)
{
	int len = snprintf(out, n, "%s/sandboxes/%s%s%s", m->config.state_dir, id, file ? "/" : "",
			   file ? file : "");

	return (size_t)len >= n ? err_errno(e, ENAMETOOLONG, "state folder") : 0;
}

struct sandbox **manager_all(struct sandbox_manager *m, size_t *n)
{
	struct sandbox **all;

	*n = 0;
	pthread_mutex_lock(&m->lock);
	for (const struct sandbox *s = m->first; s; s = s->next)
		(*n)++;
	all = calloc(*n ? *n : 1, sizeof(struct sandbox *));
	*n = 0;
	for (struct sandbox *s = m->first; s && all; s = s->next) {
		s->refs++;
		all[(*n)++] = s;
	}
	pthread_mutex_unlock(&m->lock);
	return all;
}

/* ---- workers ---- */

struct work {
	struct sandbox_manager *m;
	struct sandbox *s; /* a reference, or NULL */
	manager_work_fn fn;
	void *arg;
};

static void *worker(void *p)
{
	struct work w = *(struct work *)p;

	free(p);
	w.fn(w.m, w.s, w.arg);
	if (w.s)
		manager_put(w.m, w.s);
	pthread_mutex_lock(&w.m->lock);
	if (--w.m->workers == 0)
		pthread_cond_broadcast(&w.m->idle);
	pthread_mutex_unlock(&w.m->lock);
	return NULL;
}

int manager_work(struct sandbox_manager *m, struct sandbox *s, manager_work_fn fn, void *arg,
		 struct err *e)
{
	struct work *w = calloc(1, sizeof(*w));
	pthread_attr_t attr;
	pthread_t t;
	int r;

	if (!w)
		return err_errno(e, ENOMEM, "start a worker");
	*w = (struct work){ m, s, fn, arg };
	pthread_mutex_lock(&m->lock);
	m->workers++;
	if (s)
		s->refs++;
	pthread_mutex_unlock(&m->lock);
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attr, STACK_BYTES);
	r = pthread_create(&t, &attr, worker, w);
	pthread_attr_destroy(&attr);
	if (r == 0)
		return 0;
	free(w);
	pthread_mutex_lock(&m->lock);
	m->workers--;
	if (s)
		s->refs--; /* the caller holds another */
	pthread_mutex_unlock(&m->lock);
	return err_errno(e, r, "start a worker");
}

/* ---- the manager ---- */

static void set_defaults(struct sandbox_config *c)
{
	if (!c->default_vcpus)
		c->default_vcpus = 2;
	if (!c->default_memory_mib)
		c->default_memory_mib = 4096;
	if (!c->default_disk_mib)
		c->default_disk_mib = 10240;
	if (!c->boot_timeout_ms)
		c->boot_timeout_ms = BOOT_TIMEOUT_MS;
	if (!c->sandboxes_max)
		c->sandboxes_max = SANDBOXES_MAX;
}

static void rescan(struct sandbox_manager *m, struct sandbox *s, void *arg)
{
	(void)s;
	(void)arg;
	images_rescan(m->images);
}

int sandbox_manager_new(const struct sandbox_config *c, struct sandbox_manager **out, struct err *e)
{
	struct sandbox_manager *m = calloc(1, sizeof(*m));
	int r;

	if (!m)
		return err_errno(e, ENOMEM, "sandbox manager");
	m->config = *c;
	set_defaults(&m->config);
	pthread_mutex_init(&m->lock, NULL);
	pthread_cond_init(&m->idle, NULL);
	r = images_new(c->state_dir, c->import_dirs, c->import_dirs_n, &m->images, e);
	if (r == 0)
		r = watch_start(m, e);
	if (r == 0)
		r = recover(m, e);
	if (r == 0)
		r = manager_work(m, NULL, rescan, NULL, e);
	if (r < 0) {
		sandbox_manager_free(m);
		return r;
	}
	watch_leases(m);
	*out = m;
	return 0;
}

void sandbox_manager_free(struct sandbox_manager *m)
{
	if (!m)
		return;
	pthread_mutex_lock(&m->lock);
	m->ending = true;
	pthread_mutex_unlock(&m->lock);
	watch_stop(m);
	pthread_mutex_lock(&m->lock);
	while (m->workers)
		pthread_cond_wait(&m->idle, &m->lock);
	pthread_mutex_unlock(&m->lock);
	while (m->first) {
		struct sandbox *s = m->first;

		m->first = s->next;
		sandbox_free(s);
	}
	images_free(m->images);
	pthread_cond_destroy(&m->idle);
	pthread_mutex_destroy(&m->lock);
	free(m);
}

/* ---- what needs no more than a look ---- */

int sandbox_connect(struct sandbox_manager *m, const char *id, int *fd, struct err *e)
{
	struct sandbox *s = manager_get(m, id, e);
	enum sandbox_state state;
	bool live;
	int r;

	if (!s)
		return -ENOENT;
	pthread_mutex_lock(&m->lock);
	live = s->live && s->row.state == SANDBOX_RUNNING;
	state = s->row.state;
	pthread_mutex_unlock(&m->lock);
	manager_put(m, s);
	if (!live) {
		r = err_set(e, "sandbox_not_running", EBUSY, "%s is %s", id,
			    sandbox_state_name(state));
		err_fix(e, "Start it with POST /v1/sandboxes/%s/start.", id);
		return r;
	}
	r = boot_connect(m, id, 10000, fd, e);
	if (r < 0 && e)
		e->code = "guest_unreachable";
	return r;
}

/* What is kept of a guest that ended. */
static char *kept_serial(struct sandbox_manager *m, const char *id)
{
	struct buf b = { 0 };
	char path[PATH_MAX];

	if (manager_path(m, id, "serial.log", path, sizeof(path), NULL) < 0 ||
	    fd_read_file(path, &b, SERIAL_MAX, NULL) < 0) {
		buf_free(&b);
		return NULL;
	}
	return buf_steal(&b);
}

int sandbox_serial(struct sandbox_manager *m, const char *id, char **text, struct err *e)
{
	struct sandbox *s = manager_get(m, id, e);

	if (!s)
		return -ENOENT;
	manager_put(m, s);
	*text = guest_serial(m, id);
	if (!*text)
		*text = kept_serial(m, id);
	return *text ? 0
		     : err_set(e, "sandbox_not_running", EBUSY, "%s has no console to read", id);
}

int sandbox_images(struct sandbox_manager *m, json_t **out, struct err *e)
{
	return images_list(m->images, out, e);
}
