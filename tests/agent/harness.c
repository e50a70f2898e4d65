/* The child unshares, and its child, PID 1 of the new namespace, lays out the mounts and executes
 * the agent with a listening socket, so a connection waits in its queue from the start. */
#include "harness.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"

static const char passwd[] = "root:x:0:0:root:/root:/bin/bash\n"
			     "agent:x:1000:1000::/mnt/home:/bin/sh\n"
			     "other:x:1001:1001::/:/bin/sh\n";
static const char group[] = "root:x:0:\nagent:x:1000:\nother:x:1001:\nextra:x:2000:agent\n";

static void must(bool ok, const char *what)
{
	if (ok)
		return;
	fprintf(stderr, "harness: %s: %s\n", what, strerror(errno));
	_exit(77);
}

static void put_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

	must(fd >= 0 && fd_write_full(fd, text, strlen(text)) == 0, path);
	close(fd);
}

static void lay_out(void)
{
	must(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0, "private mounts");
	must(mount("proc", "/proc", "proc", 0, NULL) == 0, "mount /proc");
	must(mount("tmpfs", "/mnt", "tmpfs", 0, "size=64m,mode=1777") == 0, "mount /mnt");
	put_file("/mnt/.passwd", passwd);
	put_file("/mnt/.group", group);
	must(mount("/mnt/.passwd", "/etc/passwd", NULL, MS_BIND, NULL) == 0, "bind passwd");
	must(mount("/mnt/.group", "/etc/group", NULL, MS_BIND, NULL) == 0, "bind group");
	must(unlink("/mnt/.passwd") == 0 && unlink("/mnt/.group") == 0, "hide files");
	must(mkdir("/mnt/home", 0755) == 0 && chown("/mnt/home", 1000, 1000) == 0, "home");
	must(mkdir("/mnt/small", 0755) == 0, "small");
	must(mount("tmpfs", "/mnt/small", "tmpfs", 0, "size=1m,mode=1777") == 0, "mount small");
}

static int listen_at(const char *path)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	snprintf(sa.sun_path, sizeof(sa.sun_path), "%s", path);
	must(fd >= 0 && bind(fd, (struct sockaddr *)&sa, sizeof(sa)) == 0 && listen(fd, 64) == 0,
	     "listen");
	return fd;
}

/* A cgroup2 folder for this test, if the machine has one that we may use. */
static void find_cgroup(struct harness *h)
{
	_cleanup_fclose_ FILE *f = fopen("/proc/self/mounts", "re");
	char line[1024], where[512], type[64];

	h->cgroup[0] = '\0';
	while (f && fgets(line, sizeof(line), f)) {
		if (sscanf(line, "%*s %511s %63s", where, type) != 2 || strcmp(type, "cgroup2"))
			continue;
		snprintf(h->cgroup, sizeof(h->cgroup), "%.80s/cloche-test-%d", where, getpid());
		if (mkdir(h->cgroup, 0755) == 0)
			return;
		h->cgroup[0] = '\0';
	}
}

static void child(struct harness *h, const char *agent, int listener)
{
	char run_dir[64];
	pid_t pid;

	must(unshare(CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC) == 0, "unshare");
	pid = fork();
	must(pid >= 0, "fork");
	if (pid > 0) { /* PID 1 dies with us, and all of its namespace with it */
		int st;

		while (waitpid(pid, &st, 0) < 0 && errno == EINTR)
			;
		_exit(WIFEXITED(st) ? WEXITSTATUS(st) : 1);
	}
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	lay_out();
	snprintf(run_dir, sizeof(run_dir), "/mnt/run");
	must(listener == 3 ? fcntl(3, F_SETFD, 0) == 0 : dup2(listener, 3) == 3, "pass the socket");
	execl(agent, agent, "--no-init", "--listen-fd", "3", "--run-dir", run_dir,
	      h->cgroup[0] ? "--cgroup" : NULL, h->cgroup, NULL);
	must(false, agent);
}

static void adopt_it(struct harness *h)
{
	json_decref(harness_call(h, "adopt",
				 json_pack("{s:s,s:I,s:s,s:{s:s},s:i}", "hostname", "test",
					   "wallMs", (json_int_t)clock_wall_ms(), "entropy",
					   "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=", "env",
					   "ACCOUNT", "yes", "generation", 1)));
}

