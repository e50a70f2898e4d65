/*
 * clone3() puts the child in its cgroup at birth: moving it later would wait for a grace period of
 * the kernel (milliseconds), and a fork bomb could slip out between. The child then only makes
 * system calls until it executes. It becomes the user before it changes folder and looks for the
 * program, so that the kernel checks both with the user's rights.
 */
#include "agent/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent/agent.h"
#include "agent/users.h"
#include "base/cleanup.h"
#include "base/err.h"

#define NOFILE_SOFT 65536
#define NOFILE_HARD 524288
#define PATH_BYTES 4096
#define OOM_SCORE "500" /* users' commands die before the agent, whose score is -1000 */

enum stage { STAGE_SETUP, STAGE_USER, STAGE_CWD, STAGE_EXEC };

static void fail(int fd, enum stage stage, int errnum) __attribute__((noreturn));

static void fail(int fd, enum stage stage, int errnum)
{
	struct spawn_failure f = { .stage = stage, .errnum = errnum };
	ssize_t ignored = write(fd, &f, sizeof(f)); /* the agent also sees the exit */

	(void)ignored;
	_exit(127);
}

/* Puts fds[] at 0, 1, 2. First all of them above 2, so that none is overwritten before its turn. */
static int place_fds(const int fds[3])
{
	int high[3];

	for (int i = 0; i < 3; i++) {
		high[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 3);
		if (high[i] < 0)
			return -errno;
	}
	for (int i = 0; i < 3; i++)
		if (dup2(high[i], i) < 0)
			return -errno;
	return 0;
}

static void reset_signals(void)
{
	sigset_t none;

	for (int sig = 1; sig < NSIG; sig++)
		signal(sig, SIG_DFL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
}

/* What the agent has for itself and a command must not inherit. Where the kernel or a container
 * refuses, the command still runs. */
static void drop_privileged_traits(void)
{
	struct rlimit files = { NOFILE_SOFT, NOFILE_HARD }, core = { 0, RLIM_INFINITY };
	int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);

	if (fd >= 0) {
		ssize_t ignored = write(fd, OOM_SCORE, strlen(OOM_SCORE));

		(void)ignored;
		close(fd);
	}
	setpriority(PRIO_PROCESS, 0, 0);
	setrlimit(RLIMIT_NOFILE, &files);
	setrlimit(RLIMIT_CORE, &core);
	umask(022);
}

static int enter_cwd(const char *cwd, const struct user *u)
{
	if (cwd)
		return chdir(cwd) < 0 ? -errno : 0;
	if (chdir("/workspace") < 0 && chdir(u->home) < 0 && chdir("/") < 0)
		return -errno;
	return 0;
}

static const char *env_get(char *const *env, const char *name)
{
	size_t n = strlen(name);

	for (; *env; env++)
		if (strncmp(*env, name, n) == 0 && (*env)[n] == '=')
			return *env + n + 1;
	return NULL;
}

/*
 * Executes argv as execvpe() does, but with the PATH of env, and without handing a file in no
 * executable format to a shell: "argv" promises that no shell is involved. Returns errno.
 */
static int exec_search(char *const *argv, char *const *env)
{
	const char *path = env_get(env, "PATH"), *name = argv[0];
	int err = ENOENT;

	if (strchr(name, '/')) {
		execve(name, argv, env);
		return errno;
	}
	while (path && *name) {
		const char *end = strchrnul(path, ':');
		char full[PATH_BYTES];
		int n = snprintf(full, sizeof(full), "%.*s/%s", (int)(end - path), path, name);

		if (end == path) /* an empty element would be the current folder: not for us */
			n = -1;
		if (n > 0 && (size_t)n < sizeof(full)) {
			execve(full, argv, env);
			if (errno == EACCES || errno == ENOEXEC)
				err = errno;
			else if (errno != ENOENT && errno != ENOTDIR)
				return errno;
		}
		if (!*end)
			break;
		path = end + 1;
	}
	return err;
}

