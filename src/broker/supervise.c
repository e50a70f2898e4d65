/*
 * One thread, one event loop: the child's requests, the child's end (a pidfd), signals (a
 * signalfd) and one timer, which means "start the child again" while we run and "kill it" while
 * we stop.
 */
#include "broker/supervise.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/loop.h"
#include "broker/server.h"

#define BACKOFF_MIN_NS (100 * NSEC_PER_MSEC)
#define BACKOFF_MAX_NS (10 * NSEC_PER_SEC)
#define HEALTHY_NS (30 * NSEC_PER_SEC) /* a child that lived this long failed for a new reason */
#define STOP_NS (20 * NSEC_PER_SEC)
#define DRAIN_NS (60 * NSEC_PER_SEC) /* when the sandboxes stop first */

struct supervisor {
	const struct supervise_config *config;
	struct loop *loop;
	struct loop_source *on_sock, *on_child, *timer, *on_signal;
	int sock, pidfd, sigfd;
	pid_t pid;
	uint64_t started_ns, backoff_ns;
	bool stopping;
	int status;
};

_Noreturn static void child(const struct supervise_config *c, int sock, pid_t parent)
{
	extern char **environ;
	sigset_t none;
	int s = fcntl(sock, F_DUPFD_CLOEXEC, 10), x = fcntl(c->exe, F_DUPFD_CLOEXEC, 10);

	sigemptyset(&none);
	if (s < 0 || x < 0 || dup2(s, SUPERVISE_BROKER_FD) < 0 ||
	    close_range(SUPERVISE_BROKER_FD + 1, ~0U, CLOSE_RANGE_CLOEXEC) < 0)
		goto fail;
	for (int cap = 0; cap < 64; cap++)
		if (prctl(PR_CAPBSET_DROP, cap) < 0 && errno != EINVAL)
			goto fail;
	if (setgroups(0, NULL) < 0 || setresgid(c->gid, c->gid, c->gid) < 0 ||
	    setresuid(c->uid, c->uid, c->uid) < 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		goto fail;
	/* Behind setresuid(), which clears it. A child without its broker must not linger. */
	if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != parent ||
	    sigprocmask(SIG_SETMASK, &none, NULL) < 0)
		goto fail;
	syscall(SYS_execveat, x, "", c->argv, environ, AT_EMPTY_PATH);
fail:
	log_error("start the api child: %m");
	_exit(SUPERVISE_EXIT_FATAL);
}

static void on_request(void *ctx, int fd, uint32_t events)
{
	struct supervisor *s = ctx;
	struct err e;
	int r;

	(void)events;
	r = broker_serve_one(s->config->server, fd, &e);
	if (r > 0)
		return;
	if (r < 0)
		log_err(LOG_ERROR, &e, "serve the api child");
	/* Its end follows on the pidfd; a child that closed its socket but lives is of no use. */
	loop_remove(s->on_sock);
	s->on_sock = NULL;
	kill(s->pid, s->stopping ? SIGTERM : SIGKILL);
}

static int note_end(struct supervisor *s)
{
	int status = 0;

	while (waitpid(s->pid, &status, 0) < 0 && errno == EINTR)
		;
	loop_remove(s->on_sock);
	loop_remove(s->on_child);
	s->on_sock = s->on_child = NULL;
	close_fd(&s->sock);
	close_fd(&s->pidfd);
	s->pid = 0;
	return status;
}

static void on_child_end(void *ctx, int fd, uint32_t events)
{
	struct supervisor *s = ctx;
	int status = note_end(s);
	uint64_t now = clock_mono_ns();

	(void)fd;
	(void)events;
	if (s->stopping || (WIFEXITED(status) && WEXITSTATUS(status) == SUPERVISE_EXIT_FATAL)) {
		s->status = s->stopping ? 0 : SUPERVISE_EXIT_FATAL;
		loop_stop(s->loop);
		return;
	}
	if (now - s->started_ns > HEALTHY_NS)
		s->backoff_ns = BACKOFF_MIN_NS;
	log_error("the api child ended with %s %d; starting it again in %llu ms",
		  WIFEXITED(status) ? "status" : "signal",
		  WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status),
		  (unsigned long long)(s->backoff_ns / NSEC_PER_MSEC));
	loop_set_timer(s->timer, now + s->backoff_ns);
	s->backoff_ns *= 2;
	if (s->backoff_ns > BACKOFF_MAX_NS)
		s->backoff_ns = BACKOFF_MAX_NS;
}

