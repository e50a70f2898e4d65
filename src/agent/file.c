/*
 * The fork, and the helper's frame I/O. The helper gives up everything but its stream before it
 * does anything else: other descriptors, the agent's priority and its protection from the OOM
 * killer. A change of uid makes it unreadable for the user's own processes (not dumpable).
 */
#include "agent/file.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/agent.h"
#include "agent/stream.h"
#include "agent/users.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/json.h"

#define STREAM_FD 3
#define RECV_STEP (128u << 10)

static int op_sync(struct file_io *io, const json_t *request, struct err *e)
{
	(void)request;
	(void)e;
	sync();
	file_send_json(io, FRAME_REPLY, json_object());
	return 0;
}

static int (*const handlers[OP_COUNT])(struct file_io *, const json_t *, struct err *) = {
	[OP_FILE_READ] = file_read,	[OP_FILE_WRITE] = file_write, [OP_FILE_LIST] = file_list,
	[OP_FILE_STAT] = file_stat,	[OP_FILE_MKDIR] = file_mkdir, [OP_FILE_MOVE] = file_move,
	[OP_FILE_REMOVE] = file_remove, [OP_SYNC] = op_sync,
};

static void send_all(struct file_io *io, const void *p, size_t n, int flags)
{
	const char *at = p;

	while (n) {
		ssize_t r = send(io->fd, at, n, MSG_NOSIGNAL | flags);

		if (r < 0 && errno == EINTR)
			continue;
		if (r < 0)
			_exit(1);
		at += r;
		n -= (size_t)r;
	}
}

void file_send(struct file_io *io, enum frame_type type, const void *p, size_t n)
{
	uint8_t head[FRAME_HEADER_LEN] = { (uint8_t)n, (uint8_t)(n >> 8), (uint8_t)(n >> 16),
					   (uint8_t)(n >> 24), (uint8_t)type };

	send_all(io, head, sizeof(head), n ? MSG_MORE : 0);
	send_all(io, p, n, 0);
}

void file_send_json(struct file_io *io, enum frame_type type, json_t *o)
{
	_cleanup_free_ char *text = o ? json_dumps(o, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;

	json_decref(o);
	if (!text)
		_exit(1);
	file_send(io, type, text, strlen(text));
}

int file_receive(struct file_io *io, struct frame *f)
{
	for (;;) {
		size_t have = io->in.len - io->in_at;
		long n = have ? frame_take((const uint8_t *)io->in.data + io->in_at, have, f) : 0;
		ssize_t r;

		if (n < 0)
			return (int)n;
		if (n > 0) {
			io->in_at += (size_t)n;
			return 0;
		}
		if (io->in_at)
			buf_consume(&io->in, io->in_at);
		io->in_at = 0;
		if (buf_reserve(&io->in, RECV_STEP) < 0)
			return -ENOMEM;
		r = recv(io->fd, io->in.data + io->in.len, RECV_STEP, 0);
		if (r < 0 && errno == EINTR)
			continue;
		if (r <= 0)
			return r < 0 ? -errno : -ECONNRESET;
		io->in.len += (size_t)r;
	}
}

static int become(const json_t *request, struct err *e)
{
	_cleanup_(user_free) struct user u = { 0 };
	int r = user_find(json_get_str(request, "user", NULL), &u, e);

	if (r == 0)
		r = user_become(&u);
	if (r < 0 && !e->code)
		agent_errno(e, -r, "become user %s", u.name);
	return r;
}

static void lay_down_traits(void)
{
	sigset_t none;
	int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);

	if (fd >= 0) {
		ssize_t ignored = write(fd, "500", 3);

		(void)ignored;
		close(fd);
	}
	setpriority(PRIO_PROCESS, 0, 0);
	for (int sig = 1; sig < NSIG; sig++)
		signal(sig, SIG_DFL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	umask(022);
}

static void helper(int fd, struct buf *left, enum agent_op op, const json_t *request)
	__attribute__((noreturn));

static void helper(int fd, struct buf *left, enum agent_op op, const json_t *request)
{
	struct file_io io = {
		.fd = STREAM_FD, .in = *left, .name_uid = (uid_t)-1, .name_gid = (gid_t)-1
	};
	struct err e = { 0 };
	struct frame f;

	lay_down_traits();
	if (dup2(fd, STREAM_FD) < 0 || close_range(STREAM_FD + 1, ~0U, 0) < 0 ||
	    fd_set_nonblock(STREAM_FD, false) < 0)
		_exit(1);
	if ((op != OP_SYNC && become(request, &e) < 0) || handlers[op](&io, request, &e) < 0)
		file_send_json(&io, FRAME_ERROR, stream_error_json(&e));
	shutdown(STREAM_FD, SHUT_WR);
	while (file_receive(&io, &f) == 0)
		; /* what the host still sends; its close ends it */
	_exit(0);
}

void file_start(struct agent *a, struct stream *s, enum agent_op op, const json_t *request)
{
	_cleanup_buf_ struct buf left = { 0 };
	struct err e = { 0 };
	int fd;
	pid_t pid = -1;

	if (a->stopping) {
		err_set(&e, "stopping", ESHUTDOWN, "the sandbox is stopping");
		stream_error(s, &e);
		return;
	}
	fd = stream_peek_fd(s, &left);
	if (fd >= 0)
		pid = fork();
	if (pid == 0)
		helper(fd, &left, op, request);
	if (pid < 0) {
		agent_errno(&e, fd < 0 ? -fd : errno, "start a file operation");
		stream_error(s, &e);
		return;
	}
	a->helpers[a->n_helpers++] = pid;
	stream_abandon(s);
}
