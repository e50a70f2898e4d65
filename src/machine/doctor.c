/*
 * One function a check, listed in a table; each fills in what it found. A check fails only when
 * `cloche up` could not work here; what merely costs speed or room is a warning.
 */
#include "machine/doctor.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/fs.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/proc.h"
#include "image/tree.h"
#include "machine/health.h"
#include "machine/qemu.h"
#include "machine/service.h"

#define DISK_WARN_MIB 8192
#define DISK_FAIL_MIB 2048
#define MEMORY_WARN_MIB 4096
#define MEMORY_FAIL_MIB 1536
#define CGROUP2_MAGIC 0x63677270

struct examine {
	const struct cloche_paths *paths;
	uint16_t port;
	struct doctor_report *r;
};

__attribute__((format(printf, 3, 4))) static void found(struct doctor_check *c,
							enum doctor_verdict v, const char *fmt, ...)
{
	va_list ap;

	c->verdict = v;
	va_start(ap, fmt);
	vsnprintf(c->found, sizeof(c->found), fmt, ap);
	va_end(ap);
}

static void fix(struct doctor_check *c, const char *text)
{
	snprintf(c->fix, sizeof(c->fix), "%.239s", text);
}

static bool machine_mode(const struct examine *x)
{
	return strcmp(x->r->mode, "machine") == 0;
}

static void check_kvm(struct examine *x, struct doctor_check *c)
{
	const struct probe *p = &x->r->probe;
	bool fast = p->kind == PROBE_NATIVE || p->kind == PROBE_NESTED;

	found(c, fast ? DOCTOR_OK : DOCTOR_WARN, "%s: %s", probe_kind_name(p->kind), p->reason);
	fix(c, p->fix);
}

static void check_mode(struct examine *x, struct doctor_check *c)
{
	if (!machine_mode(x)) {
		found(c, DOCTOR_OK, "native: sandboxes run on this host's KVM");
	} else if (x->r->probe.kind >= PROBE_NESTED) {
		found(c, DOCTOR_WARN, "machine: one virtual machine holds the sandboxes");
		fix(c, "Run as root for native mode.");
	} else {
		found(c, DOCTOR_WARN,
		      "machine: one virtual machine in software emulation holds the sandboxes; "
		      "expect 10 to 30 times less speed");
	}
}

static void check_memory(struct examine *x, struct doctor_check *c)
{
	uint64_t mib = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE) >> 20;

	(void)x;
	found(c,
	      mib < MEMORY_FAIL_MIB   ? DOCTOR_FAIL
	      : mib < MEMORY_WARN_MIB ? DOCTOR_WARN
				      : DOCTOR_OK,
	      "%llu MiB of memory, %ld processors", (unsigned long long)mib,
	      sysconf(_SC_NPROCESSORS_ONLN));
	if (mib < MEMORY_WARN_MIB)
		fix(c, "Give the host 4 GiB or more.");
}

/* The nearest folder above path that exists. */
static void existing(const char *path, char out[PATH_MAX])
{
	path_printf(out, "%s", path);
	while (out[0] && access(out, F_OK) < 0) {
		char *slash = strrchr(out, '/');

		if (!slash || slash == out) {
			path_printf(out, "/");
			return;
		}
		*slash = '\0';
	}
}

static void check_disk(struct examine *x, struct doctor_check *c)
{
	char dir[PATH_MAX];
	struct statvfs v;
	uint64_t mib;

	existing(x->paths->home, dir);
	if (statvfs(dir, &v) < 0) {
		found(c, DOCTOR_FAIL, "%s: %s", dir, strerror(errno));
		return;
	}
	mib = (uint64_t)v.f_bavail * v.f_frsize >> 20;
	found(c,
	      mib < DISK_FAIL_MIB   ? DOCTOR_FAIL
	      : mib < DISK_WARN_MIB ? DOCTOR_WARN
				    : DOCTOR_OK,
	      "%llu MiB free for %.150s", (unsigned long long)mib, x->paths->home);
	if (mib < DISK_WARN_MIB)
		fix(c, "Free space, or set CLOCHE_HOME to a folder on another disk.");
}

/* Tries a clone between two unnamed files of the folder. */
static int try_reflink(const char *dir)
{
	_cleanup_close_ int a = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	_cleanup_close_ int b = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	char block[4096] = "x";

	if (a < 0 || b < 0 || pwrite(a, block, sizeof(block), 0) != (ssize_t)sizeof(block))
		return -errno;
	return ioctl(b, FICLONE, a) < 0 ? -errno : 0;
}

static void check_reflink(struct examine *x, struct doctor_check *c)
{
	char dir[PATH_MAX];
	int ret;

	if (machine_mode(x)) {
		found(c, DOCTOR_OK, "the machine's own disk is XFS with reflinks");
		return;
	}
	existing(x->paths->home, dir);
	ret = try_reflink(dir);
	if (ret == 0) {
		found(c, DOCTOR_OK, "%.200s shares blocks between copies", dir);
		return;
	}
	found(c, DOCTOR_WARN, "%.150s cannot share blocks between copies (%s)", dir,
	      strerror(-ret));
	fix(c, "Put the state folder on XFS or Btrfs; copies of disks are slower without.");
}

static void check_cgroup(struct examine *x, struct doctor_check *c)
{
	struct statfs fs;

	if (machine_mode(x)) {
		found(c, DOCTOR_OK, "version 2 inside the machine");
	} else if (statfs("/sys/fs/cgroup", &fs) == 0 && fs.f_type == CGROUP2_MAGIC) {
		found(c, DOCTOR_OK, "version 2");
	} else {
		found(c, DOCTOR_WARN, "version 1, or none mounted at /sys/fs/cgroup");
		fix(c, "Boot with systemd.unified_cgroup_hierarchy=1 for full limits.");
	}
}

