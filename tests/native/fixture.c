#include "fixture.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/log.h"
#include "base/sha256.h"
#include "broker/dirs.h"
#include "broker/server.h"
#include "broker/vmms.h"
#include "sandbox/agent_conn.h"
#include "sandbox/manager.h"

#define DISK_BYTES (8u << 20)

const char *fixture_unavailable(void)
{
	return geteuid() == 0 ? NULL : "needs root for namespaces and control groups";
}

static void join(char *out, size_t n, const char *a, const char *b)
{
	assert_true((size_t)snprintf(out, n, "%s/%s", a, b) < n);
}

static void copy_program(const char *to)
{
	_cleanup_buf_ struct buf b = { 0 };
	struct err e = { 0 };

	assert_int_equal(fd_read_file(PROCESS_VMM, &b, 64u << 20, &e), 0);
	assert_int_equal(fd_write_file_atomic(to, b.data, b.len, 0755, &e), 0);
}

void fixture_new(struct fixture *f)
{
	char path[PATH_MAX];
	struct err e = { 0 };

	memset(f, 0, sizeof(*f));
	snprintf(f->dir, sizeof(f->dir), "/tmp/cloche-test-XXXXXX");
	assert_non_null(mkdtemp(f->dir));
	join(f->state, sizeof(f->state), f->dir, "state");
	join(f->run, sizeof(f->run), f->dir, "run");
	join(f->import, sizeof(f->import), f->dir, "import");
	join(f->libexec, sizeof(f->libexec), f->dir, "libexec");
	snprintf(f->cgroup, sizeof(f->cgroup), "cloche-test-%s", f->dir + strlen(f->dir) - 6);
	assert_int_equal(mkdir(f->import, 0755), 0);
	assert_int_equal(mkdir(f->libexec, 0755), 0);
	join(path, sizeof(path), f->libexec, "agent.cpio");
	assert_int_equal(fd_write_file_atomic(path, "cpio", 4, 0644, &e), 0);
	join(f->vmm, sizeof(f->vmm), f->libexec, "vmm");
	copy_program(f->vmm);
	assert_int_equal(dirs_prepare(f->state, f->run, 0, 0, &e), 0);
	f->imports[0] = f->import;
	fixture_image(f, "base", "", false);
}

static void remove_tree(const char *path)
{
	_cleanup_closedir_ DIR *d = opendir(path);
	struct dirent *de;

	while (d && (de = readdir(d))) {
		char sub[PATH_MAX];

		if (strcmp(de->d_name, ".") == 0 || strcmp(de->d_name, "..") == 0)
			continue;
		join(sub, sizeof(sub), path, de->d_name);
		if (unlink(sub) < 0)
			remove_tree(sub);
	}
	rmdir(path);
}

/* ---- images ---- */

static void put_part(const char *dir, const char *name, const char *data, size_t n, size_t bytes,
		     json_t *files, const char *part)
{
	_cleanup_close_ int fd = -1;
	char path[PATH_MAX], sha[SHA256_HEX_LEN], zero[4096] = { 0 };
	struct sha256 h;

	join(path, sizeof(path), dir, name);
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	assert_true(fd >= 0);
	assert_int_equal(fd_write_full(fd, data, n), 0);
	assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
	sha256_init(&h);
	sha256_add(&h, data, n);
	for (size_t left = bytes - n; left;) {
		size_t take = left < sizeof(zero) ? left : sizeof(zero);

		sha256_add(&h, zero, take);
		left -= take;
	}
	sha256_end_hex(&h, sha);
	json_object_set_new(files, part,
			    json_pack("{s:s,s:I,s:s}", "name", name, "bytes", (json_int_t)bytes,
				      "sha256", sha));
}

