/*
 * The life of a command:
 *
 *	started	its program runs (or could not, and everyone is told so). Until then watchers get
 *		no answer, even if the process was reaped already.
 *	exited	its first process was reaped. Then the grace timer gives what is still in flight a
 *		moment: the pipes normally end at once; a descendant in the background that holds
 *		them open must not hold EXIT back.
 *	settled	both outputs have a final offset, and, if it was killed, no descendant lives.
 *
 * A timeout is two steps of one timer: SIGTERM, then SIGKILL for all. Once a command was killed,
 * its exit kills again, for what was forked between, so that EXIT never comes before the end.
 */
#include "agent/process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/agent.h"
#include "agent/spawn.h"
#include "agent/cmd_io.h"
#include "agent/table.h"
#include "agent/users.h"
#include "agent/watch.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "proto/agent.h"

#define GRACE_MS 100	     /* for the pipes to end after the exit */
#define KILLED_GRACE_MS 5000 /* for killed descendants to disappear */

static void process_free(struct process *p)
{
	for (int i = 0; i < 2; i++) {
		if (p->out[i].p)
			output_close(&p->out[i]);
		p->a->output_bytes -= p->out[i].ring.cap;
		ring_free(&p->out[i].ring);
	}
	process_input_close(p);
	buf_free(&p->in.pending);
	loop_remove(p->failed_src);
	loop_remove(p->timeout);
	loop_remove(p->grace);
	close_fd(&p->failed_fd);
	cgroup_remove(&p->a->cgroup, p->id);
	json_decref(p->about);
	free(p->program);
	free(p->cwd);
	free(p);
}

CLEANUP_DEFINE(struct process *, cleanup_process, process_free)

static void arm(struct loop_source *timer, uint64_t ms)
{
	int r = loop_set_timer(timer, clock_mono_ns() + ms * NSEC_PER_MSEC);

	if (r < 0)
		log_error("arm a timer: %s", strerror(-r));
}

static void on_timeout(void *ctx)
{
	struct process *p = ctx;

	if (p->exited)
		return;
	if (p->timed_out) {
		process_kill(p);
		return;
	}
	p->timed_out = true;
	/* It may have just ended; then its exit is on the way. */
	(void)process_signal(p, SIGTERM, NULL);
	(void)process_signal(p, SIGCONT, NULL); /* a stopped one could not take the other */
	arm(p->timeout, AGENT_KILL_GRACE_MS);
}

static void on_grace(void *ctx)
{
	struct process *p = ctx;

	if (p->killed && !p->gone)
		log_warn("%s: killed processes are still there", p->id);
	p->gone = true;
	output_settle(&p->out[0]);
	output_settle(&p->out[1]);
	watch_pump(p);
}

/* The program could not be started: whoever waits for it is told why, and it leaves the table. */
static void not_started(struct process *p, const struct spawn_failure *f)
{
	struct err e = { 0 };

	spawn_explain(f, p->program, p->cwd, &e);
	watch_fail(p, &e);
	process_forget(p);
}

static void on_started(void *ctx, int fd, uint32_t events)
{
	struct process *p = ctx;
	struct spawn_failure f;
	ssize_t n = read(fd, &f, sizeof(f));

	(void)events;
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	loop_remove(p->failed_src);
	p->failed_src = NULL;
	close_fd(&p->failed_fd);
	p->started = true;
	if (n == (ssize_t)sizeof(f))
		not_started(p, &f);
	else
		watch_pump(p);
}

static int make_sources(struct process *p, int64_t timeout_ms, struct err *e)
{
	struct loop *l = p->a->loop;
	int r = loop_add_timer(l, on_grace, p, &p->grace, e);

	if (r == 0 && timeout_ms)
		r = loop_add_timer(l, on_timeout, p, &p->timeout, e);
	if (r == 0 && timeout_ms)
		arm(p->timeout, (uint64_t)timeout_ms);
	return r;
}

static int check_start(const struct agent *a, struct err *e)
{
	if (a->stopping)
		return err_set(e, "stopping", ESHUTDOWN, "the sandbox is stopping");
	if (!a->adopted)
		return err_set(e, "not_adopted", EAGAIN, "the sandbox has no identity yet");
	if (a->n_running >= AGENT_RUNNING_MAX) {
		err_set(e, "too_many_processes", EAGAIN, "%u commands run already", a->n_running);
		err_fix(e, "Wait for some to end, or kill them.");
		return -EAGAIN;
	}
	return 0;
}

static struct process *process_new(struct agent *a, const json_t *request, const struct user *u)
{
	struct process *p = calloc(1, sizeof(*p));
	const char *cwd = json_get_str(request, "cwd", NULL);

	if (!p)
		return NULL;
	*p = (struct process){ .a = a, .failed_fd = -1, .in.fd = -1 };
	p->out[0].fd = p->out[1].fd = -1;
	id_new("prc", p->id);
	p->background = json_get_bool(request, "background", false);
	p->tty = json_is_object(json_object_get(request, "tty"));
	p->in.wanted = p->tty || json_get_bool(request, "stdin", false);
	p->started_ms = clock_wall_ms();
	p->started_ns = clock_mono_ns();
	p->about = process_about(request, u->name);
	p->cwd = cwd ? strdup(cwd) : NULL;
	return p;
}

