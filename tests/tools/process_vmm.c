/*
 * A stand-in for cloche-vmm in tests that have no KVM: it speaks the control protocol of
 * proto/vmm.h, and its "guest" is the real agent as the first process of fresh pid, mount, UTS
 * and IPC namespaces with a root of its own (a tmpfs into which the host's programs are bound
 * read-only). Run by cloched as `--vmm process_vmm --no-jail`; needs root.
 *
 * A word `process_vmm=WHAT` on the kernel command line (from the image's manifest) makes it
 * misbehave: panic (a kernel that panics at once), hang (an agent that never listens), crash (the
 * VMM aborts), poweroff (the guest ends before its agent listens).
 *
 * One thread a control connection, two a stream; main() is the guest's parent. State is behind one
 * lock; its end is broadcast.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/log.h"
#include "proto/frame.h"
#include "proto/vmm.h"

#define LINGER_MS 1000
#define AGENT_LISTEN_FD 3

enum state { CREATED, CONFIGURED, RUNNING, STOPPED };

static const char *const state_names[] = { "created", "configured", "running", "stopped" };

static struct {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	enum state state;
	const char *reason;
	char cmdline[4096];
	int memory_mib, vcpus;
	int agent_listen; /* where the agent accepts */
	struct sockaddr_un agent_addr;
	socklen_t agent_addr_len;
	pid_t agent;
	char serial[65536];
	size_t serial_len;
	uint64_t started_ns;
	bool start_asked, start_done;
	int start_result;
} vm = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };

/* ---- the guest's root ---- */

static void put_file(const char *path, const char *text)
{
	_cleanup_close_ int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

	if (fd < 0 || fd_write_full(fd, text, strlen(text)) < 0)
		log_warn("write %s: %m", path);
}