void fixture_image(const struct fixture *f, const char *name, const char *cmdline, bool damaged)
{
	_cleanup_json_ json_t *files = json_object(), *manifest = NULL;
	_cleanup_free_ char *text = NULL;
	char dir[PATH_MAX], path[PATH_MAX];
	struct err e = { 0 };

	join(dir, sizeof(dir), f->import, name);
	mkdir(dir, 0755);
	put_part(dir, "disk.raw", "a disk", 6, DISK_BYTES, files, "disk");
	put_part(dir, "vmlinux", "a kernel", 8, 8, files, "kernel");
	manifest = json_pack("{s:i,s:s,s:s,s:s,s:O}", "schema", 1, "name", name, "kernelVersion",
			     "0-test", "cmdline", cmdline, "files", files);
	text = json_dumps(manifest, 0);
	join(path, sizeof(path), dir, "manifest.json");
	assert_int_equal(fd_write_file_atomic(path, text, strlen(text), 0644, &e), 0);
	if (!damaged)
		return;
	join(path, sizeof(path), dir, "disk.raw");
	assert_int_equal(truncate(path, 6), 0);
	assert_int_equal(truncate(path, DISK_BYTES - 4096), 0);
}

/* ---- the daemon ---- */

_Noreturn static void broker_main(const struct fixture *f, int sock)
{
	struct vmms_config c = {
		.run_dir = f->run,
		.vmm_path = f->vmm,
		.uid_first = 64100,
		.uid_count = 8,
		.memory_overhead_mib = 128,
		.pids_extra = 128,
		.unjailed = true,
	};
	struct broker_server server = { .kvm_path = "/dev/null" };
	struct vmms vmms;
	struct err e = { 0 };
	int r;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	r = cgroup_init(&c.cgroup, "/proc/self/mountinfo", "", f->cgroup, &e);
	if (r == 0)
		r = jail_open(&c.jail, false, &e);
	if (r == 0)
		r = vmms_open(&vmms, &c, &e);
	server.vmms = &vmms;
	while (r == 0 && (r = broker_serve_one(&server, sock, &e)) > 0)
		r = 0;
	if (r < 0)
		log_err(LOG_ERROR, &e, "test broker");
	_exit(r < 0);
}

int fixture_broker_up(struct fixture *f)
{
	int p[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, p), 0);
	f->broker = fork();
	assert_true(f->broker >= 0);
	if (f->broker == 0) {
		close(p[0]);
		broker_main(f, p[1]);
	}
	close(p[1]);
	return p[0];
}

void fixture_broker_kill(struct fixture *f)
{
	if (!f->broker)
		return;
	kill(f->broker, SIGKILL);
	waitpid(f->broker, NULL, 0);
	f->broker = 0;
}

static void check(int r, const struct err *e)
{
	if (r < 0)
		fail_msg("%s: %s", e->code, e->msg);
}

/* Until the import of images, which a start leaves to a worker, is done. */
static void wait_idle(struct sandbox_manager *m)
{
	pthread_mutex_lock(&m->lock);
	while (m->workers)
		pthread_cond_wait(&m->idle, &m->lock);
	pthread_mutex_unlock(&m->lock);
}

void fixture_up(struct fixture *f)
{
	char path[PATH_MAX];
	struct err e = { 0 };
	struct sandbox_config c = {
		.state_dir = f->state,
		.run_dir = f->run,
		.libexec_dir = f->libexec,
		.import_dirs = f->imports,
		.import_dirs_n = 1,
		.host = "test",
		.default_vcpus = 1,
		.default_memory_mib = 64,
		.default_disk_mib = 16,
		.boot_timeout_ms = 30000,
	};

	check(broker_client_new(fixture_broker_up(f), &f->client, &e), &e);
	join(path, sizeof(path), f->state, "store.db");
	check(store_open(path, &f->store, &e), &e);
	c.broker = f->client;
	c.store = f->store;
	check(sandbox_manager_new(&c, &f->m, &e), &e);
	wait_idle(f->m);
}

void fixture_down(struct fixture *f)
{
	sandbox_manager_free(f->m);
	store_close(f->store);
	broker_client_free(f->client);
	f->m = NULL;
	f->store = NULL;
	f->client = NULL;
	if (f->broker) {
		waitpid(f->broker, NULL, 0);
		f->broker = 0;
	}
}

/* ---- counting ---- */

static int count_entries(const char *dir, const char *suffix)
{
	_cleanup_closedir_ DIR *d = opendir(dir);
	struct dirent *de;
	int n = 0;

	while (d && (de = readdir(d))) {
		size_t len = strlen(de->d_name), s = strlen(suffix);

		n += len > s && strncmp(de->d_name, "sbx_", 4) == 0 &&
		     strcmp(de->d_name + len - s, suffix) == 0;
	}
	return n;
}

