/*
 * FICLONE shares all blocks in one call; where the file system refuses, the data extents that
 * SEEK_DATA finds are copied one by one. A file system without SEEK_DATA says that all is data.
 */
#include "sandbox/disk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"

#define COPY_CHUNK (64u << 20)

static int copy_extent(int src, int dst, off_t from, off_t to, struct err *e)
{
	while (from < to) {
		off_t in = from, out = from;
		size_t want = (size_t)(to - from) < COPY_CHUNK ? (size_t)(to - from) : COPY_CHUNK;
		ssize_t n = copy_file_range(src, &in, dst, &out, want, 0);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return err_errno(e, errno, "copy the disk");
		if (n == 0)
			return err_set(e, "system", EIO, "copy the disk: it became shorter");
		from += n;
	}
	return 0;
}

static int copy_sparse(int src, int dst, off_t size, struct err *e)
{
	off_t at = 0;

	while (at < size) {
		off_t data = lseek(src, at, SEEK_DATA), hole;
		int r;

		if (data < 0 && errno == ENXIO)
			return 0; /* only a hole is left */
		if (data < 0)
			return err_errno(e, errno, "find the data of a disk");
		hole = lseek(src, data, SEEK_HOLE);
		if (hole < 0)
			return err_errno(e, errno, "find the holes of a disk");
		r = copy_extent(src, dst, data, hole, e);
		if (r < 0)
			return r;
		at = hole;
	}
	return 0;
}

int disk_copy(int src, const char *path, uint64_t bytes, struct err *e)
{
	_cleanup_close_ int dst = -1;
	struct stat st;
	int r = 0;

	if (fstat(src, &st) < 0)
		return err_errno(e, errno, "copy the disk");
	if (bytes < (uint64_t)st.st_size)
		return err_set(e, "system", EINVAL, "a disk cannot be smaller than its image");
	dst = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (dst < 0)
		return err_errno(e, errno, "create %s", path);
	if (ioctl(dst, FICLONE, src) < 0)
		r = copy_sparse(src, dst, st.st_size, e);
	if (r == 0 && ftruncate(dst, (off_t)bytes) < 0)
		r = err_errno(e, errno, "size %s", path);
	if (r < 0)
		unlink(path);
	return r;
}

int disk_allocated(int src, uint64_t *bytes, struct err *e)
{
	struct stat st;

	if (fstat(src, &st) < 0)
		return err_errno(e, errno, "size of a disk");
	*bytes = (uint64_t)st.st_blocks * 512;
	return 0;
}

int disk_free_bytes(const char *path, uint64_t *bytes, struct err *e)
{
	struct statvfs v;

	if (statvfs(path, &v) < 0)
		return err_errno(e, errno, "free space at %s", path);
	*bytes = (uint64_t)v.f_bavail * v.f_frsize;
	return 0;
}

int disk_remove_dir(const char *path, struct err *e)
{
	_cleanup_closedir_ DIR *d = opendir(path);
	struct dirent *de;

	if (!d)
		return errno == ENOENT ? 0 : err_errno(e, errno, "open %s", path);
	while ((de = readdir(d))) {
		if (strcmp(de->d_name, ".") == 0 || strcmp(de->d_name, "..") == 0)
			continue;
		if (unlinkat(dirfd(d), de->d_name, 0) < 0 && errno != ENOENT)
			return err_errno(e, errno, "remove %s/%s", path, de->d_name);
	}
	if (rmdir(path) < 0 && errno != ENOENT)
		return err_errno(e, errno, "remove %s", path);
	return 0;
}
