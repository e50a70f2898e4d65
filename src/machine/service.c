/*
 * The child is forked twice, so that it belongs to init and leaves no zombie with whoever called.
 * A pipe that exec closes tells the parent whether the program ran; before that it carries the pid.
 */
#include "machine/service.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "image/tree.h"

#define RECORD_MAX 65536

struct report {
	pid_t pid;
	int errnum;
};

static void tell(int fd, pid_t pid, int errnum)
{
	struct report r = { pid, errnum };

	if (fd_write_full(fd, &r, sizeof(r)) < 0)
		_exit(126);
}

/* The process that becomes the program. */
static void become(const char *const *argv, const char *cwd, const char *log, int report)
{
	int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
	int out = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	sigset_t none;

	setsid();
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	signal(SIGPIPE, SIG_DFL);
	umask(077);
	if (null < 0 || out < 0 || dup2(null, 0) < 0 || dup2(out, 1) < 0 || dup2(out, 2) < 0 ||
	    chdir(cwd) < 0 || (report != 3 && dup3(report, 3, O_CLOEXEC) < 0)) {
		tell(report, 0, errno);
		_exit(127);
	}
	close_range(4, ~0U, 0);
	tell(3, getpid(), 0);
	execvp(argv[0], (char *const *)(uintptr_t)argv);
	tell(3, 0, errno);
	_exit(127);
}

int service_spawn(const char *const *argv, const char *cwd, const char *log, struct pidrec *out,
		  struct err *e)
{
	_cleanup_close_ int rd = -1, wr = -1;
	struct report r = { 0 }, failure;
	int p[2], status;
	pid_t pid;

	if (pipe2(p, O_CLOEXEC) < 0)
		return err_errno(e, errno, "start %s", argv[0]);
	rd = p[0];
	wr = p[1];
	pid = fork();
	if (pid < 0)
		return err_errno(e, errno, "start %s", argv[0]);
	if (pid == 0) {
		if (fork() == 0)
			become(argv, cwd, log, wr);
		_exit(0);
	}
	close_fd(&wr);
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	if (fd_read_full(rd, &r, sizeof(r)) != (ssize_t)sizeof(r) || r.errnum)
		return err_errno(e, r.errnum ? r.errnum : EIO, "start %s", argv[0]);
	/* End of file means that exec succeeded. */
	if (fd_read_full(rd, &failure, sizeof(failure)) == (ssize_t)sizeof(failure))
		return err_errno(e, failure.errnum, "start %s", argv[0]);
	if (pidrec_of(r.pid, out) < 0)
		return err_set(e, "ended_early", ESRCH, "%s ended at once", argv[0]);
	return 0;
}

int service_save(const char *dir, const char *name, const struct pidrec *r, json_t *extra,
		 struct err *e)
{
	_cleanup_json_ json_t *doc = NULL;
	_cleanup_free_ char *text = NULL;
	char path[PATH_MAX], at[CLOCK_RFC3339_LEN];

	clock_rfc3339(clock_wall_ms(), at);
	doc = json_pack("{s:i,s:I,s:s}", "pid", (int)r->pid, "start", (json_int_t)r->start,
			"startedAt", at);
	if (doc && extra)
		json_object_update(doc, extra);
	text = doc ? json_dumps(doc, JSON_INDENT(2)) : NULL;
	if (!text)
		return err_errno(e, ENOMEM, "record %s", name);
	path_printf(path, "%s/%s.json", dir, name);
	return fd_write_file_atomic(path, text, strlen(text), 0600, e);
}

int service_find(const char *dir, const char *name, struct pidrec *r, json_t **doc)
{
	_cleanup_buf_ struct buf text = { 0 };
	_cleanup_json_ json_t *o = NULL;
	char path[PATH_MAX];
	int fd;

	path_printf(path, "%s/%s.json", dir, name);
	if (fd_read_file(path, &text, RECORD_MAX, NULL) < 0)
		return -ESRCH;
	o = json_parse(text.data ? text.data : "", text.len, NULL);
	r->pid = (pid_t)json_get_int(o, "pid", 0);
	r->start = (uint64_t)json_get_int(o, "start", 0);
	fd = pidrec_open(r);
	if (fd >= 0 && doc)
		*doc = steal_ptr(o);
	return fd;
}

void service_forget(const char *dir, const char *name)
{
	char path[PATH_MAX];

	path_printf(path, "%s/%s.json", dir, name);
	unlink(path);
}

/* What a terminal would not show is taken out: consoles print colours and carriage returns. */
static void clean(char *s)
{
	char *to = s;

	for (; *s; s++)
		if (*s == '\n' || *s == '\t' || (unsigned char)*s >= ' ')
			*to++ = *s;
	*to = '\0';
}

void service_tail(const char *path, char *out, size_t n)
{
	_cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct stat st;
	off_t at;
	ssize_t got;
	char *line;

	out[0] = '\0';
	if (fd < 0 || fstat(fd, &st) < 0)
		return;
	at = st.st_size > (off_t)n - 1 ? st.st_size - (off_t)n + 1 : 0;
	got = pread(fd, out, n - 1, at);
	out[got > 0 ? got : 0] = '\0';
	line = at > 0 ? strchr(out, '\n') : NULL;
	if (line)
		memmove(out, line + 1, strlen(line + 1) + 1);
	clean(out);
}