static int start_child(struct supervisor *s, struct err *e)
{
	_cleanup_close_ int theirs = -1;
	pid_t parent = getpid();
	int p[2], r;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, p) < 0)
		return err_errno(e, errno, "start the api child");
	s->sock = p[0];
	theirs = p[1];
	s->pid = fork();
	if (s->pid < 0) {
		s->pid = 0;
		close_fd(&s->sock);
		return err_errno(e, errno, "start the api child");
	}
	if (s->pid == 0)
		child(s->config, theirs, parent);
	s->started_ns = clock_mono_ns();
	s->pidfd = (int)syscall(SYS_pidfd_open, s->pid, 0);
	r = s->pidfd < 0 ? err_errno(e, errno, "watch the api child") : 0;
	if (r == 0)
		r = loop_add_fd(s->loop, s->sock, EPOLLIN, on_request, s, &s->on_sock, e);
	if (r == 0)
		r = loop_add_fd(s->loop, s->pidfd, EPOLLIN, on_child_end, s, &s->on_child, e);
	if (r < 0) {
		kill(s->pid, SIGKILL);
		note_end(s);
	}
	return r;
}

static void on_timer(void *ctx)
{
	struct supervisor *s = ctx;
	struct err e;

	if (s->stopping && s->pid) {
		log_warn("the api child does not stop: killing it");
		kill(s->pid, SIGKILL);
		return;
	}
	if (start_child(s, &e) < 0) {
		log_err(LOG_ERROR, &e, "restart");
		loop_set_timer(s->timer, clock_mono_ns() + BACKOFF_MAX_NS);
	}
}

static void on_signal(void *ctx, int fd, uint32_t events)
{
	struct supervisor *s = ctx;
	struct signalfd_siginfo si;

	(void)events;
	if (read(fd, &si, sizeof(si)) != (ssize_t)sizeof(si))
		return;
	if (s->stopping) {
		/* Told again: whoever sent it will not wait longer. */
		loop_set_timer(s->timer, clock_mono_ns());
		return;
	}
	s->stopping = true;
	if (!s->pid) {
		loop_stop(s->loop);
		return;
	}
	kill(s->pid, si.ssi_signo == SIGQUIT ? SIGQUIT : SIGTERM);
	loop_set_timer(s->timer, clock_mono_ns() + (si.ssi_signo == SIGQUIT ? DRAIN_NS : STOP_NS));
}

static int set_up(struct supervisor *s, struct err *e)
{
	sigset_t set;
	int r;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGQUIT);
	if (sigprocmask(SIG_BLOCK, &set, NULL) < 0)
		return err_errno(e, errno, "block signals");
	s->sigfd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (s->sigfd < 0)
		return err_errno(e, errno, "signalfd");
	r = loop_new(&s->loop, e);
	if (r == 0)
		r = loop_add_fd(s->loop, s->sigfd, EPOLLIN, on_signal, s, &s->on_signal, e);
	if (r == 0)
		r = loop_add_timer(s->loop, on_timer, s, &s->timer, e);
	return r < 0 ? r : start_child(s, e);
}

int supervise_run(const struct supervise_config *c, struct err *e)
{
	struct supervisor s = {
		.config = c, .sock = -1, .pidfd = -1, .sigfd = -1, .backoff_ns = BACKOFF_MIN_NS
	};
	int r;

	/* A terminal that goes away must not take the daemon along. */
	signal(SIGHUP, SIG_IGN);
	signal(SIGPIPE, SIG_IGN);
	r = set_up(&s, e);
	if (r == 0)
		r = loop_run(s.loop, e);
	if (s.pid) {
		kill(s.pid, SIGKILL);
		note_end(&s);
	}
	loop_free(s.loop);
	close_fd(&s.sigfd);
	return r < 0 ? r : s.status;
}
