/*
 * Start: system image if needed, payload disk, data disk, QEMU, then wait for two signs in turn,
 * the control line and the API's port. (The port alone would not do: QEMU accepts connections
 * before the guest has a network, and then takes seconds to give one up.) A lock makes starts and
 * stops take turns.
 */
#include "machine/machine.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "image/tree.h"
#include "machine/control.h"
#include "machine/health.h"
#include "machine/payload.h"
#include "machine/probe.h"
#include "machine/qemu.h"
#include "machine/service.h"
#include "machine/sysimage.h"

#define NAME "qemu"
#define UP_TIMEOUT_S 300 /* software emulation on a host that is busy takes minutes */
#define POWEROFF_ANSWER_MS 3000
#define TERM_MS 5000
#define TAIL 300 /* bytes of a log that an error quotes */

static int lock(const char *state_dir, struct err *e)
{
	char path[PATH_MAX];

	path_printf(path, "%s/lock", state_dir);
	return tree_lock(path, "the machine", e);
}

unsigned machine_default_memory_mib(uint64_t host_mib)
{
	uint64_t half = host_mib / 2;

	return half < 1024 ? 1024 : half < MACHINE_MEMORY_MIB ? (unsigned)half : MACHINE_MEMORY_MIB;
}

static uint64_t host_memory_mib(void)
{
	return (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE) >> 20;
}

/* The data disk: sparse, made or grown, never shrunk. */
static int ensure_data_disk(const char *state_dir, unsigned gib, struct err *e)
{
	_cleanup_close_ int fd = -1;
	char path[PATH_MAX];
	struct stat st;
	off_t want = (off_t)gib << 30;

	path_printf(path, "%s/data.raw", state_dir);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0 || fstat(fd, &st) < 0)
		return err_errno(e, errno, "open %s", path);
	if (st.st_size < want && ftruncate(fd, want) < 0)
		return err_errno(e, errno, "grow %s", path);
	return 0;
}

/* Hardware KVM serves only if the machine can offer KVM to its own guests. */
static bool may_use_kvm(const struct machine_spec *s)
{
	struct probe p;

	if (s->software)
		return false;
	probe_kvm(&p);
	return (p.kind == PROBE_NATIVE || p.kind == PROBE_NESTED) && p.guests_may_nest;
}

static int prepare(const struct machine_spec *s, struct err *e)
{
	struct sysimage_spec image = { .state_dir = s->state_dir,
				       .recipes_dir = s->recipes_dir,
				       .mirror = s->mirror,
				       .security_mirror = s->security_mirror,
				       .on_step = s->on_step,
				       .ctx = s->ctx };
	static const char *const tags[] = { "work", "system", "payload" };
	char path[PATH_MAX];
	int ret;

	for (size_t i = 0; i < ARRAY_SIZE(tags); i++)
		tree_sweep(s->state_dir, tags[i]);
	ret = sysimage_ensure(&image, NULL, e);

	path_printf(path, "%s/payload.raw", s->state_dir);
	if (ret == 0)
		ret = payload_make(path, e);
	if (ret == 0)
		ret = ensure_data_disk(s->state_dir, s->disk_gib, e);
	return ret == 0 ? tree_mkdirs(s->images_dir, e) : ret;
}

static int launch(const struct machine_spec *s, struct pidrec *r, struct err *e)
{
	_cleanup_args_ struct args a = { 0 };
	_cleanup_json_ json_t *extra = NULL;
	struct qemu_config c = { .kvm = may_use_kvm(s),
				 .vcpus = s->vcpus,
				 .memory_mib = s->memory_mib,
				 .tb_mib = host_memory_mib() < 8192 ? 256 : 1024,
				 .api_port = s->api_port,
				 .images = s->images_dir };
	char log[PATH_MAX], version[16], payload[SHA256_HEX_LEN];
	struct qemu q;
	int ret = qemu_find(&q, e);

	if (ret < 0)
		return ret;
	qemu_args(&a, &q, &c);
	if (a.failed)
		return err_errno(e, ENOMEM, "start the machine");
	path_printf(log, "%s/console.log", s->state_dir);
	unlink(log);
	path_printf(log, "%s/qemu.log", s->state_dir);
	unlink(log);
	ret = service_spawn(a.argv, s->state_dir, log, r, e);
	if (ret < 0)
		return ret;
	snprintf(version, sizeof(version), "%d.%d", q.major, q.minor);
	payload_id(payload);
	extra = json_pack("{s:b,s:i,s:i,s:i,s:i,s:s,s:s}", "kvm", c.kvm, "memoryMiB",
			  (int)c.memory_mib, "vcpus", (int)c.vcpus, "diskGiB", (int)s->disk_gib,
			  "apiPort", (int)c.api_port, "qemuVersion", version, "payload", payload);
	return service_save(s->state_dir, NAME, r, extra, e);
}