static void child(const struct spawn *s, int failed_fd) __attribute__((noreturn));

static void child(const struct spawn *s, int failed_fd)
{
	int r;

	reset_signals();
	if (setsid() < 0)
		fail(failed_fd, STAGE_SETUP, errno);
	r = place_fds(s->fds);
	if (r < 0)
		fail(failed_fd, STAGE_SETUP, -r);
	if (s->tty && ioctl(0, TIOCSCTTY, 0) < 0)
		fail(failed_fd, STAGE_SETUP, errno);
	drop_privileged_traits();
	r = user_become(s->user);
	if (r < 0)
		fail(failed_fd, STAGE_USER, -r);
	r = enter_cwd(s->cwd, s->user);
	if (r < 0)
		fail(failed_fd, STAGE_CWD, -r);
	fail(failed_fd, STAGE_EXEC, exec_search(s->argv, s->env));
}

/* fork(), into the cgroup when there is one. */
static pid_t fork_into(int cgroup)
{
	struct clone_args args = { .exit_signal = SIGCHLD };

	if (cgroup < 0)
		return fork();
	args.flags = CLONE_INTO_CGROUP;
	args.cgroup = (uint64_t)cgroup;
	return (pid_t)syscall(SYS_clone3, &args, sizeof(args));
}

pid_t spawn_start(const struct spawn *s, int *failed_fd, struct err *e)
{
	_cleanup_close_ int rd = -1, wr = -1;
	int p[2];
	pid_t pid;

	if (pipe2(p, O_CLOEXEC) < 0)
		return agent_errno(e, errno, "start a command");
	rd = p[0];
	wr = p[1];
	pid = fork_into(s->cgroup);
	if (pid == 0)
		child(s, wr);
	if (pid < 0 && errno == EAGAIN) {
		err_set(e, "too_many_processes", EAGAIN,
			"the sandbox runs as many processes as it may");
		err_fix(e, "End some processes first: kill or forget running commands.");
		return -EAGAIN;
	}
	if (pid < 0)
		return agent_errno(e, errno, "start a command");
	if (fcntl(rd, F_SETFL, O_NONBLOCK) < 0) {
		int r = agent_errno(e, errno, "start a command");

		kill(pid, SIGKILL);
		return r;
	}
	*failed_fd = steal_fd(&rd);
	return pid;
}

static int explain_exec(int errnum, const char *program, struct err *e)
{
	switch (errnum) {
	case ENOENT:
	case ENOTDIR:
		err_set(e, "command_not_found", errnum, "there is no program %.200s", program);
		err_fix(e, "Check the name; argv is run without a shell, from the PATH of env.");
		return -errnum;
	case EACCES:
	case ENOEXEC:
	case EPERM:
	case EISDIR:
	case ELIBBAD:
		err_set(e, "command_not_executable", errnum, "%.200s cannot be run: %s", program,
			strerror(errnum));
		err_fix(e, "Make it executable (chmod +x), with a #! line if it is a script.");
		return -errnum;
	case E2BIG:
		return err_set(e, "too_large", errnum, "argv and env are too large for the kernel");
	default:
		return agent_errno(e, errnum, "run %.200s", program);
	}
}

int spawn_explain(const struct spawn_failure *f, const char *program, const char *cwd,
		  struct err *e)
{
	switch ((enum stage)f->stage) {
	case STAGE_CWD:
		err_set(e, "cwd_not_found", f->errnum, "cannot enter the working directory %s: %s",
			cwd ? cwd : "/workspace", strerror(f->errnum));
		err_fix(e, "Create it first, or give another cwd.");
		return -f->errnum;
	case STAGE_EXEC:
		return explain_exec(f->errnum, program, e);
	case STAGE_SETUP:
	case STAGE_USER:
		break;
	}
	return agent_errno(e, f->errnum, "prepare the command");
}