bool harness_start(struct harness *h, const char *agent, bool raw)
{
	int listener;

	*h = (struct harness){ .dir = "/tmp/cloche-agent-XXXXXX" };
	if (geteuid() != 0) {
		print_message("needs root for namespaces\n");
		return false;
	}
	assert_non_null(mkdtemp(h->dir));
	snprintf(h->sock, sizeof(h->sock), "%s/s", h->dir);
	find_cgroup(h);
	listener = listen_at(h->sock);
	h->pid = fork();
	assert_true(h->pid >= 0);
	if (h->pid == 0)
		child(h, agent, listener);
	close(listener);
	if (!raw)
		adopt_it(h);
	return true;
}

void harness_start_plain(struct harness *h, const char *agent)
{
	int listener;

	*h = (struct harness){ .dir = "/tmp/cloche-agent-XXXXXX", .plain = true };
	assert_non_null(mkdtemp(h->dir));
	snprintf(h->sock, sizeof(h->sock), "%s/s", h->dir);
	listener = listen_at(h->sock);
	h->pid = fork();
	assert_true(h->pid >= 0);
	if (h->pid == 0) {
		must(dup2(listener, 3) == 3 && fcntl(3, F_SETFD, 0) == 0, "pass the socket");
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		execl(agent, agent, "--no-init", "--listen-fd", "3", "--run-dir", h->dir, NULL);
		must(false, agent);
	}
	close(listener);
	adopt_it(h);
}

void harness_stop(struct harness *h)
{
	char generation[64];

	char slice[160];

	if (!h->dir[0])
		return;
	if (h->pid) {
		kill(h->pid, SIGKILL);
		waitpid(h->pid, NULL, 0);
	}
	unlink(h->sock);
	snprintf(generation, sizeof(generation), "%s/generation", h->dir);
	unlink(generation);
	rmdir(h->dir);
	if (!h->cgroup[0])
		return;
	snprintf(slice, sizeof(slice), "%s/cloche.slice", h->cgroup);
	/* PID 1's death kills the rest; each folder goes when its last process has. */
	for (int i = 0; i < 2000 && rmdir(h->cgroup) < 0 && errno != ENOENT; i++) {
		_cleanup_closedir_ DIR *d = opendir(slice);
		struct dirent *de;

		while (d && (de = readdir(d)))
			if (de->d_type == DT_DIR && de->d_name[0] != '.')
				unlinkat(dirfd(d), de->d_name, AT_REMOVEDIR);
		rmdir(slice);
		usleep(1000);
	}
}

int harness_dial(const struct harness *h)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	int fd;

	if (h->dialer)
		return h->dialer(h->ctx);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	snprintf(sa.sun_path, sizeof(sa.sun_path), "%s", h->sock);
	assert_true(fd >= 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
	return fd;
}

json_t *harness_call(const struct harness *h, const char *op, json_t *request)
{
	json_t *reply = NULL;
	struct err e = { 0 };
	int r = agent_call(harness_dial(h), op, request, &reply, WAIT_MS, &e);

	json_decref(request);
	if (r < 0)
		fail_msg("%s: %s (%s)", op, e.msg, e.code);
	return reply;
}

const char *harness_error(const struct harness *h, const char *op, json_t *request, struct err *e)
{
	int r = agent_call(harness_dial(h), op, request, NULL, WAIT_MS, e);

	json_decref(request);
	if (r >= 0)
		fail_msg("%s succeeded", op);
	return e->code;
}

int run_follow(struct agent_conn *c, struct run *r, struct err *e)
{
	struct agent_event ev;
	int n;

	while ((n = agent_next(c, &ev, WAIT_MS, e)) > 0) {
		struct buf *b = ev.type == AGENT_STDERR ? &r->err : &r->out;

		if (ev.type == AGENT_STDOUT || ev.type == AGENT_STDERR) {
			/* Nothing is missing between this piece and the one before. */
			assert_true(r->next[ev.is_stderr] == 0 ||
				    r->next[ev.is_stderr] == ev.offset);
			r->next[ev.is_stderr] = ev.offset + ev.len;
			assert_int_equal(buf_add(b, ev.data, ev.len), 0);
		} else if (ev.type == AGENT_DROPPED) {
			r->dropped += ev.dropped;
			r->next[ev.is_stderr] = ev.offset + ev.dropped;
		} else if (ev.type == AGENT_EXIT) {
			r->exit = ev.exit;
			return 0;
		} else if (ev.type == AGENT_END) {
			return 1;
		}
	}
	if (n == 0)
		fail_msg("no event in time");
	return n;
}