static void bind_in(const char *what, bool writable)
{
	char target[256];
	struct stat st;

	if (lstat(what, &st) < 0)
		return;
	snprintf(target, sizeof(target), ".%s", what);
	if (S_ISLNK(st.st_mode)) {
		char link[256];
		ssize_t n = readlink(what, link, sizeof(link) - 1);

		if (n > 0) {
			link[n] = '\0';
			if (symlink(link, target) < 0)
				log_warn("link %s: %m", target);
		}
		return;
	}
	if (S_ISDIR(st.st_mode))
		mkdir(target, 0755);
	else
		close(open(target, O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
	if (mount(what, target, NULL, MS_BIND | MS_REC, NULL) < 0 ||
	    (!writable &&
	     mount(NULL, target, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_REC, NULL) < 0))
		log_warn("bind %s: %m", what);
}

static void make_etc(void)
{
	mkdir("./etc", 0755);
	put_file("./etc/passwd", "root:x:0:0:root:/root:/bin/sh\n"
				 "agent:x:1000:1000:agent:/home/agent:/bin/sh\n"
				 "nobody:x:65534:65534:nobody:/:/bin/false\n");
	put_file("./etc/group", "root:x:0:\nagent:x:1000:\nnogroup:x:65534:\n");
	put_file("./etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n");
	bind_in("/etc/alternatives", false);
	bind_in("/etc/ld.so.cache", false);
	bind_in("/etc/ssl", false);
}

/* A tmpfs with the host's programs in it becomes "/". Runs as the new pid namespace's first. */
static int make_root(void)
{
	static const char *const programs[] = { "/usr", "/bin", "/sbin", "/lib", "/lib64" };
	static const char *const devices[] = { "/dev/null",   "/dev/zero",    "/dev/full",
					       "/dev/random", "/dev/urandom", "/dev/tty" };

	umask(022); /* the daemon's is stricter; a guest's folders are for its users */
	if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
	    mount("guest", "/mnt", "tmpfs", MS_NOSUID, "size=256m,mode=0755") < 0 ||
	    chdir("/mnt") < 0)
		return -errno;
	for (size_t i = 0; i < ARRAY_SIZE(programs); i++)
		bind_in(programs[i], false);
	make_etc();
	mkdir("./dev", 0755);
	for (size_t i = 0; i < ARRAY_SIZE(devices); i++)
		bind_in(devices[i], true);
	mkdir("./dev/pts", 0755);
	if (mount("devpts", "./dev/pts", "devpts", 0, "newinstance,ptmxmode=0666,mode=620") == 0 &&
	    symlink("pts/ptmx", "./dev/ptmx") < 0)
		log_warn("ptmx: %m");
	mkdir("./proc", 0755);
	mkdir("./tmp", 01777);
	chmod("./tmp", 01777);
	mkdir("./root", 0700);
	mkdir("./run", 0755);
	mkdir("./home", 0755);
	mkdir("./home/agent", 0755);
	mkdir("./workspace", 0755);
	if (chown("./home/agent", 1000, 1000) < 0 || chown("./workspace", 1000, 1000) < 0 ||
	    mount("proc", "./proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) < 0 ||
	    syscall(SYS_pivot_root, ".", ".") < 0 || umount2(".", MNT_DETACH) < 0 || chdir("/") < 0)
		return -errno;
	return 0;
}

/* ---- the guest ---- */

_Noreturn static void agent_child(int exe, int serial)
{
	char *argv[] = { (char *)(uintptr_t) "cloche-agent", (char *)(uintptr_t) "--no-init",
			 (char *)(uintptr_t) "--listen-fd", (char *)(uintptr_t) "3", NULL };
	char *env[] = { (char *)(uintptr_t) "PATH=/usr/bin:/bin:/usr/sbin:/sbin", NULL };
	int r;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	exe = fcntl(exe, F_DUPFD_CLOEXEC, 20);
	serial = fcntl(serial, F_DUPFD_CLOEXEC, 20);
	if (dup2(vm.agent_listen, AGENT_LISTEN_FD) < 0 || dup2(serial, 1) < 0 ||
	    dup2(serial, 2) < 0)
		_exit(120);
	close_range(4, ~0U, CLOSE_RANGE_CLOEXEC);
	signal(SIGPIPE, SIG_DFL);
	r = make_root();
	if (r < 0) {
		log_error("root of the guest: %s", strerror(-r));
		_exit(121);
	}
	syscall(SYS_execveat, exe, "", argv, env, AT_EMPTY_PATH);
	log_error("run the agent: %m");
	_exit(122);
}

/* With vm.lock held. */
static void guest_ended(const char *reason)
{
	if (vm.state == STOPPED)
		return;
	vm.state = STOPPED;
	vm.reason = reason;
	pthread_cond_broadcast(&vm.changed);
}

static void add_serial(const char *p, size_t n)
{
	size_t room = sizeof(vm.serial) - 1 - vm.serial_len;

	if (n > room)
		n = room;
	memcpy(vm.serial + vm.serial_len, p, n);
	vm.serial_len += n;
}

static void *serial_thread(void *p)
{
	int fd = (int)(intptr_t)p;
	char b[4096];
	ssize_t n;

	while ((n = read(fd, b, sizeof(b))) > 0) {
		pthread_mutex_lock(&vm.lock);
		add_serial(b, (size_t)n);
		pthread_mutex_unlock(&vm.lock);
	}
	close(fd);
	return NULL;
}

static void *agent_thread(void *p)
{
	int status;

	(void)p;
	while (waitpid(vm.agent, &status, 0) < 0 && errno == EINTR)
		;
	pthread_mutex_lock(&vm.lock);
	guest_ended(WIFEXITED(status) && WEXITSTATUS(status) >= 120 ? "error" : "poweroff");
	pthread_mutex_unlock(&vm.lock);
	return NULL;
}

static int thread(void *(*fn)(void *), void *arg)
{
	pthread_t t;
	int r = pthread_create(&t, NULL, fn, arg);

	if (r == 0)
		pthread_detach(t);
	return -r;
}

static int agent_listener(void)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };

	vm.agent_listen = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	vm.agent_addr_len = sizeof(vm.agent_addr);
	/* An address of the family alone: the kernel picks an abstract name. */
	if (vm.agent_listen < 0 ||
	    bind(vm.agent_listen, (struct sockaddr *)&a, sizeof(sa_family_t)) ||
	    listen(vm.agent_listen, 128) < 0 ||
	    getsockname(vm.agent_listen, (struct sockaddr *)&vm.agent_addr, &vm.agent_addr_len) < 0)
		return -errno;
	return 0;
}