/* Sandboxes' groups in every hierarchy there may be. */
static int count_cgroups(const struct fixture *f)
{
	static const char *const roots[] = { "/sys/fs/cgroup", "/sys/fs/cgroup/unified",
					     "/sys/fs/cgroup/memory", "/sys/fs/cgroup/cpu",
					     "/sys/fs/cgroup/pids" };
	char path[PATH_MAX];
	int n = 0;

	for (size_t i = 0; i < ARRAY_SIZE(roots); i++) {
		join(path, sizeof(path), roots[i], f->cgroup);
		n += count_entries(path, "");
	}
	return n;
}

/* Processes of this fixture's copy of the program; other tests may run beside. */
static int count_vmms(const struct fixture *f)
{
	_cleanup_closedir_ DIR *d = opendir("/proc");
	struct dirent *de;
	int n = 0;

	while (d && (de = readdir(d))) {
		char path[PATH_MAX], exe[PATH_MAX];
		ssize_t len;

		if (de->d_name[0] < '1' || de->d_name[0] > '9')
			continue;
		snprintf(path, sizeof(path), "/proc/%s/exe", de->d_name);
		len = readlink(path, exe, sizeof(exe) - 1);
		exe[len > 0 ? len : 0] = '\0';
		n += strcmp(exe, f->vmm) == 0;
	}
	return n;
}

struct counts fixture_count(const struct fixture *f)
{
	char path[PATH_MAX];
	struct counts c = { .fds = fd_count_open(), .vmm_processes = count_vmms(f) };

	c.cgroups = count_cgroups(f);
	join(path, sizeof(path), f->run, "vmm");
	c.sockets = count_entries(path, ".sock") + count_entries(path, ".json");
	join(path, sizeof(path), f->state, "sandboxes");
	c.disks = count_entries(path, "");
	return c;
}

void fixture_free(struct fixture *f)
{
	static const char *const roots[] = { "/sys/fs/cgroup", "/sys/fs/cgroup/unified",
					     "/sys/fs/cgroup/memory", "/sys/fs/cgroup/cpu",
					     "/sys/fs/cgroup/pids" };
	struct counts c = fixture_count(f);
	char path[PATH_MAX];

	fixture_broker_kill(f);
	for (size_t i = 0; i < ARRAY_SIZE(roots); i++) {
		join(path, sizeof(path), roots[i], f->cgroup);
		rmdir(path);
	}
	remove_tree(f->dir);
	assert_int_equal(c.cgroups, 0);
	assert_int_equal(c.sockets, 0);
	assert_int_equal(c.disks, 0);
}

/* ---- use ---- */

struct store_sandbox fixture_row(const char *image)
{
	struct store_sandbox row = { .timeout_s = 3600, .max_cost_micros = -1 };

	snprintf(row.image, sizeof(row.image), "%s", image);
	snprintf(row.owner_key, sizeof(row.owner_key), "key_aaaaaaaaaaaaaaaaaaaa");
	return row;
}

int fixture_exec(struct fixture *f, const char *id, const char *command)
{
	_cleanup_json_ json_t *req = json_pack("{s:s,s:s}", "command", command, "user", "root");
	_cleanup_agent_conn_ struct agent_conn *c = NULL;
	struct agent_event ev;
	struct err e = { 0 };
	int fd, r = sandbox_connect(f->m, id, &fd, &e);

	if (r == 0)
		r = agent_open(fd, "exec", req, &c, &e);
	if (r == 0)
		r = agent_reply(c, NULL, 10000, &e);
	while (r == 0 && (r = agent_next(c, &ev, 10000, &e)) == 1) {
		if (ev.type == AGENT_EXIT && ev.exit.signal)
			print_message("exec: ended by signal %d%s\n", ev.exit.signal,
				      ev.exit.timed_out ? ", timed out" : "");
		if (ev.type == AGENT_EXIT)
			return ev.exit.code;
		r = 0;
	}
	print_message("exec: %s: %s (%d)\n", e.code ? e.code : "?", e.msg, r);
	return -1;
}
