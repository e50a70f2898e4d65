/*
 * The namespaces are built in a helper process that unshares, empties its root and waits to be
 * killed while we open /proc/PID/ns/…; the descriptors keep them alive. Entering them costs
 * four setns(2), however many mounts the host has, and a VMM gets a root directory in which no
 * host file exists, so there is nothing that a chroot escape could reach.
 *
 * No pid namespace: a live fork's children must outlive the process they were forked from, and a
 * namespace's first process takes all others with it. Without /proc and with a uid of its own a
 * VMM can neither see nor signal others.
 */
#include "broker/jail.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"

#define VMM_NOFILE 1024
#define VMM_OOM_SCORE_ADJ "300" /* before the daemon, after nobody of the host's own */

static const struct ns {
	const char *name;
	int flag;
} namespaces[JAIL_NS_MAX] = {
	{ "mnt", CLONE_NEWNS },
	{ "net", CLONE_NEWNET },
	{ "ipc", CLONE_NEWIPC },
	{ "uts", CLONE_NEWUTS },
};

/* An empty tmpfs, read-only, as the only mount there is. */
static int empty_root(void)
{
	if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
	    mount("cloche-jail", "/proc", "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC,
		  "size=4k,nr_inodes=4,mode=0555") < 0 ||
	    chdir("/proc") < 0 || syscall(SYS_pivot_root, ".", ".") < 0 ||
	    umount2(".", MNT_DETACH) < 0 || chdir("/") < 0)
		return -errno;
	return mount(NULL, "/", NULL,
		     MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) < 0
		       ? -errno
		       : 0;
}

/* The helper process: makes the namespaces, says how it went, waits for its end. */
_Noreturn static void helper(bool with_root, int report)
{
	int flags = 0, r = 0;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (int i = with_root ? 0 : 1; i < JAIL_NS_MAX; i++)
		flags |= namespaces[i].flag;
	if (unshare(flags) < 0)
		r = -errno;
	if (r == 0 && sethostname("vmm", 3) < 0)
		r = -errno;
	if (r == 0 && with_root)
		r = empty_root();
	if (fd_write_full(report, &r, sizeof(r)) < 0)
		_exit(1);
	for (;;)
		pause();
}

static int take_namespaces(struct jail *j, pid_t pid, bool with_root, struct err *e)
{
	char path[64];

	for (int i = with_root ? 0 : 1; i < JAIL_NS_MAX; i++) {
		snprintf(path, sizeof(path), "/proc/%d/ns/%s", (int)pid, namespaces[i].name);
		j->ns[i] = open(path, O_RDONLY | O_CLOEXEC);
		if (j->ns[i] < 0)
			return err_errno(e, errno, "open %s", path);
	}
	return 0;
}

int jail_open(struct jail *j, bool with_root, struct err *e)
{
	_cleanup_close_ int rd = -1, wr = -1;
	int p[2], r = 0, ret;
	pid_t pid;

	*j = (struct jail)JAIL_NONE;
	if (pipe2(p, O_CLOEXEC) < 0)
		return err_errno(e, errno, "make the jail");
	rd = p[0];
	wr = p[1];
	pid = fork();
	if (pid < 0)
		return err_errno(e, errno, "make the jail");
	if (pid == 0)
		helper(with_root, wr);
	close_fd(&wr);
	if (fd_read_full(rd, &r, sizeof(r)) != (ssize_t)sizeof(r))
		ret = err_set(e, "system", EIO, "make the jail: its helper died");
	else if (r < 0)
		ret = err_errno(e, -r, "make the jail's namespaces");
	else
		ret = take_namespaces(j, pid, with_root, e);
	kill(pid, SIGKILL);
	while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
		;
	if (ret < 0)
		jail_close(j);
	return ret;
}

void jail_close(struct jail *j)
{
	for (int i = 0; i < JAIL_NS_MAX; i++)
		close_fd(&j->ns[i]);
}

static int write_oom_score(const struct jail_spec *s)
{
	_cleanup_close_ int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);

	(void)s;
	if (fd < 0)
		return -errno;
	return fd_write_full(fd, VMM_OOM_SCORE_ADJ, sizeof(VMM_OOM_SCORE_ADJ) - 1);
}

