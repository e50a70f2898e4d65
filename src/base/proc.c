/*
 * fork + exec with two pipes, read by poll(2) until both close or the deadline passes. A third,
 * close-on-exec pipe tells why exec failed. The child leads its own process group so that a
 * timeout ends its helpers too.
 */
#include "base/proc.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"

#define LAST_LINE 256

struct run {
	const struct proc_spec *spec;
	pid_t pid;
	int out, err; /* our ends; out is -1 when stdout goes with stderr */
	struct buf line;
	char last[LAST_LINE]; /* last non-empty line of stderr */
	size_t out_got;
};

static void child(const struct proc_spec *s, int out, int errfd, int why)
{
	int null = open("/dev/null", O_RDONLY);
	sigset_t none;
	int en;

	setpgid(0, 0);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	signal(SIGPIPE, SIG_DFL);
	if (null < 0 || dup2(null, 0) < 0 || dup2(out >= 0 ? out : errfd, 1) < 0 ||
	    dup2(errfd, 2) < 0)
		goto fail;
	if (s->cwd && chdir(s->cwd) < 0)
		goto fail;
	if (why != 3) {
		if (dup2(why, 3) < 0)
			goto fail;
		why = 3;
	}
	fcntl(why, F_SETFD, FD_CLOEXEC);
	close_range(4, ~0U, 0);
	if (s->env)
		execvpe(s->argv[0], (char *const *)(uintptr_t)s->argv,
			(char *const *)(uintptr_t)s->env);
	else
		execvp(s->argv[0], (char *const *)(uintptr_t)s->argv);
fail:
	en = errno;
	if (write(why, &en, sizeof(en)) < 0)
		_exit(126);
	_exit(127);
}

static void line_done(struct run *r)
{
	if (r->line.len)
		snprintf(r->last, sizeof(r->last), "%s", r->line.data);
	if (r->spec->on_line)
		r->spec->on_line(r->spec->ctx, r->line.len ? r->line.data : "");
	buf_clear(&r->line);
}

static int take_err(struct run *r)
{
	char b[4096];
	ssize_t n = read(r->err, b, sizeof(b));

	if (n < 0)
		return errno == EINTR ? 0 : -errno;
	if (n == 0) {
		if (r->line.len)
			line_done(r);
		close_fd(&r->err);
		return 0;
	}
	for (ssize_t i = 0; i < n; i++) {
		if (b[i] == '\n' || r->line.len >= 8192)
			line_done(r);
		if (b[i] != '\n' && b[i] != '\0' && buf_add(&r->line, &b[i], 1) < 0)
			return -ENOMEM;
	}
	return 0;
}

static int take_out(struct run *r)
{
	size_t max = r->spec->out_max ? r->spec->out_max : 1 << 20;
	char b[16384];
	ssize_t n = read(r->out, b, sizeof(b));

	if (n < 0)
		return errno == EINTR ? 0 : -errno;
	if (n == 0) {
		close_fd(&r->out);
		return 0;
	}
	r->out_got += (size_t)n;
	if (r->out_got > max)
		return -EFBIG;
	return buf_add(r->spec->out, b, (size_t)n);
}

/* Reads both pipes to their end. -ETIME when the deadline passes first. */
static int pump(struct run *r)
{
	uint64_t end = clock_mono_ns() + r->spec->timeout_s * NSEC_PER_SEC;

	while (r->out >= 0 || r->err >= 0) {
		struct pollfd p[2] = { { .fd = r->out, .events = POLLIN },
				       { .fd = r->err, .events = POLLIN } };
		int wait_ms = -1, ret = 0;

		if (r->spec->timeout_s) {
			uint64_t now = clock_mono_ns();

			if (now >= end)
				return -ETIME;
			wait_ms = (int)((end - now) / NSEC_PER_MSEC) + 1;
		}
		if (poll(p, 2, wait_ms) < 0 && errno != EINTR)
			return -errno;
		if (p[0].revents)
			ret = take_out(r);
		if (ret == 0 && p[1].revents)
			ret = take_err(r);
		if (ret < 0)
			return ret;
	}
	return 0;
}

static int verdict(const struct run *r, int status, struct err *e)
{
	const char *name = r->spec->argv[0];
	const char *sep = r->last[0] ? ": " : "";

	if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
		return 0;
	if (WIFEXITED(status))
		return err_set(e, "program_failed", EIO, "%s exited with %d%s%s", name,
			       WEXITSTATUS(status), sep, r->last);
	return err_set(e, "program_failed", EIO, "%s was ended by signal %d%s%s", name,
		       WTERMSIG(status), sep, r->last);
}

static int pipe_cloexec(int p[2])
{
	return pipe2(p, O_CLOEXEC) < 0 ? -errno : 0;
}

int proc_run(const struct proc_spec *spec, struct err *e)
{
	_cleanup_close_ int out_w = -1, err_w = -1, why_r = -1, why_w = -1;
	struct run r = { .spec = spec, .out = -1, .err = -1 };
	int p[2], ret, status = 0, why = 0;

	if (spec->out && (ret = pipe_cloexec(p)) == 0) {
		r.out = p[0];
		out_w = p[1];
	}
	if (pipe_cloexec(p) == 0) {
		r.err = p[0];
		err_w = p[1];
	}
	if (pipe_cloexec(p) == 0) {
		why_r = p[0];
		why_w = p[1];
	}
	r.pid = (spec->out && r.out < 0) || r.err < 0 || why_r < 0 ? -1 : fork();
	if (r.pid < 0) {
		ret = err_errno(e, errno, "start %s", spec->argv[0]);
		close_fd(&r.out);
		close_fd(&r.err);
		return ret;
	}
	if (r.pid == 0)
		child(spec, out_w, err_w, why_w);
	setpgid(r.pid, r.pid);
	close_fd(&out_w);
	close_fd(&err_w);
	close_fd(&why_w);
	ret = pump(&r);
	if (ret < 0)
		kill(-r.pid, SIGKILL);
	while (waitpid(r.pid, &status, 0) < 0 && errno == EINTR)
		;
	close_fd(&r.out);
	close_fd(&r.err);
	if (read(why_r, &why, sizeof(why)) == (ssize_t)sizeof(why))
		ret = why == ENOENT ? err_set(e, "program_missing", ENOENT, "%s is not installed",
					      spec->argv[0])
				    : err_errno(e, why, "start %s", spec->argv[0]);
	else if (ret == -ETIME)
		ret = err_set(e, "program_timeout", ETIME, "%s did not end within %u s",
			      spec->argv[0], spec->timeout_s);
	else if (ret < 0)
		ret = err_errno(e, -ret, "read the output of %s", spec->argv[0]);
	else
		ret = verdict(&r, status, e);
	buf_free(&r.line);
	return ret;
}
