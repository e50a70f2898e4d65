/*
 * cloche-agent: PID 1 of a guest, or (--no-init) the same server in a container of a test.
 *
 * One thread and one event loop. In a guest the order is for speed: the vsock socket listens in
 * the middle of loading modules, so that the host's first connection waits in its queue; then come
 * the root disk, the rest of the system, and the loop.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <linux/vm_sockets.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/sysinfo.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "agent/agent.h"
#include "agent/boot.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/str.h"
#include "proto/agent.h"
#include "proto/frame.h"

#define OUTPUT_MIN (16u << 20)
#define OUTPUT_MAX (256u << 20)
#define BACKLOG 128

struct options {
	bool no_init;
	const char *unix_path, *cgroup, *run_dir;
	int listen_fd;
};

static int listen_vsock(struct err *e)
{
	struct sockaddr_vm sa = { .svm_family = AF_VSOCK,
				  .svm_port = AGENT_VSOCK_PORT,
				  .svm_cid = VMADDR_CID_ANY };
	_cleanup_close_ int fd = socket(AF_VSOCK, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd < 0 || bind(fd, (struct sockaddr *)&sa, sizeof(sa)) < 0 || listen(fd, BACKLOG) < 0)
		return err_errno(e, errno, "listen on vsock port %d", AGENT_VSOCK_PORT);
	return steal_fd(&fd);
}

static int listen_unix(const char *path, struct err *e)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	_cleanup_close_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (strlen(path) >= sizeof(sa.sun_path))
		return err_errno(e, ENAMETOOLONG, "listen on %s", path);
	memcpy(sa.sun_path, path, strlen(path) + 1);
	if (fd < 0 || bind(fd, (struct sockaddr *)&sa, sizeof(sa)) < 0 || listen(fd, BACKLOG) < 0)
		return err_errno(e, errno, "listen on %s", path);
	return steal_fd(&fd);
}

/* The socket listens as soon as there are vsocks at all, which is before any transport can bring a
 * connection: a host that comes early waits for us and is not refused. */
static void on_module(void *ctx, const char *module)
{
	static const char name[] = "/vsock.ko";
	size_t n = strlen(module);
	int *fd = ctx;

	if (*fd < 0 && n >= sizeof(name) - 1 && strcmp(module + n - (sizeof(name) - 1), name) == 0)
		*fd = listen_vsock(NULL); /* else tried again, and reported, when all are loaded */
}

static int listen_on(const struct options *o, struct err *e)
{
	if (o->unix_path)
		return listen_unix(o->unix_path, e);
	if (o->listen_fd < 0)
		return listen_vsock(e);
	if (fcntl(o->listen_fd, F_SETFD, FD_CLOEXEC) < 0 ||
	    fcntl(o->listen_fd, F_SETFL, O_NONBLOCK) < 0)
		return err_errno(e, errno, "listen on descriptor %d", o->listen_fd);
	return o->listen_fd;
}

/* What keeps the agent answering while commands use up everything. Without the rights for it (a
 * container) it works as well as it can. */
static void protect_self(void)
{
	struct rlimit files = { 65536, 65536 };
	int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);

	if (fd < 0 || write(fd, "-1000", 5) < 0)
		log_warn("oom_score_adj: %s", strerror(errno));
	close_fd(&fd);
	if (setpriority(PRIO_PROCESS, 0, -10) < 0)
		log_warn("priority: %s", strerror(errno));
	if (setrlimit(RLIMIT_NOFILE, &files) < 0)
		log_warn("file limit: %s", strerror(errno));
	prctl(PR_SET_DUMPABLE, 0);
	prctl(PR_SET_NAME, "cloche-agent");
}

static void on_signal(void *ctx, int fd, uint32_t events)
{
	struct agent *a = ctx;
	struct signalfd_siginfo si;
	struct err e = { 0 };

	(void)events;
	while (read(fd, &si, sizeof(si)) == (ssize_t)sizeof(si)) {
		if (si.ssi_signo == SIGCHLD)
			reap_children(a);
		else if (power_stop(a, 5000, &e) < 0)
			log_err(LOG_ERROR, &e, "stop");
	}
}