/* Default dispositions; only SIGPIPE stays ignored, so that a full log or a gone peer is EPIPE. */
static int reset_signals(const struct jail_spec *s)
{
	sigset_t none;

	(void)s;
	for (int sig = 1; sig < NSIG; sig++)
		if (sig != SIGKILL && sig != SIGSTOP)
			signal(sig, sig == SIGPIPE ? SIG_IGN : SIG_DFL);
	sigemptyset(&none);
	return sigprocmask(SIG_SETMASK, &none, NULL) < 0 || setsid() < 0 ? -errno : 0;
}

/*
 * 0 and 1 are /dev/null, 2 the log, 3 the listener; everything else closes on exec. jail_exec()
 * has moved our own descriptors above them.
 */
static int place_fds(const struct jail_spec *s)
{
	_cleanup_close_ int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	if (null < 0 || dup2(null, 0) < 0 || dup2(null, 1) < 0 || dup2(s->log, 2) < 0 ||
	    dup2(s->listen, 3) < 0)
		return -errno;
	return close_range(4, ~0U, CLOSE_RANGE_CLOEXEC) < 0 ? -errno : 0;
}

static int enter_namespaces(const struct jail_spec *s)
{
	for (int i = JAIL_NS_MAX - 1; i >= 0; i--)
		if (s->jail->ns[i] >= 0 && setns(s->jail->ns[i], namespaces[i].flag) < 0)
			return -errno;
	return chdir("/") < 0 ? -errno : 0;
}

static int set_limits(const struct jail_spec *s)
{
	const struct rlimit nofile = { VMM_NOFILE, VMM_NOFILE }, core = { 0, 0 };

	(void)s;
	umask(077);
	return setrlimit(RLIMIT_NOFILE, &nofile) < 0 || setrlimit(RLIMIT_CORE, &core) < 0 ? -errno
											  : 0;
}

static int drop_privileges(const struct jail_spec *s)
{
	if (s->keep_user)
		return 0;
	for (int cap = 0; cap < 64; cap++)
		if (prctl(PR_CAPBSET_DROP, cap) < 0 && errno != EINVAL)
			return -errno;
	if (setgroups(0, NULL) < 0 || setresgid(s->gid, s->gid, s->gid) < 0 ||
	    setresuid(s->uid, s->uid, s->uid) < 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		return -errno;
	return 0;
}

static int run_program(const struct jail_spec *s)
{
	char *argv[] = { (char *)(uintptr_t)s->argv0, NULL }, *env[] = { NULL };

	syscall(SYS_execveat, s->exe, "", argv, env, AT_EMPTY_PATH);
	return -errno;
}

static const struct step {
	const char *name;
	int (*run)(const struct jail_spec *);
} steps[] = {
	{ "set oom_score_adj", write_oom_score },
	{ "reset signals", reset_signals },
	{ "place descriptors", place_fds },
	{ "enter namespaces", enter_namespaces },
	{ "set limits", set_limits },
	{ "drop privileges", drop_privileges },
	{ "run the program", run_program },
};

void jail_exec(const struct jail_spec *given, int report)
{
	struct jail_spec s = *given;
	struct jail_failure f = { "move descriptors", 0 };
	int r;

	report = fcntl(report, F_DUPFD_CLOEXEC, 10);
	s.exe = fcntl(s.exe, F_DUPFD_CLOEXEC, 10);
	s.log = fcntl(s.log, F_DUPFD_CLOEXEC, 10);
	s.listen = fcntl(s.listen, F_DUPFD_CLOEXEC, 10);
	r = report < 0 || s.exe < 0 || s.log < 0 || s.listen < 0 ? -errno : 0;
	for (size_t i = 0; i < ARRAY_SIZE(steps) && r == 0; i++) {
		snprintf(f.step, sizeof(f.step), "%s", steps[i].name);
		r = steps[i].run(&s);
	}
	f.errnum = -r;
	_exit(fd_write_full(report, &f, sizeof(f)) < 0 ? 126 : 127);
}