/* Forks the command with its ends of the pipes, which are closed here in any case. */
static int launch(struct process *p, const struct command *c, const struct user *u,
		  struct cmd_io *io, struct err *e)
{
	struct spawn s = { .argv = c->argv,
			   .env = c->env,
			   .cwd = p->cwd,
			   .user = u,
			   .fds = { io->child[0], io->child[1], io->child[2] },
			   .tty = p->tty };
	_cleanup_close_ int cgroup = -1;
	int r = cgroup_make(&p->a->cgroup, p->id, &cgroup, e);
	pid_t pid;

	if (r < 0)
		return r;
	s.cgroup = cgroup;
	pid = spawn_start(&s, &p->failed_fd, e);
	cmd_io_close_child(io);
	if (pid < 0)
		return (int)pid;
	p->pid = pid;
	return loop_add_fd(p->a->loop, p->failed_fd, EPOLLIN, on_started, p, &p->failed_src, e);
}

int process_start(struct agent *a, const json_t *request, struct process **out, struct err *e)
{
	_cleanup_(cleanup_process) struct process *p = NULL;
	_cleanup_(user_free) struct user u = { 0 };
	_cleanup_(command_free) struct command c = { 0 };
	_cleanup_(cmd_io_close) struct cmd_io io = CMD_IO_NONE;
	int r = check_start(a, e);

	if (r == 0)
		r = user_find(json_get_str(request, "user", NULL), &u, e);
	if (r < 0)
		return r;
	p = process_new(a, request, &u);
	if (!p)
		return agent_errno(e, ENOMEM, "start a command");
	r = command_make(a, request, &u, p->id, &c, e);
	if (r < 0)
		return r;
	p->program = strdup(c.argv[0]);
	r = cmd_io_make(request, &u, p->in.wanted, &io, e);
	if (r == 0)
		r = cmd_io_attach(&io, p, e);
	if (r == 0)
		r = make_sources(p, json_get_int(request, "timeoutMs", 0), e);
	if (r == 0)
		r = launch(p, &c, &u, &io, e);
	if (r < 0) {
		if (p->pid) /* it runs, and nothing would watch it */
			cgroup_kill(&a->cgroup, p->id, p->pid);
		return r;
	}
	table_add(a, p);
	*out = steal_ptr(p);
	return 0;
}

static bool settled_now(const struct process *p)
{
	return p->out[0].settled && p->out[1].settled && (!p->killed || p->gone);
}

bool process_settled(const struct process *p)
{
	return p->exited && p->started && settled_now(p);
}

void process_exited(struct process *p, int status)
{
	struct agent *a = p->a;

	p->duration_ms = (int64_t)((clock_mono_ns() - p->started_ns) / NSEC_PER_MSEC);
	p->signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
	p->code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
	if (p->timeout)
		loop_set_timer(p->timeout, 0);
	p->in.lost = p->in.pending.len > 0;
	process_input_close(p);
	if (p->timed_out || p->killed)
		process_kill(p); /* while pid still names its session */
	p->pid = 0;
	p->exited = true;
	a->n_running--;
	a->n_ended++;
	p->gone = p->killed && !cgroup_populated(&a->cgroup, p->id, 0);
	cgroup_remove(&a->cgroup, p->id); /* stays while something of it lives */
	if (!settled_now(p))
		arm(p->grace, p->killed ? KILLED_GRACE_MS : GRACE_MS);
	watch_pump(p);
	table_trim(a);
}

/* A killed command's descendants may outlive its first process for a moment. */
void process_check_killed(struct agent *a)
{
	for (struct process *p = a->processes, *next; p; p = next) {
		next = p->next;
		if (!p->exited || !p->killed || p->gone ||
		    cgroup_populated(&a->cgroup, p->id, p->pid))
			continue;
		p->gone = true;
		output_settle(&p->out[0]);
		output_settle(&p->out[1]);
		watch_pump(p);
	}
}

int process_signal(struct process *p, int sig, struct err *e)
{
	if (p->exited)
		return err_set(e, "process_ended", ESRCH, "process %s has ended", p->id);
	if (kill(-p->pid, sig) < 0 && kill(p->pid, sig) < 0)
		return agent_errno(e, errno, "signal process %s", p->id);
	return 0;
}

int process_resize(struct process *p, int rows, int cols, struct err *e)
{
	struct winsize size = { .ws_row = (unsigned short)rows, .ws_col = (unsigned short)cols };

	if (!p->tty || p->out[0].fd < 0)
		return err_set(e, "bad_request", ENOTTY, "process %s has no terminal", p->id);
	if (ioctl(p->out[0].fd, TIOCSWINSZ, &size) < 0)
		return agent_errno(e, errno, "resize the terminal of %s", p->id);
	return 0;
}

void process_kill(struct process *p)
{
	struct cgroup *c = &p->a->cgroup;

	p->killed = true;
	cgroup_kill(c, p->id, p->pid);
	if (!p->exited)
		return;
	p->gone = !cgroup_populated(c, p->id, 0);
	if (!p->gone)
		arm(p->grace, KILLED_GRACE_MS);
}

void process_drop(struct process *p)
{
	table_remove(p->a, p);
	process_free(p);
}

void process_unwatched(struct process *p)
{
	if (!p->forgotten || !p->exited || p->watchers)
		return;
	process_drop(p);
}

void process_forget(struct process *p)
{
	struct err e = { 0 };

	p->forgotten = true;
	process_kill(p);
	err_set(&e, "process_not_found", ESRCH, "process %s was forgotten", p->id);
	watch_fail(p, &e);
	process_unwatched(p);
}