/* Line ends become "|": messages are one line. */
static void one_line(char *s)
{
	size_t n = strlen(s);

	while (n && s[n - 1] == '\n')
		s[--n] = '\0';
	for (; *s; s++)
		if (*s == '\n')
			*s = '|';
}

/* Fills e with why the machine is not up, quoting what it said last. */
static int not_up(const struct machine_spec *s, const char *why, struct err *e)
{
	char path[PATH_MAX], tail[TAIL];
	_cleanup_buf_ struct buf log = { 0 };
	char *said = tail;

	path_printf(path, "%s/qemu.log", s->state_dir);
	service_tail(path, tail, sizeof(tail));
	if (!tail[0] && control_ask(s->state_dir, "log", 3000, &log, NULL) == 1 && log.len)
		said = log.len > TAIL ? log.data + log.len - TAIL : log.data;
	path_printf(path, "%s/console.log", s->state_dir);
	if (!said[0])
		service_tail(path, tail, sizeof(tail));
	one_line(said);
	err_set(e, "machine_failed", EIO, "%s; it said last:\n%s", why,
		said[0] ? said : "(nothing)");
	err_fix(e, "The whole console is in %.200s.", path);
	return -EIO;
}

static int wait_up(const struct machine_spec *s, const struct pidrec *r, struct err *e)
{
	uint64_t end = clock_mono_ns() + UP_TIMEOUT_S * NSEC_PER_SEC;
	_cleanup_close_ int pidfd = pidrec_open(r);
	bool inside = false; /* its init has come up */

	while (pidfd >= 0 && clock_mono_ns() < end) {
		if (!inside)
			inside = control_ask(s->state_dir, "ping", 1000, NULL, NULL) == 1;
		if (inside && health_ok(s->api_port, 2000))
			return 0;
		if (pidrec_wait(pidfd, 100) == 0)
			return not_up(s, "the machine ended while starting", e);
	}
	if (pidfd < 0)
		return not_up(s, "QEMU ended at once", e);
	return not_up(s,
		      inside ? "the daemon in the machine did not come up in time"
			     : "the machine's system did not come up in time",
		      e);
}

static int start_locked(const struct machine_spec *s, struct err *e)
{
	struct pidrec r;
	_cleanup_close_ int pidfd = service_find(s->state_dir, NAME, &r, NULL);
	struct err why = { 0 };
	int ret;

	if (pidfd >= 0) {
		/* It may be on its way up: an earlier start was interrupted. */
		s->on_step(s->ctx, "waiting for the machine that runs");
		if (health_ok(s->api_port, 5000) || wait_up(s, &r, &why) == 0)
			return 0;
		err_set(e, "machine_running", EBUSY, "the machine runs (pid %d), but %.300s",
			(int)r.pid, why.msg);
		err_fix(e, "Stop it with `cloche machine stop`, then start it again.");
		return -EBUSY;
	}
	if (health_port_taken(s->api_port)) {
		err_set(e, "port_taken", EADDRINUSE, "port %u of the loopback is in use",
			(unsigned)s->api_port);
		err_fix(e, "Stop what listens there, or choose another with --port.");
		return -EADDRINUSE;
	}
	ret = prepare(s, e);
	if (ret < 0)
		return ret;
	s->on_step(s->ctx, "starting the machine");
	ret = launch(s, &r, e);
	if (ret == 0)
		ret = wait_up(s, &r, e);
	if (ret < 0 && (pidfd = pidrec_open(&r)) >= 0)
		pidrec_end(pidfd, TERM_MS);
	if (ret < 0)
		service_forget(s->state_dir, NAME);
	return ret;
}

