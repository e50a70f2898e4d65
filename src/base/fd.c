/* Loops over short reads and writes, atomic file replacement, SCM_RIGHTS. No state. */
#include "base/fd.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"

ssize_t fd_read_full(int fd, void *p, size_t n)
{
	size_t done = 0;

	while (done < n) {
		ssize_t r = read(fd, (char *)p + done, n - done);

		if (r < 0 && errno == EINTR)
			continue;
		if (r < 0)
			return -errno;
		if (r == 0)
			break;
		done += (size_t)r;
	}
	return (ssize_t)done;
}

int fd_write_full(int fd, const void *p, size_t n)
{
	size_t done = 0;

	while (done < n) {
		ssize_t r = write(fd, (const char *)p + done, n - done);

		if (r < 0 && errno == EINTR)
			continue;
		if (r < 0)
			return -errno;
		done += (size_t)r;
	}
	return 0;
}

int fd_read_all(int fd, struct buf *b, size_t max)
{
	size_t got = 0;

	for (;;) {
		ssize_t r;

		if (buf_reserve(b, 16384) < 0)
			return -ENOMEM;
		r = read(fd, b->data + b->len, b->cap - b->len - 1);
		if (r < 0 && errno == EINTR)
			continue;
		if (r < 0)
			return -errno;
		if (r == 0)
			return 0;
		got += (size_t)r;
		if (got > max)
			return -EFBIG;
		b->len += (size_t)r;
		b->data[b->len] = '\0';
	}
}

int fd_read_file(const char *path, struct buf *b, size_t max, struct err *e)
{
	_cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
	int r;

	if (fd < 0)
		return err_errno(e, errno, "open %s", path);
	r = fd_read_all(fd, b, max);
	if (r < 0)
		return err_errno(e, -r, "read %s", path);
	return 0;
}

static int fsync_parent(const char *path, struct err *e)
{
	_cleanup_free_ char *dir = strdup(path);
	_cleanup_close_ int fd = -1;
	char *slash;

	if (!dir)
		return err_errno(e, ENOMEM, "sync folder of %s", path);
	slash = strrchr(dir, '/');
	if (slash == dir)
		slash[1] = '\0';
	else if (slash)
		*slash = '\0';
	fd = open(slash ? dir : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0 || fsync(fd) < 0)
		return err_errno(e, errno, "sync folder of %s", path);
	return 0;
}

int fd_write_file_atomic(const char *path, const void *p, size_t n, mode_t mode, struct err *e)
{
	_cleanup_buf_ struct buf tmp = { 0 };
	_cleanup_close_ int fd = -1;
	int r;

	if (buf_printf(&tmp, "%s.XXXXXX", path) < 0)
		return err_errno(e, ENOMEM, "write %s", path);
	fd = mkostemp(tmp.data, O_CLOEXEC);
	if (fd < 0)
		return err_errno(e, errno, "create %s", tmp.data);
	r = fd_write_full(fd, p, n);
	if (r == 0 && (fchmod(fd, mode) < 0 || fsync(fd) < 0 || rename(tmp.data, path) < 0))
		r = -errno;
	if (r < 0) {
		unlink(tmp.data);
		return err_errno(e, -r, "write %s", path);
	}
	return fsync_parent(path, e);
}

int fd_set_nonblock(int fd, bool on)
{
	int flags = fcntl(fd, F_GETFL);

	if (flags < 0)
		return -errno;
	flags = on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK;
	return fcntl(fd, F_SETFL, flags) < 0 ? -errno : 0;
}

int fd_send_msg(int sock, const void *p, size_t n, const int *fds, size_t nfds)
{
	union {
		struct cmsghdr align;
		char b[CMSG_SPACE(sizeof(int) * FD_PASS_MAX)];
	} ctl = { 0 };
	struct iovec iov = { (void *)(uintptr_t)p, n };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1 };
	ssize_t r;

	if (nfds > FD_PASS_MAX)
		return -EINVAL;
	if (nfds) {
		struct cmsghdr *c;

		m.msg_control = ctl.b;
		m.msg_controllen = CMSG_SPACE(sizeof(int) * nfds);
		c = CMSG_FIRSTHDR(&m);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int) * nfds);
		memcpy(CMSG_DATA(c), fds, sizeof(int) * nfds);
	}
	do {
		r = sendmsg(sock, &m, MSG_NOSIGNAL);
	} while (r < 0 && errno == EINTR);
	if (r < 0)
		return -errno;
	return (size_t)r == n ? 0 : -EMSGSIZE;
}

/* Collects the descriptors of a message; returns how many came, the surplus closed. */
static size_t take_fds(struct msghdr *m, int *fds, size_t max)
{
	size_t came = 0;

	for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
		size_t n;

		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (size_t i = 0; i < n; i++, came++) {
			int fd;

			memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
			if (came < max)
				fds[came] = fd;
			else
				close(fd);
		}
	}
	return came;
}

ssize_t fd_recv_msg(int sock, void *p, size_t n, int *fds, size_t *nfds)
{
	union {
		struct cmsghdr align;
		char b[CMSG_SPACE(sizeof(int) * FD_PASS_MAX)];
	} ctl;
	struct iovec iov = { p, n };
	struct msghdr m = { .msg_iov = &iov,
			    .msg_iovlen = 1,
			    .msg_control = ctl.b,
			    .msg_controllen = sizeof(ctl.b) };
	size_t max = nfds ? *nfds : 0, came;
	ssize_t r;

	do {
		r = recvmsg(sock, &m, MSG_CMSG_CLOEXEC);
	} while (r < 0 && errno == EINTR);
	if (r < 0)
		return -errno;
	came = take_fds(&m, fds, max);
	if (came > max || (m.msg_flags & (MSG_TRUNC | MSG_CTRUNC))) {
		for (size_t i = 0; i < came && i < max; i++)
			close(fds[i]);
		if (nfds)
			*nfds = 0;
		return -EMSGSIZE;
	}
	if (nfds)
		*nfds = came;
	return r;
}

int fd_count_open(void)
{
	_cleanup_closedir_ DIR *d = opendir("/proc/self/fd");
	struct dirent *de;
	int n = 0;

	if (!d)
		return -errno;
	while ((de = readdir(d)))
		if (de->d_name[0] != '.')
			n++;
	return n - 1; /* the folder itself */
}