static int start_agent(void)
{
	int exe = open(PROCESS_VMM_AGENT, O_PATH | O_CLOEXEC), p[2], r = agent_listener();

	if (r < 0 || exe < 0 || pipe2(p, O_CLOEXEC) < 0)
		return r < 0 ? r : -errno;
	vm.agent = (pid_t)syscall(
		SYS_clone, SIGCHLD | CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC, NULL,
		NULL, NULL, NULL);
	if (vm.agent < 0)
		return -errno;
	if (vm.agent == 0)
		agent_child(exe, p[1]);
	close(exe);
	close(p[1]);
	r = thread(serial_thread, (void *)(intptr_t)p[0]);
	return r < 0 ? r : thread(agent_thread, NULL);
}

/* With vm.lock held. */
static int start_guest(void)
{
	static const char panic[] = "[    0.1] Kernel panic - not syncing: No working init found.\n"
				    "[    0.1] ---[ end Kernel panic ]---\n";

	vm.state = RUNNING;
	vm.started_ns = clock_mono_ns();
	if (strstr(vm.cmdline, "process_vmm=crash"))
		abort();
	if (strstr(vm.cmdline, "process_vmm=hang"))
		return 0;
	if (strstr(vm.cmdline, "process_vmm=panic")) {
		add_serial(panic, sizeof(panic) - 1);
		guest_ended("reset");
		return 0;
	}
	if (strstr(vm.cmdline, "process_vmm=poweroff")) {
		guest_ended("poweroff");
		return 0;
	}
	return start_agent();
}

/* ---- streams ---- */

struct relay {
	int a, b;
};

/* Copies from one to the other until end of file, then ends the other's input. */
static void *relay_thread(void *p)
{
	struct relay r = *(struct relay *)p;
	char buf[65536];
	ssize_t n;

	free(p);
	while ((n = read(r.a, buf, sizeof(buf))) > 0)
		if (fd_write_full(r.b, buf, (size_t)n) < 0)
			break;
	shutdown(r.a, SHUT_RD);
	shutdown(r.b, SHUT_WR);
	close(r.a);
	close(r.b);
	return NULL;
}

static int relay(int a, int b)
{
	struct relay *r = malloc(sizeof(*r));

	if (!r)
		return -ENOMEM;
	*r = (struct relay){ dup(a), dup(b) };
	return thread(relay_thread, r);
}

static const char *connect_guest(int fd)
{
	_cleanup_close_ int s = -1;

	if (vm.state != RUNNING || !vm.agent)
		return vm.state == RUNNING ? "connection_refused" : "wrong_state";
	s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (s < 0 || connect(s, (struct sockaddr *)&vm.agent_addr, vm.agent_addr_len) < 0)
		return "connection_refused";
	return relay(fd, s) < 0 || relay(s, fd) < 0 ? "timeout" : NULL;
}

/* ---- verbs ---- */

static json_t *failure(const char *code)
{
	return json_pack("{s:b,s:{s:s,s:s}}", "ok", 0, "error", "code", code, "message", code);
}

static json_t *success(void)
{
	return json_pack("{s:b}", "ok", 1);
}

static json_t *do_configure(const json_t *req, size_t nfds)
{
	size_t want = 2 + (size_t)json_get_int(req, "initrds", 0) +
		      json_array_size(json_object_get(req, "disks"));

	if (vm.state != CREATED)
		return failure("wrong_state");
	if (nfds != want)
		return failure("bad_request");
	vm.vcpus = (int)json_get_int(req, "vcpus", 0);
	vm.memory_mib = (int)json_get_int(req, "memoryMiB", 0);
	snprintf(vm.cmdline, sizeof(vm.cmdline), "%s", json_get_str(req, "cmdline", ""));
	vm.state = CONFIGURED;
	return success();
}

static json_t *do_stats(void)
{
	struct rusage u;
	json_t *list = json_array();
	int64_t ns = 0;

	/* The agent is waited for at its end only; until then its time shows in its /proc. */
	if (getrusage(RUSAGE_SELF, &u) == 0)
		ns = (int64_t)u.ru_utime.tv_sec * 1000000000 + u.ru_utime.tv_usec * 1000;
	for (int i = 0; i < vm.vcpus; i++)
		json_array_append_new(list, json_integer(i ? 0 : ns));
	return json_pack("{s:b,s:s,s:I,s:I,s:o,s:i}", "ok", 1, "state", state_names[vm.state],
			 "uptimeMs",
			 (json_int_t)((clock_mono_ns() - vm.started_ns) / NSEC_PER_MSEC), "exits",
			 (json_int_t)0, "cpuNs", list, "memoryMiB", vm.memory_mib);
}