int machine_start(const struct machine_spec *given, struct err *e)
{
	struct machine_spec s = *given;
	_cleanup_close_ int held = -1;
	int ret = tree_mkdirs(s.state_dir, e);

	if (ret < 0)
		return ret;
	if (chmod(s.state_dir, 0700) < 0)
		return err_errno(e, errno, "chmod %s", s.state_dir);
	held = lock(s.state_dir, e);
	if (held < 0)
		return held;
	s.memory_mib = s.memory_mib ? s.memory_mib : machine_default_memory_mib(host_memory_mib());
	s.vcpus = s.vcpus ? s.vcpus : MACHINE_VCPUS;
	s.disk_gib = s.disk_gib ? s.disk_gib : MACHINE_DISK_GIB;
	s.api_port = s.api_port ? s.api_port : MACHINE_API_PORT;
	return start_locked(&s, e);
}

int machine_stop(const char *state_dir, unsigned timeout_s, struct err *e)
{
	_cleanup_close_ int held = -1, pidfd = -1;
	struct pidrec r;
	int ret = 1;

	if (access(state_dir, F_OK) < 0)
		return 0;
	held = lock(state_dir, e);
	if (held < 0)
		return held;
	pidfd = service_find(state_dir, NAME, &r, NULL);
	if (pidfd < 0) {
		service_forget(state_dir, NAME);
		return 0;
	}
	if (control_ask(state_dir, "poweroff", POWEROFF_ANSWER_MS, NULL, NULL) != 1 ||
	    pidrec_wait(pidfd, timeout_s * 1000) < 0) {
		ret = pidrec_end(pidfd, TERM_MS);
		if (ret < 0)
			return err_errno(e, -ret, "end the machine (pid %d)", (int)r.pid);
	}
	service_forget(state_dir, NAME);
	return ret;
}

static uint64_t uptime_s(const struct pidrec *r)
{
	struct timespec now;

	clock_gettime(CLOCK_BOOTTIME, &now);
	return (uint64_t)now.tv_sec - r->start / (uint64_t)sysconf(_SC_CLK_TCK);
}

int machine_status(const char *state_dir, struct machine_status *st, struct err *e)
{
	_cleanup_json_ json_t *doc = NULL;
	char payload[SHA256_HEX_LEN];
	struct pidrec r;
	_cleanup_close_ int pidfd = service_find(state_dir, NAME, &r, &doc);

	memset(st, 0, sizeof(*st));
	if (pidfd < 0)
		return pidfd == -ESRCH ? 0 : err_errno(e, -pidfd, "look for the machine");
	st->running = true;
	st->pid = r.pid;
	st->uptime_s = uptime_s(&r);
	st->kvm = json_get_bool(doc, "kvm", false);
	st->memory_mib = (unsigned)json_get_int(doc, "memoryMiB", 0);
	st->vcpus = (unsigned)json_get_int(doc, "vcpus", 0);
	st->disk_gib = (unsigned)json_get_int(doc, "diskGiB", 0);
	st->api_port = (uint16_t)json_get_int(doc, "apiPort", 0);
	snprintf(st->qemu_version, sizeof(st->qemu_version), "%s",
		 json_get_str(doc, "qemuVersion", ""));
	snprintf(st->started_at, sizeof(st->started_at), "%s", json_get_str(doc, "startedAt", ""));
	payload_id(payload);
	st->outdated = payload[0] && strcmp(payload, json_get_str(doc, "payload", payload)) != 0;
	st->api_reachable = health_ok(st->api_port, 3000);
	return 0;
}

json_t *machine_status_json(const struct machine_status *st)
{
	if (!st->running)
		return json_pack("{s:b}", "running", 0);
	return json_pack("{s:b,s:i,s:I,s:s,s:i,s:i,s:i,s:i,s:b,s:b,s:s,s:s}", "running", 1, "pid",
			 (int)st->pid, "uptimeSeconds", (json_int_t)st->uptime_s, "accelerator",
			 st->kvm ? "kvm" : "tcg", "memoryMiB", (int)st->memory_mib, "vcpus",
			 (int)st->vcpus, "diskGiB", (int)st->disk_gib, "apiPort", (int)st->api_port,
			 "apiReachable", st->api_reachable, "outdated", st->outdated, "qemuVersion",
			 st->qemu_version, "startedAt", st->started_at);
}

int machine_key(const char *state_dir, char *key, size_t n, struct err *e)
{
	_cleanup_buf_ struct buf answer = { 0 };
	int ret = control_ask(state_dir, "key", 10000, &answer, e);

	if (ret < 0)
		return ret;
	if (ret == 0 || !answer.len || answer.len >= n)
		return err_set(e, "no_key", ENOENT, "the machine has no first API key to give");
	answer.data[strcspn(answer.data, "\r\n ")] = '\0';
	snprintf(key, n, "%s", answer.data);
	return 0;
}
