/* The daemon's log is home/cloched.log; its record home/cloched.json. */
#include "machine/native.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/pidfd.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "image/args.h"
#include "image/tree.h"
#include "machine/health.h"
#include "machine/paths.h"
#include "machine/service.h"

#define NAME "cloched"
#define UP_TIMEOUT_S 30
#define TERM_MS 15000
#define DRAIN_MS 60000

static int launch(const struct cloche_paths *p, uint16_t port, struct pidrec *r, struct err *e)
{
	_cleanup_args_ struct args a = { 0 };
	char program[PATH_MAX], libexec[PATH_MAX], vmm[PATH_MAX], log[PATH_MAX];
	int ret = paths_find("cloched", program, e);

	if (ret == 0)
		ret = paths_find("agent.cpio", libexec, e);
	if (ret == 0)
		ret = paths_find("cloche-vmm", vmm, e);
	if (ret < 0)
		return ret;
	*strrchr(libexec, '/') = '\0';
	args_add(&a, program);
	args_pair(&a, "--state-dir", p->home);
	args_pair(&a, "--import-dir", p->images);
	args_pair(&a, "--libexec-dir", libexec);
	args_add(&a, "--listen");
	args_printf(&a, "127.0.0.1:%u", (unsigned)port);
	/* In a build folder the programs do not lie together. */
	if (strncmp(vmm, libexec, strlen(libexec)) != 0)
		args_pair(&a, "--vmm", vmm);
	if (a.failed)
		return err_errno(e, ENOMEM, "start cloched");
	path_printf(log, "%s/cloched.log", p->home);
	ret = service_spawn(a.argv, "/", log, r, e);
	return ret < 0 ? ret : service_save(p->home, NAME, r, NULL, e);
}

static int wait_up(const struct cloche_paths *p, uint16_t port, const struct pidrec *r,
		   struct err *e)
{
	uint64_t end = clock_mono_ns() + UP_TIMEOUT_S * NSEC_PER_SEC;
	_cleanup_close_ int pidfd = pidrec_open(r);
	char log[PATH_MAX], tail[300];

	while (pidfd >= 0 && clock_mono_ns() < end) {
		if (health_ok(port, 1000))
			return 0;
		if (pidrec_wait(pidfd, 50) == 0)
			break;
	}
	if (pidfd >= 0)
		pidrec_end(pidfd, TERM_MS);
	service_forget(p->home, NAME);
	path_printf(log, "%s/cloched.log", p->home);
	service_tail(log, tail, sizeof(tail));
	err_set(e, "daemon_failed", EIO, "cloched did not come up; it said last: %s", tail);
	err_fix(e, "Its whole log is %.200s.", log);
	return -EIO;
}

int native_start(const struct cloche_paths *p, uint16_t port, struct err *e)
{
	struct pidrec r;
	int ret = tree_mkdirs(p->images, e);

	if (ret < 0)
		return ret;
	if (health_ok(port, 3000))
		return 0;
	if (health_port_taken(port)) {
		err_set(e, "port_taken", EADDRINUSE, "port %u of the loopback is in use",
			(unsigned)port);
		err_fix(e, "Stop what listens there, or choose another with --port.");
		return -EADDRINUSE;
	}
	ret = launch(p, port, &r, e);
	return ret < 0 ? ret : wait_up(p, port, &r, e);
}

bool native_running(const struct cloche_paths *p)
{
	struct pidrec r;
	_cleanup_close_ int pidfd = service_find(p->home, NAME, &r, NULL);

	return pidfd >= 0;
}

int native_stop(const struct cloche_paths *p, struct err *e)
{
	struct pidrec r;
	_cleanup_close_ int pidfd = service_find(p->home, NAME, &r, NULL);
	int ret = 0;

	if (pidfd >= 0) {
		/* Sandboxes first: without their daemon nobody would end their leases. */
		if (pidfd_send_signal(pidfd, SIGQUIT, NULL, 0) == 0)
			pidrec_wait(pidfd, DRAIN_MS);
		ret = pidrec_end(pidfd, TERM_MS);
		if (ret < 0)
			return err_errno(e, -ret, "end cloched (pid %d)", (int)r.pid);
		ret = 1;
	}
	service_forget(p->home, NAME);
	return ret;
}

int native_key(const struct cloche_paths *p, char *key, size_t n, struct err *e)
{
	_cleanup_buf_ struct buf text = { 0 };
	char path[PATH_MAX];
	int ret;

	path_printf(path, "%s/admin.key", p->home);
	ret = fd_read_file(path, &text, 4096, e);
	if (ret < 0)
		return ret;
	if (text.len)
		text.data[strcspn(text.data, "\r\n ")] = '\0';
	if (!text.len || strlen(text.data) >= n)
		return err_set(e, "no_key", ENOENT, "%s holds no key", path);
	snprintf(key, n, "%s", text.data);
	return 0;
}