static json_t *do_wait(void)
{
	while (vm.state != STOPPED)
		pthread_cond_wait(&vm.changed, &vm.lock);
	return json_pack("{s:b,s:s,s:s}", "ok", 1, "state", "stopped", "reason", vm.reason);
}

static json_t *do_stop(void)
{
	if (vm.agent > 0)
		kill(vm.agent, SIGKILL);
	guest_ended("stop");
	return success();
}

/* Has main() do it: a guest dies with the thread that made it. */
static json_t *do_start(void)
{
	vm.start_asked = true;
	pthread_cond_broadcast(&vm.changed);
	while (!vm.start_done)
		pthread_cond_wait(&vm.changed, &vm.lock);
	if (vm.start_result == 0)
		return success();
	log_error("start: %s", strerror(-vm.start_result));
	return failure("kvm_failed");
}

static json_t *handle(const json_t *req, const int *fds, size_t nfds)
{
	const char *verb = json_get_str(req, "verb", ""), *code;

	if (strcmp(verb, "configure") == 0)
		return do_configure(req, nfds);
	if (strcmp(verb, "start") == 0) {
		if (vm.state != CONFIGURED)
			return failure("wrong_state");
		return do_start();
	}
	if (strcmp(verb, "connect") == 0) {
		if (nfds != 1 || json_get_int(req, "port", 0) != AGENT_VSOCK_PORT)
			return failure("connection_refused");
		code = connect_guest(fds[0]);
		return code ? failure(code) : success();
	}
	if (strcmp(verb, "serial") == 0)
		return json_pack("{s:b,s:s,s:i}", "ok", 1, "text", vm.serial, "dropped", 0);
	if (strcmp(verb, "stats") == 0)
		return do_stats();
	if (strcmp(verb, "wait") == 0)
		return do_wait();
	if (strcmp(verb, "stop") == 0)
		return do_stop();
	return failure("bad_request");
}

static void *connection_thread(void *p)
{
	int sock = (int)(intptr_t)p;

	for (;;) {
		_cleanup_json_ json_t *req = NULL, *reply = NULL;
		_cleanup_free_ char *text = NULL, *buf = malloc(VMM_MSG_MAX);
		int fds[FD_PASS_MAX];
		size_t nfds = ARRAY_SIZE(fds);
		ssize_t n = buf ? fd_recv_msg(sock, buf, VMM_MSG_MAX, fds, &nfds) : -ENOMEM;

		if (n <= 0)
			break;
		req = json_parse(buf, (size_t)n, NULL);
		pthread_mutex_lock(&vm.lock);
		reply = req ? handle(req, fds, nfds) : failure("bad_request");
		pthread_mutex_unlock(&vm.lock);
		for (size_t i = 0; i < nfds; i++)
			close(fds[i]);
		text = json_dumps(reply, JSON_COMPACT);
		if (!text || fd_send_msg(sock, text, strlen(text), NULL, 0) < 0)
			break;
	}
	close(sock);
	return NULL;
}

static void *accept_thread(void *p)
{
	(void)p;
	for (;;) {
		int s = accept4(VMM_LISTEN_FD, NULL, NULL, SOCK_CLOEXEC);

		if (s >= 0 && thread(connection_thread, (void *)(intptr_t)s) < 0)
			close(s);
		else if (s < 0 && errno != EINTR && errno != ECONNABORTED)
			return NULL;
	}
}

int main(void)
{
	struct timespec linger = { .tv_nsec = LINGER_MS % 1000 * 1000000L,
				   .tv_sec = LINGER_MS / 1000 };

	log_init("process_vmm", LOG_INFO);
	signal(SIGPIPE, SIG_IGN);
	fcntl(VMM_LISTEN_FD, F_SETFD, FD_CLOEXEC);
	if (thread(accept_thread, NULL) < 0)
		return 1;
	pthread_mutex_lock(&vm.lock);
	while (vm.state != STOPPED) {
		if (vm.start_asked && !vm.start_done) {
			vm.start_result = start_guest();
			vm.start_done = true;
			pthread_cond_broadcast(&vm.changed);
		} else {
			pthread_cond_wait(&vm.changed, &vm.lock);
		}
	}
	pthread_mutex_unlock(&vm.lock);
	nanosleep(&linger, NULL); /* as the real one: time for wait and serial callers */
	return 0;
}