static void check_qemu(struct examine *x, struct doctor_check *c)
{
	struct qemu q;
	struct err e = { 0 };

	if (qemu_find(&q, &e) < 0) {
		found(c, machine_mode(x) ? DOCTOR_FAIL : DOCTOR_OK, "%.200s%s", e.msg,
		      machine_mode(x) ? "" : " (native mode does without)");
		if (machine_mode(x))
			fix(c, e.fix);
		return;
	}
	found(c, DOCTOR_OK, "QEMU %d.%d", q.major, q.minor);
	if (machine_mode(x) && q.major < QEMU_PREFERRED) {
		c->verdict = DOCTOR_WARN;
		fix(c, "QEMU 10 (bookworm-backports) starts programs several times faster.");
	}
}

static void check_mmdebstrap(struct examine *x, struct doctor_check *c)
{
	const char *argv[] = { "mmdebstrap", "--version", NULL };
	_cleanup_buf_ struct buf out = { 0 };
	struct proc_spec s = { .argv = argv, .out = &out, .timeout_s = 30 };
	char base[PATH_MAX];

	path_printf(base, "%s/base/manifest.json", x->paths->images);
	if (proc_run(&s, NULL) == 0) {
		found(c, DOCTOR_OK, "%.*s", (int)strcspn(out.data ? out.data : "", "\n"),
		      out.data ? out.data : "");
		return;
	}
	found(c, access(base, F_OK) == 0 ? DOCTOR_WARN : DOCTOR_FAIL,
	      "mmdebstrap is not installed; images cannot be made");
	fix(c, "Install it: apt-get install mmdebstrap");
}

static void check_port(struct examine *x, struct doctor_check *c)
{
	if (!health_port_taken(x->port)) {
		found(c, DOCTOR_OK, "port %u is free", (unsigned)x->port);
	} else if (health_ok(x->port, 3000)) {
		found(c, DOCTOR_OK, "port %u: an API answers there already", (unsigned)x->port);
	} else {
		found(c, DOCTOR_FAIL, "port %u is taken by something else", (unsigned)x->port);
		fix(c, "Stop what listens there, or give `cloche up` another --port.");
	}
}

static void check_programs(struct examine *x, struct doctor_check *c)
{
	static const char *const names[] = { "cloched", "cloche-vmm", "agent.cpio" };
	char path[PATH_MAX];
	struct err e = { 0 };

	(void)x;
	for (size_t i = 0; i < ARRAY_SIZE(names); i++)
		if (paths_find(names[i], path, &e) < 0) {
			found(c, DOCTOR_FAIL, "%.200s", e.msg);
			fix(c, e.fix);
			return;
		}
	found(c, DOCTOR_OK, "installed");
}

static const struct {
	const char *name;
	void (*run)(struct examine *x, struct doctor_check *c);
} table[] = {
	{ "kvm", check_kvm },	    { "mode", check_mode }, { "programs", check_programs },
	{ "memory", check_memory }, { "disk", check_disk }, { "reflink", check_reflink },
	{ "cgroup", check_cgroup }, { "qemu", check_qemu }, { "mmdebstrap", check_mmdebstrap },
	{ "port", check_port },
};

const char *doctor_mode(enum probe_kind kind, bool root)
{
	return root && (kind == PROBE_NATIVE || kind == PROBE_NESTED) ? "native" : "machine";
}

void doctor_run(const struct cloche_paths *paths, uint16_t port, struct doctor_report *r)
{
	struct examine x = { paths, port, r };

	memset(r, 0, sizeof(*r));
	probe_kvm(&r->probe);
	r->mode = doctor_mode(r->probe.kind, geteuid() == 0);
	for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
		struct doctor_check *c = &r->checks[r->n++];

		c->name = table[i].name;
		table[i].run(&x, c);
		if (c->verdict > r->worst)
			r->worst = c->verdict;
	}
}

static const char *const verdict_names[] = { "ok", "warn", "fail" };

json_t *doctor_json(const struct doctor_report *r)
{
	const struct probe *p = &r->probe;
	_cleanup_json_ json_t *checks = json_array();

	for (size_t i = 0; checks && i < r->n; i++)
		json_array_append_new(
			checks, json_pack("{s:s,s:s,s:s,s:s}", "name", r->checks[i].name, "verdict",
					  verdict_names[r->checks[i].verdict], "found",
					  r->checks[i].found, "fix", r->checks[i].fix));
	return json_pack("{s:s,s:s,s:s,s:{s:s,s:f,s:b,s:b,s:b},s:O}", "kind",
			 probe_kind_name(p->kind), "mode", r->mode, "verdict",
			 verdict_names[r->worst], "kvm", "reason", p->reason,
			 "instructionsPerSecond", p->facts.instr_per_s, "hypervisor",
			 p->facts.hypervisor, "cpuVirtualization", p->facts.cpu_virt,
			 "guestsMayNest", p->guests_may_nest, "checks", checks);
}

void doctor_print(const struct doctor_report *r, FILE *f, bool colour)
{
	static const char *const paint[] = { "\033[32m", "\033[33m", "\033[31m" };

	for (size_t i = 0; i < r->n; i++) {
		const struct doctor_check *c = &r->checks[i];

		fprintf(f, "%s%-4s%s  %-10s  %s\n", colour ? paint[c->verdict] : "",
			verdict_names[c->verdict], colour ? "\033[0m" : "", c->name, c->found);
		if (c->fix[0] && c->verdict != DOCTOR_OK)
			fprintf(f, "                  %s\n", c->fix);
	}
}
