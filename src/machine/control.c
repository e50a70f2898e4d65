/*
 * Only one peer at a time is served by QEMU; a second waits in the backlog. What the guest wrote
 * while nobody was connected is lost, and half a line may come first, so an empty line is sent
 * before the request and lines that are neither indented nor a verdict are passed over.
 */
#include "machine/control.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"

#define ANSWER_MAX 65536

int control_connect(const char *state_dir, const char *name, struct err *e)
{
	_cleanup_close_ int dir = open(state_dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
	_cleanup_close_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct sockaddr_un a = { .sun_family = AF_UNIX };

	if (dir < 0 || fd < 0)
		return err_errno(e, errno, "open %s", state_dir);
	snprintf(a.sun_path, sizeof(a.sun_path), "/proc/self/fd/%d/%s", dir, name);
	if (connect(fd, (struct sockaddr *)&a, sizeof(a)) < 0)
		return err_errno(e, errno, "connect to %s/%s", state_dir, name);
	return steal_fd(&fd);
}

int control_verdict(const char *line)
{
	return strcmp(line, "ok") == 0 ? 1 : strcmp(line, "no") == 0 ? 0 : -1;
}

/* Takes whole lines out of in; the verdict once it came, else -EAGAIN. */
static int take_lines(struct buf *in, struct buf *answer)
{
	char *end;

	while (in->len && (end = memchr(in->data, '\n', in->len))) {
		int verdict;

		*end = '\0';
		if (end > in->data && end[-1] == '\r')
			end[-1] = '\0';
		verdict = control_verdict(in->data);
		if (verdict >= 0)
			return verdict;
		if (answer && in->data[0] == ' ' && buf_printf(answer, "%s\n", in->data + 1) < 0)
			return -ENOMEM;
		buf_consume(in, (size_t)(end - in->data) + 1);
	}
	return -EAGAIN;
}

static int read_answer(int fd, unsigned timeout_ms, struct buf *answer)
{
	uint64_t end = clock_mono_ns() + timeout_ms * NSEC_PER_MSEC;
	_cleanup_buf_ struct buf in = { 0 };
	int ret = -EAGAIN;

	while (ret == -EAGAIN) {
		uint64_t now = clock_mono_ns();
		struct pollfd p = { .fd = fd, .events = POLLIN };
		char chunk[4096];
		ssize_t n;

		if (now >= end || in.len > ANSWER_MAX)
			return -ETIME;
		if (poll(&p, 1, (int)((end - now) / NSEC_PER_MSEC) + 1) <= 0)
			continue;
		n = read(fd, chunk, sizeof(chunk));
		if (n <= 0)
			return n < 0 ? -errno : -ECONNRESET;
		if (buf_add(&in, chunk, (size_t)n) < 0)
			return -ENOMEM;
		ret = take_lines(&in, answer);
	}
	return ret;
}

int control_ask(const char *state_dir, const char *verb, unsigned timeout_ms, struct buf *answer,
		struct err *e)
{
	_cleanup_close_ int fd = control_connect(state_dir, "control.sock", e);
	char line[64];
	int n, ret;

	if (fd < 0)
		return fd;
	n = snprintf(line, sizeof(line), "\n%s\n", verb);
	ret = fd_write_full(fd, line, (size_t)n);
	if (ret == 0)
		ret = read_answer(fd, timeout_ms, answer);
	return ret < 0 ? err_errno(e, -ret, "ask the machine to %s", verb) : ret;
}