/* Children, and for the kernel's ctrl-alt-del and for people: SIGTERM, SIGINT and SIGPWR stop. */
static int watch_signals(struct agent *a, struct err *e)
{
	struct loop_source *src;
	sigset_t set;
	int fd;

	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGPWR);
	signal(SIGPIPE, SIG_IGN);
	sigprocmask(SIG_BLOCK, &set, NULL);
	fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (fd < 0)
		return err_errno(e, errno, "watch signals");
	return loop_add_fd(a->loop, fd, EPOLLIN, on_signal, a, &src, e);
}

/* Kept output may take an eighth of the memory. */
static size_t output_budget(void)
{
	struct sysinfo si;
	uint64_t bytes = 0;

	if (sysinfo(&si) == 0)
		bytes = (uint64_t)si.totalram * si.mem_unit / 8;
	return bytes < OUTPUT_MIN ? OUTPUT_MIN : bytes > OUTPUT_MAX ? OUTPUT_MAX : (size_t)bytes;
}

static int64_t uptime_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_BOOTTIME, &t);
	return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static int serve(struct agent *a, int listen_fd, struct err *e)
{
	int r = loop_new(&a->loop, e);

	if (r == 0)
		r = watch_signals(a, e);
	if (r == 0)
		r = server_listen(a, listen_fd, e);
	if (r == 0 && a->machine)
		log_info("ready %lld ms after the kernel's start, %lld ms of them here",
			 (long long)uptime_ms(), (long long)(uptime_ms() - a->started_ms));
	if (r == 0)
		r = loop_run(a->loop, e);
	return r;
}

static int usage(void)
{
	fputs("usage: cloche-agent [--no-init] [--listen-unix PATH | --listen-fd N]\n"
	      "                    [--cgroup CGROUP2-FOLDER] [--run-dir PATH]\n"
	      "Runs as PID 1 of a sandbox; --no-init leaves the machine as it is.\n",
	      stderr);
	return 2;
}

static int parse(int argc, char **argv, struct options *o)
{
	static const struct option longs[] = { { "no-init", no_argument, NULL, 'n' },
					       { "listen-unix", required_argument, NULL, 'u' },
					       { "listen-fd", required_argument, NULL, 'f' },
					       { "cgroup", required_argument, NULL, 'c' },
					       { "run-dir", required_argument, NULL, 'r' },
					       { 0 } };
	int64_t n;
	int c;

	while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		switch (c) {
		case 'n':
			o->no_init = true;
			break;
		case 'u':
			o->unix_path = optarg;
			break;
		case 'f':
			if (str_to_int(optarg, 3, 65535, &n) < 0)
				return -1;
			o->listen_fd = (int)n;
			break;
		case 'c':
			o->cgroup = optarg;
			break;
		case 'r':
			o->run_dir = optarg;
			break;
		default:
			return -1;
		}
	}
	return optind == argc ? 0 : -1;
}

int main(int argc, char **argv)
{
	struct options o = { .run_dir = "/run/cloche", .listen_fd = -1 };
	static struct agent a;
	struct err e = { 0 };
	int fd = -1, r;

	log_init("agent", LOG_INFO);
	a.started_ms = uptime_ms();
	/* The kernel gives PID 1 the words of its command line that it does not know. */
	if (getpid() != 1 || argc > 1)
		if (parse(argc, argv, &o) < 0 && getpid() != 1)
			return usage();
	a.machine = !o.no_init;
	a.run_dir = o.run_dir;
	if (a.machine)
		boot_early(on_module, &fd);
	if (fd < 0)
		fd = listen_on(&o, &e);
	if (fd < 0 && a.machine)
		boot_fail(&e);
	if (fd >= 0 && a.machine) {
		if (boot_root(&e) < 0)
			boot_fail(&e);
		boot_system();
		boot_grow_root();
		o.cgroup = "/sys/fs/cgroup";
	}
	protect_self();
	if (getpid() != 1)
		prctl(PR_SET_CHILD_SUBREAPER, 1);
	cgroup_setup(&a.cgroup, o.cgroup);
	a.output_max = output_budget();
	r = fd < 0 ? fd : serve(&a, fd, &e);
	if (r < 0 && a.machine)
		boot_fail(&e);
	if (r < 0)
		log_err(LOG_ERROR, &e, "agent");
	return r < 0 ? 1 : 0;
}