int harness_exec(const struct harness *h, json_t *request, const void *input, size_t n,
		 struct run *r, struct err *e)
{
	_cleanup_agent_conn_ struct agent_conn *c = NULL;
	_cleanup_json_ json_t *req = request, *reply = NULL;
	int ret;

	*r = (struct run){ 0 };
	if (input)
		json_object_set_new(request, "stdin", json_true());
	ret = agent_open(harness_dial(h), "exec", request, &c, e);
	if (ret == 0)
		ret = agent_reply(c, &reply, WAIT_MS, e);
	if (ret < 0)
		return ret;
	snprintf(r->id, sizeof(r->id), "%s", json_get_str(reply, "processId", ""));
	if (input)
		assert_int_equal(agent_stdin(c, input, n, e), 0);
	if (input)
		assert_int_equal(agent_stdin_eof(c, e), 0);
	return run_follow(c, r, e);
}

int harness_sh(const struct harness *h, struct run *r, const char *text)
{
	struct err e = { 0 };

	run_free(r);
	if (harness_exec(h, json_pack("{s:s}", "command", text), NULL, 0, r, &e) < 0)
		fail_msg("%s: %s (%s)", text, e.msg, e.code);
	return r->exit.signal ? -r->exit.signal : r->exit.code;
}

void run_free(struct run *r)
{
	buf_free(&r->out);
	buf_free(&r->err);
	*r = (struct run){ 0 };
}

struct agent_conn *harness_open(const struct harness *h, json_t *request, char *id)
{
	_cleanup_json_ json_t *req = request, *reply = NULL;
	struct agent_conn *c;
	struct err e = { 0 };

	if (agent_open(harness_dial(h), "exec", request, &c, &e) < 0 ||
	    agent_reply(c, &reply, WAIT_MS, &e) < 0)
		fail_msg("exec: %s (%s)", e.msg, e.code);
	snprintf(id, 64, "%s", json_get_str(reply, "processId", ""));
	return c;
}

void wait_output(struct agent_conn *c, const char *text)
{
	_cleanup_buf_ struct buf b = { 0 };
	struct agent_event ev;
	struct err e = { 0 };

	while (!b.data || !strstr(b.data, text)) {
		int r = agent_next(c, &ev, WAIT_MS, &e);

		if (r <= 0)
			fail_msg("waiting for %s: %s", text, r ? e.msg : "timeout");
		if (ev.type == AGENT_EXIT)
			fail_msg("it ended before it said %s", text);
		if (ev.type == AGENT_STDOUT)
			assert_int_equal(buf_add(&b, ev.data, ev.len), 0);
	}
}

/* Whether /proc/name is in the same pid namespace as the agent. */
static bool same_space(const struct harness *h, const char *name)
{
	char path[300], a[64] = "", b[64] = "";

	snprintf(path, sizeof(path), "/proc/%s/ns/pid", name);
	if (readlink(path, a, sizeof(a) - 1) < 0)
		return false;
	if (h->plain)
		snprintf(path, sizeof(path), "/proc/self/ns/pid");
	else
		snprintf(path, sizeof(path), "/proc/%d/ns/pid_for_children", h->pid);
	return readlink(path, b, sizeof(b) - 1) > 0 && strcmp(a, b) == 0;
}

static int scan(const struct harness *h, const char *text, bool zombies)
{
	_cleanup_closedir_ DIR *d = opendir("/proc");
	struct dirent *de;
	int n = 0;

	while ((de = readdir(d))) {
		_cleanup_buf_ struct buf b = { 0 };
		char path[300];

		if (de->d_name[0] < '0' || de->d_name[0] > '9' || !same_space(h, de->d_name))
			continue;
		snprintf(path, sizeof(path), "/proc/%s/%s", de->d_name,
			 zombies ? "stat" : "cmdline");
		if (fd_read_file(path, &b, 65536, NULL) < 0 || !b.len)
			continue;
		if (zombies) {
			const char *after = strrchr(b.data, ')');

			n += after && after[2] == 'Z';
			continue;
		}
		for (size_t i = 0; i + 1 < b.len; i++)
			if (!b.data[i])
				b.data[i] = ' ';
		n += strstr(b.data, text) != NULL;
	}
	return n;
}

int harness_count(const struct harness *h, const char *text)
{
	return scan(h, text, false);
}

int harness_zombies(const struct harness *h)
{
	return scan(h, "", true);
}
