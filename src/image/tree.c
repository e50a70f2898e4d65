/*
 * A swap is renameat2(RENAME_EXCHANGE) where target exists, so there is no moment without it; the
 * old tree then sits under the scratch name and is removed. syncfs(2) before the swap makes sure
 * that a crash cannot leave the new name on unwritten data.
 */
#include "image/tree.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <linux/fs.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"

#define CHUNK (1UL << 20)

void path_printf(char out[PATH_MAX], const char *fmt, ...)
{
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(out, PATH_MAX, fmt, ap);
	va_end(ap);
	if (n < 0 || n >= PATH_MAX)
		out[0] = '\0';
}

int tree_mkdirs(const char *path, struct err *e)
{
	_cleanup_free_ char *p = strdup(path);
	struct stat st;

	if (!p)
		return err_errno(e, ENOMEM, "make %s", path);
	for (char *s = strchr(p + 1, '/'); s; s = strchr(s + 1, '/')) {
		*s = '\0';
		mkdir(p, 0755);
		*s = '/';
	}
	if (mkdir(p, 0755) < 0 && errno != EEXIST)
		return err_errno(e, errno, "make %s", path);
	if (stat(p, &st) < 0 || !S_ISDIR(st.st_mode))
		return err_errno(e, ENOTDIR, "make %s", path);
	return 0;
}

int tree_scratch(const char *parent, const char *tag, char path[PATH_MAX], struct err *e)
{
	int ret = tree_mkdirs(parent, e);

	if (ret < 0)
		return ret;
	path_printf(path, "%s/.%s-XXXXXX", parent, tag);
	if (!mkdtemp(path)) {
		path[0] = '\0'; /* nothing there to remove */
		return err_errno(e, errno, "make a folder in %s", parent);
	}
	/* Root of a user namespace must be able to pass through; the name cannot be guessed. */
	if (chmod(path, 0711) < 0)
		return err_errno(e, errno, "chmod %s", path);
	return 0;
}

int tree_commit(const char *path, const char *target, struct err *e)
{
	_cleanup_close_ int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0 || fchmod(fd, 0755) < 0 || syncfs(fd) < 0)
		return err_errno(e, errno, "flush %s", path);
	if (renameat2(AT_FDCWD, path, AT_FDCWD, target, RENAME_NOREPLACE) == 0)
		return 0;
	if (errno != EEXIST || renameat2(AT_FDCWD, path, AT_FDCWD, target, RENAME_EXCHANGE) < 0)
		return err_errno(e, errno, "put %s in place", target);
	tree_remove(path);
	return 0;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *w)
{
	(void)st;
	(void)w;
	if (type == FTW_DP || type == FTW_D || type == FTW_DNR)
		rmdir(path);
	else
		unlink(path);
	return 0;
}

void tree_remove(const char *path)
{
	nftw(path, remove_one, 64, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}

/* Copies the data between holes. */
static int copy_sparse(int in, int out, off_t size)
{
	_cleanup_free_ char *chunk = malloc(CHUNK);
	off_t at = 0;

	if (!chunk)
		return -ENOMEM;
	if (ftruncate(out, size) < 0)
		return -errno;
	while (at < size) {
		off_t data = lseek(in, at, SEEK_DATA), hole;

		if (data < 0 && errno == ENXIO)
			break;
		/* A file system without holes says EINVAL: all of it is data. */
		hole = data < 0 ? size : lseek(in, data, SEEK_HOLE);
		for (at = data < 0 ? at : data; at < hole;) {
			size_t want = (uint64_t)(hole - at) < CHUNK ? (size_t)(hole - at) : CHUNK;
			ssize_t n = pread(in, chunk, want, at);

			if (n <= 0)
				return n < 0 ? -errno : -EIO;
			if (pwrite(out, chunk, (size_t)n, at) != n)
				return errno ? -errno : -EIO;
			at += n;
		}
	}
	return 0;
}

void tree_sweep(const char *parent, const char *tag)
{
	_cleanup_closedir_ DIR *d = opendir(parent);
	size_t n = strlen(tag);

	for (struct dirent *f; d && (f = readdir(d));) {
		char path[PATH_MAX];

		if (f->d_name[0] != '.' || strncmp(f->d_name + 1, tag, n) != 0 ||
		    f->d_name[n + 1] != '-' || strlen(f->d_name) != n + 8)
			continue;
		path_printf(path, "%s/%s", parent, f->d_name);
		tree_remove(path);
	}
}

int tree_copy_file(const char *from, const char *to, struct err *e)
{
	_cleanup_close_ int in = open(from, O_RDONLY | O_CLOEXEC), out = -1;
	struct stat st;
	int ret;

	if (in < 0 || fstat(in, &st) < 0)
		return err_errno(e, errno, "open %s", from);
	out = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	if (out < 0)
		return err_errno(e, errno, "create %s", to);
	if (ioctl(out, FICLONE, in) == 0)
		return 0;
	errno = 0;
	ret = copy_sparse(in, out, st.st_size);
	return ret < 0 ? err_errno(e, -ret, "copy %s to %s", from, to) : 0;
}

int tree_lock(const char *path, const char *what, struct err *e)
{
	_cleanup_close_ int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);

	if (fd < 0)
		return err_errno(e, errno, "open %s", path);
	if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
		if (errno != EWOULDBLOCK)
			return err_errno(e, errno, "lock %s", path);
		err_set(e, "busy", EBUSY, "another process is working on %s", what);
		err_fix(e, "Wait until it has ended, then try again.");
		return -EBUSY;
	}
	return steal_fd(&fd);
}
