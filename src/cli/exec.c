/*
 * The command's stream is read on one connection; signals go over a second one, because the first
 * is busy. The wait inside the HTTP client serves our signal descriptor:
 *
 *	first signal	sent on to the command's process group; the stream goes on to its end
 *	second signal	the command is killed and we leave at once with 130
 *
 * A signal that comes before the process id is known is kept until it is. Only an `exit` line
 * gives a status: a stream that ends without one is an error, whatever HTTP said about it.
 */
#include "cli/exec.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/base64.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "cli/feed.h"
#include "cli/http.h"
#include "cli/sandbox.h"

#define STDIN_MAX (1u << 20) /* within one request, for --json */
#define SIGNAL_TIMEOUT_S 10
#define LEAVE_TIMEOUT_S 2

struct session {
	struct cli *c;
	const char *id;
	struct watch *w;
	struct http *side; /* the second connection */
	struct feed *feed; /* sends stdin, once the process is known */
	bool open_stdin;
	char process[64];
	int pending; /* signal to send once the process is known */
	bool left;   /* a second signal: do not wait any more */
	bool ended;  /* the exit line came */
	bool broken_pipe;
	int status;
	json_int_t next[2]; /* offset expected next in stdout and stderr; -1 after a drop */
};

int watch_begin(struct watch *w, struct err *e)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGHUP);
	*w = (struct watch){ .fd = -1 };
	signal(SIGPIPE, SIG_IGN);
	sigprocmask(SIG_BLOCK, &set, NULL);
	w->fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	return w->fd < 0 ? err_errno(e, errno, "watch for signals") : 0;
}

void watch_end(struct watch *w)
{
	close_fd(&w->fd);
}

int watch_take(struct watch *w)
{
	struct signalfd_siginfo si;
	int n = 0;

	while (read(w->fd, &si, sizeof(si)) == (ssize_t)sizeof(si)) {
		w->last = (int)si.ssi_signo;
		n++;
	}
	w->count += n;
	return n;
}

/* Sends a signal to the command. A failure is told and otherwise ignored: the stream knows more. */
static void signal_send(struct session *s, int signo, long timeout_s)
{
	_cleanup_buf_ struct buf path = { 0 }, tail = { 0 };
	_cleanup_json_ json_t *body = json_pack("{s:s}", "signal", sigabbrev_np(signo));
	struct err e;

	http_set_timeout(s->side, timeout_s);
	if (buf_str(&tail, "/processes/") < 0 || http_escape(&tail, s->process) < 0 ||
	    buf_str(&tail, "/signal") < 0 || sandbox_path(&path, s->id, tail.data, &e) < 0)
		return;
	if (http_json(s->side, "POST", path.data, body, NULL, &e) < 0 &&
	    strcmp(http_failure(s->side)->code, "process_ended") != 0)
		fprintf(stderr, "cloche: the command may go on: SIG%s was not delivered: %s\n",
			sigabbrev_np(signo), e.msg);
}

static int on_signal(void *ctx)
{
	struct session *s = ctx;

	if (!watch_take(s->w))
		return 0;
	if (s->w->count > 1) {
		s->left = true;
		if (s->process[0])
			signal_send(s, SIGKILL, LEAVE_TIMEOUT_S);
		return -EINTR;
	}
	if (s->process[0])
		signal_send(s, s->w->last, SIGNAL_TIMEOUT_S);
	else
		s->pending = s->w->last;
	return 0;
}

static int take_start(struct session *s, const json_t *line, struct err *e)
{
	snprintf(s->process, sizeof(s->process), "%s", json_get_str(line, "processId", ""));
	if (s->pending)
		signal_send(s, s->pending, SIGNAL_TIMEOUT_S);
	s->pending = 0;
	return s->open_stdin ? feed_start(s->side, s->id, s->process, &s->feed, e) : 0;
}

