/* The end of a guest's process and of what belongs to it. */
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/log.h"
#include "proto/broker.h"
#include "sandbox/manager.h"
#include "sandbox/vmm_ctl.h"

#define KILLED_MS 10000 /* a killed VMM frees its guest's memory before it is gone */
#define REAP_TRIES 100
#define REAP_PAUSE_MS 20
#define SERIAL_MS 2000

bool guest_wait_end(const struct guest *g, int timeout_ms)
{
	struct pollfd p = { .fd = g->pidfd, .events = POLLIN };
	uint64_t end = clock_mono_ns() + (uint64_t)timeout_ms * NSEC_PER_MSEC;

	if (g->pidfd < 0)
		return true;
	for (;;) {
		uint64_t now = clock_mono_ns();
		int n = poll(&p, 1, now >= end ? 0 : (int)((end - now) / NSEC_PER_MSEC) + 1);

		if (n > 0)
			return true;
		if (n == 0 || errno != EINTR)
			return false;
	}
}

char *guest_serial(struct sandbox_manager *m, const char *id)
{
	_cleanup_json_ json_t *reply = NULL;
	const char *text;

	if (vmm_ctl_call(m->config.run_dir, id, json_pack("{s:s}", "verb", "serial"), NULL, 0,
			 &reply, SERIAL_MS, NULL) < 0)
		return NULL;
	text = json_get_str(reply, "text", NULL);
	return text ? strdup(text) : NULL;
}

char *guest_log(const struct sandbox *s)
{
	char *text = malloc(BROKER_LOG_BYTES + 1);
	ssize_t n;

	if (s->guest.log < 0 || !text) {
		free(text);
		return NULL;
	}
	n = pread(s->guest.log, text, BROKER_LOG_BYTES, 0);
	text[n > 0 ? n : 0] = '\0';
	return text;
}

/* What the VMM wrote to its stderr, if anything, goes beside the disk. */
static void keep_log(struct sandbox_manager *m, const struct sandbox *s)
{
	_cleanup_free_ char *text = guest_log(s);
	char path[PATH_MAX];
	struct err e;
	int r;

	if (!text || !text[0])
		return;
	r = manager_path(m, s->row.id, "vmm.log", path, sizeof(path), &e);
	if (r == 0)
		r = fd_write_file_atomic(path, text, strlen(text), 0600, &e);
	if (r < 0 && e.errnum != ENOENT)
		log_err(LOG_WARN, &e, "keep the log of a VMM");
}

static int reap(struct sandbox_manager *m, const char *id, struct broker_exit *x, struct err *e)
{
	int r = -EAGAIN;

	for (int i = 0; i < REAP_TRIES; i++) {
		r = broker_vmm_reap(m->config.broker, id, x, e);
		if (r == 0 || strcmp(e->code, "vmm_alive") != 0)
			return r;
		poll(NULL, 0, REAP_PAUSE_MS);
	}
	return r;
}

void guest_end(struct sandbox_manager *m, struct sandbox *s, bool *oom)
{
	struct broker_exit x = { 0 };
	struct err e;
	int r;

	pthread_mutex_lock(&m->lock);
	s->live = false;
	pthread_mutex_unlock(&m->lock);
	r = broker_vmm_kill(m->config.broker, s->row.id, &e);
	if (r == 0 && !guest_wait_end(&s->guest, KILLED_MS))
		r = err_set(&e, "vmm_failed", ETIMEDOUT, "the VMM of %s does not die", s->row.id);
	if (r == 0)
		r = reap(m, s->row.id, &x, &e);
	if (r < 0 && strcmp(e.code, "vmm_not_found") != 0)
		log_err(LOG_ERROR, &e, "clean up after a guest");
	keep_log(m, s);
	close_fd(&s->guest.pidfd);
	close_fd(&s->guest.log);
	if (oom)
		*oom = x.oom_killed;
}
