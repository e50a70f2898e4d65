/*
 * Accepting connections, and the first frame of each: the request, which decides who owns the
 * stream from then on. What can be answered at once is answered here; commands go to watch.c, file
 * operations to a forked helper (file.c).
 */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/agent.h"
#include "agent/file.h"
#include "agent/process.h"
#include "agent/request.h"
#include "agent/stream.h"
#include "agent/watch.h"
#include "base/cleanup.h"
#include "base/json.h"
#include "base/log.h"

static void op_exec(struct agent *a, struct stream *s, const json_t *request)
{
	struct process *p;
	struct err e = { 0 };

	if (process_start(a, request, &p, &e) < 0)
		stream_error(s, &e);
	else
		watch_exec(s, p);
}

static void op_ps(struct agent *a, struct stream *s)
{
	json_t *list = json_array();

	for (struct process *p = a->processes; p; p = p->next)
		if (!p->forgotten)
			json_array_append_new(list, process_json(p, true));
	stream_reply(s, json_pack("{s:o}", "processes", list));
}

static void op_adopt(struct agent *a, struct stream *s, const json_t *request)
{
	struct err e = { 0 };

	if (adopt(a, request, &e) < 0)
		stream_error(s, &e);
	else
		stream_reply(s, NULL);
}

static void op_stop(struct agent *a, struct stream *s, const json_t *request)
{
	struct err e = { 0 };

	if (power_stop(a, json_get_int(request, "timeoutMs", 5000), &e) < 0)
		stream_error(s, &e);
	else
		stream_reply(s, NULL);
}

/* Operations on a process that the request names. */
static void op_process(struct agent *a, struct stream *s, enum agent_op op, const json_t *request)
{
	struct err e = { 0 };
	struct process *p = process_find(a, json_get_str(request, "processId", ""), &e);
	json_t *reply = NULL;
	int r = 0;

	if (!p) {
		stream_error(s, &e);
		return;
	}
	switch (op) {
	case OP_ATTACH:
		watch_attach(s, p, request);
		return;
	case OP_STDIN:
		watch_stdin(s, p, request);
		return;
	case OP_PROCESS:
		reply = process_json(p, false);
		break;
	case OP_SIGNAL:
		r = process_signal(p, (int)json_get_int(request, "signal", 0), &e);
		break;
	case OP_KILL:
		process_kill(p);
		break;
	default:
		process_forget(p);
		break;
	}
	if (r < 0)
		stream_error(s, &e);
	else
		stream_reply(s, reply);
}

static void op_helper(struct agent *a, struct stream *s, enum agent_op op, const json_t *request)
{
	struct err e = { 0 };

	if (a->n_helpers >= AGENT_HELPERS_MAX) {
		err_set(&e, "too_many_streams", EAGAIN, "%u file operations run already",
			a->n_helpers);
		err_fix(&e, "Wait for some of them to end.");
		stream_error(s, &e);
		return;
	}
	file_start(a, s, op, request);
}

static void dispatch(struct agent *a, struct stream *s, enum agent_op op, const json_t *request)
{
	switch (op) {
	case OP_HELLO:
		stream_reply(s, hello(a));
		break;
	case OP_ADOPT:
		op_adopt(a, s, request);
		break;
	case OP_EXEC:
		op_exec(a, s, request);
		break;
	case OP_PS:
		op_ps(a, s);
		break;
	case OP_ATTACH:
	case OP_PROCESS:
	case OP_SIGNAL:
	case OP_KILL:
	case OP_STDIN:
	case OP_FORGET:
		op_process(a, s, op, request);
		break;
	case OP_STOP:
		op_stop(a, s, request);
		break;
	default:
		op_helper(a, s, op, request);
		break;
	}
}

static int on_request(struct stream *s, void *ctx, const struct frame *f)
{
	_cleanup_json_ json_t *request = NULL;
	struct err e = { 0 };
	enum agent_op op;

	if (f->type != FRAME_REQUEST)
		return -EPROTO;
	request = request_parse(f->payload, f->len, &op, &e);
	if (!request)
		stream_error(s, &e);
	else
		dispatch(ctx, s, op, request);
	return 0;
}

static const struct stream_ops request_ops = { .frame = on_request };

/* More streams than we serve: said in a frame, so that the host does not wait for an answer. */
static void refuse(struct agent *a, int fd)
{
	struct err e = { 0 };
	_cleanup_json_ json_t *o = NULL;
	_cleanup_free_ char *text = NULL;
	_cleanup_buf_ struct buf b = { 0 };

	err_set(&e, "too_many_streams", EAGAIN, "%u streams are open already", a->n_streams);
	o = stream_error_json(&e);
	text = o ? json_dumps(o, JSON_COMPACT) : NULL;
	if (text && frame_put(&b, FRAME_ERROR, text, strlen(text)) == 0 &&
	    send(fd, b.data, b.len, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
		log_warn("refuse a stream: %s", strerror(errno));
	close(fd);
}

static void on_listen(void *ctx, int fd, uint32_t events)
{
	struct agent *a = ctx;
	int s = accept4(fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	struct err e = { 0 };

	(void)events;
	if (s < 0) {
		if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
			log_warn("accept: %s", strerror(errno));
		return;
	}
	if (a->n_streams >= AGENT_STREAMS_MAX)
		refuse(a, s);
	else if (stream_new(a, s, &request_ops, a, &e) < 0)
		log_err(LOG_WARN, &e, "accept");
}

int server_listen(struct agent *a, int fd, struct err *e)
{
	struct loop_source *src;

	return loop_add_fd(a->loop, fd, EPOLLIN, on_listen, a, &src, e);
}

static void helper_ended(struct agent *a, pid_t pid)
{
	for (unsigned i = 0; i < a->n_helpers; i++)
		if (a->helpers[i] == pid) {
			a->helpers[i] = a->helpers[--a->n_helpers];
			return;
		}
}

void reap_children(struct agent *a)
{
	int status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
		struct process *p = process_find_pid(a, pid);

		if (p)
			process_exited(p, status);
		else
			helper_ended(a, pid);
	}
	process_check_killed(a);
	if (a->stopping)
		power_advance(a);
}