static int take_output(struct session *s, const json_t *line, bool is_stderr, struct err *e)
{
	const json_t *text = json_object_get(line, "data");
	json_int_t offset = json_get_int(line, "offset", -1);
	_cleanup_buf_ struct buf raw = { 0 };
	const char *p = json_string_value(text), *b64 = json_get_str(line, "base64", NULL);
	size_t n = json_string_length(text);
	int ret;

	if (!p && b64) {
		ret = base64_decode(&raw, b64, strlen(b64));
		if (ret < 0)
			return err_set(e, "broken", EPROTO, "the stream has bad base64");
		p = raw.data;
		n = raw.len;
	}
	if (offset >= 0 && s->next[is_stderr] >= 0 && offset != s->next[is_stderr])
		return err_set(e, "broken", EPROTO,
			       "%lld bytes of output are missing from the stream",
			       (long long)(offset - s->next[is_stderr]));
	s->next[is_stderr] = offset >= 0 ? offset + (json_int_t)n : -1;
	ret = n ? fd_write_full(is_stderr ? STDERR_FILENO : STDOUT_FILENO, p, n) : 0;
	if (ret == -EPIPE)
		s->broken_pipe = true;
	return ret < 0 ? err_errno(e, -ret, "write the command's output") : 0;
}

static int take_dropped(struct session *s, const json_t *line)
{
	fprintf(stderr,
		"cloche: %lld bytes of output were dropped: it came faster than it was read\n",
		(long long)json_get_int(line, "bytes", 0));
	s->next[0] = s->next[1] = -1;
	return 0;
}

/* 128 + n for {"signal": n or "SIGKILL" or "KILL"}. */
static int signal_status(const json_t *v)
{
	const char *name = json_string_value(v);

	if (json_is_integer(v))
		return 128 + (int)json_integer_value(v);
	if (name && strncmp(name, "SIG", 3) == 0)
		name += 3;
	for (int i = 1; name && i < NSIG; i++)
		if (sigabbrev_np(i) && strcmp(sigabbrev_np(i), name) == 0)
			return 128 + i;
	return CLI_FAILED;
}

/* The shell's view of an exit line or of an exec answer, whose exit status is called `code`. */
static int exit_status(const json_t *v, const char *code, int *status, struct err *e)
{
	const json_t *n = json_object_get(v, code), *sig = json_object_get(v, "signal");

	if (json_get_bool(v, "timedOut", false))
		*status = CLI_TIMEOUT;
	else if (json_is_integer(n) && json_integer_value(n) >= 0)
		*status = (int)json_integer_value(n);
	else if (sig && !json_is_null(sig))
		*status = signal_status(sig);
	else
		return err_set(e, "broken", EPROTO, "the answer has no exit status");
	return 0;
}

static int on_line(void *ctx, const json_t *line, struct err *e)
{
	struct session *s = ctx;
	const char *type = json_get_str(line, "type", "");
	int ret;

	if (strcmp(type, "start") == 0)
		return take_start(s, line, e);
	if (strcmp(type, "stdout") == 0 || strcmp(type, "stderr") == 0)
		return take_output(s, line, type[3] == 'e', e);
	if (strcmp(type, "dropped") == 0)
		return take_dropped(s, line);
	if (strcmp(type, "error") == 0) {
		err_set(e, "api_error", EIO, "%s",
			json_get_str(json_object_get(line, "error"), "message",
				     "the stream failed"));
		err_fix(e, "%s", json_get_str(json_object_get(line, "error"), "fix", ""));
		return -EIO;
	}
	if (strcmp(type, "exit") != 0)
		return 0; /* ping, and what later versions add */
	ret = exit_status(line, "code", &s->status, e);
	s->ended = ret == 0;
	return ret;
}

static int read_stdin(json_t *body, struct err *e)
{
	_cleanup_buf_ struct buf in = { 0 }, text = { 0 };
	int ret = fd_read_all(STDIN_FILENO, &in, STDIN_MAX);

	if (ret == -EFBIG)
		return err_set(e, "too_large", EFBIG,
			       "stdin is larger than %u MiB: leave out --json", STDIN_MAX >> 20);
	if (ret < 0)
		return err_errno(e, -ret, "read stdin");
	if (!in.len)
		return 0;
	if (base64_encode(&text, in.data, in.len) < 0 ||
	    json_object_set_new(body, "stdinBase64", json_string(text.data)) < 0)
		return err_errno(e, ENOMEM, "send stdin");
	return 0;
}

static int exec_body(struct session *s, const json_t *env, json_t **out, struct err *e)
{
	const struct cli *c = s->c;
	_cleanup_json_ json_t *body = json_pack("{s:[]}", "argv");
	json_t *argv = json_object_get(body, "argv");
	const char *cwd = cli_str(c, "cwd", NULL), *user = cli_str(c, "user", NULL);

	for (size_t i = 0; i < c->n_command; i++)
		if (json_array_append_new(argv, json_string(c->command[i])) < 0)
			return cli_usage(e, "argument %zu of the command is not UTF-8", i + 1);
	if ((cwd && json_object_set_new(body, "cwd", json_string(cwd)) < 0) ||
	    (user && json_object_set_new(body, "user", json_string(user)) < 0))
		return cli_usage(e, "--cwd or --user is not UTF-8");
	if ((env && json_object_size(env) &&
	     json_object_set(body, "env", (json_t *)(uintptr_t)env) < 0) ||
	    (cli_given(c, "timeout-seconds") &&
	     json_object_set_new(body, "timeoutSeconds",
				 json_integer(cli_int(c, "timeout-seconds", 0))) < 0))
		return err_errno(e, ENOMEM, "write the request");
	if (s->open_stdin && json_object_set_new(body, "openStdin", json_true()) < 0)
		return err_errno(e, ENOMEM, "write the request");
	if (c->json && !cli_flag(c, "no-stdin") && feed_wanted()) {
		int ret = read_stdin(body, e);

		if (ret < 0)
			return ret;
	}
	*out = steal_ptr(body);
	return 0;
}

/* --json: the whole answer at once. */
static int exec_whole(struct session *s, struct http *h, const char *path, const json_t *body,
		      struct err *e)
{
	_cleanup_json_ json_t *answer = NULL;
	int ret = http_json(h, "POST", path, body, &answer, e);

	ret = ret ?: exit_status(answer, "exitCode", &s->status, e);
	ret = ret ?: cli_print_json(answer, e);
	s->ended = ret == 0;
	return ret;
}

/* What a failed call means: some failures are the command's, not ours. */
static int exec_failed(struct session *s, struct http *h, int ret, struct err *e)
{
	const char *code = http_failure(h)->code;

	if (s->left)
		return CLI_INTERRUPT;
	if (s->broken_pipe) {
		if (s->process[0])
			signal_send(s, SIGTERM, LEAVE_TIMEOUT_S);
		return 128 + SIGPIPE;
	}
	if (strcmp(code, "command_not_found") == 0 || strcmp(code, "command_not_executable") == 0) {
		fprintf(stderr, "cloche: %s\n", e->msg);
		return strcmp(code, "command_not_found") == 0 ? 127 : 126;
	}
	if (s->process[0]) {
		err_wrap(e, "outcome unknown");
		if (!e->fix[0])
			err_fix(e, "The command may still run: 'cloche show %s' tells.", s->id);
	}
	return ret;
}

int exec_in_sandbox(struct cli *c, const char *id, const json_t *env, struct watch *w,
		    struct err *e)
{
	struct session s = { .c = c, .id = id, .w = w };
	_cleanup_json_ json_t *body = NULL;
	_cleanup_buf_ struct buf path = { 0 };
	struct http *h = NULL;
	int ret;

	s.open_stdin = !c->json && !cli_flag(c, "no-stdin") && feed_wanted();
	ret = exec_body(&s, env, &body, e);
	ret = ret ?: sandbox_path(&path, id, "/exec", e);
	ret = ret ?: cli_http(c, &h, e);
	ret = ret ?: http_clone(h, &s.side, e);
	if (ret < 0)
		return ret;
	http_set_wake(h, w->fd, on_signal, &s);
	ret = c->json ? exec_whole(&s, h, path.data, body, e)
		      : http_stream(h, "POST", path.data, body, on_line, &s, e);
	http_set_wake(h, -1, NULL, NULL);
	feed_stop(s.feed);
	if (ret == 0 && !s.ended)
		ret = err_set(e, "broken", EPROTO, "the stream ended before the command did");
	/* An exit line counts even if the connection broke right after it. */
	ret = s.ended ? s.status : exec_failed(&s, h, ret, e);
	http_free(s.side);
	return ret;
}
