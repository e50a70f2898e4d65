/*
 * Two lines of defence: the words of a name are checked before it is used, and the kernel refuses
 * (RESOLVE_BENEATH, RESOLVE_NO_SYMLINKS) what the words did not show.
 */
#include "cli/path.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"

#define NAME_BYTES_MAX 255
#define WORKSPACE "/workspace"

void place_free(struct place *p)
{
	free(p->sandbox);
	free(p->path);
	*p = (struct place){ 0 };
}

int place_parse(const char *arg, struct place *out, struct err *e)
{
	size_t n = strcspn(arg, ":/");
	const char *path = arg;
	struct buf b = { 0 };

	*out = (struct place){ 0 };
	if (arg[n] == ':' && n) {
		out->sandbox = strndup(arg, n);
		if (!out->sandbox)
			return err_errno(e, ENOMEM, "read %s", arg);
		path = arg + n + 1;
		if (*path != '/' && path_join(&b, WORKSPACE, path) == 0)
			path = b.data;
	}
	out->path = strdup(path);
	buf_free(&b);
	if (!out->path) {
		place_free(out);
		return err_errno(e, ENOMEM, "read %s", arg);
	}
	return 0;
}

bool path_is_inside(const char *rel)
{
	for (;;) {
		size_t n = strcspn(rel, "/");

		if (n == 0 || n > NAME_BYTES_MAX || (n == 1 && rel[0] == '.') ||
		    (n == 2 && rel[0] == '.' && rel[1] == '.'))
			return false;
		if (!rel[n])
			return true;
		rel += n + 1;
	}
}

const char *path_last(const char *path, size_t *len)
{
	size_t end = strlen(path), from;

	while (end && path[end - 1] == '/')
		end--;
	for (from = end; from && path[from - 1] != '/'; from--)
		;
	*len = end - from;
	if (*len == 0 || (*len == 1 && path[from] == '.') ||
	    (*len == 2 && path[from] == '.' && path[from + 1] == '.'))
		return NULL;
	return path + from;
}

int path_join(struct buf *b, const char *dir, const char *name)
{
	size_t n = strlen(dir);
	int ret = buf_str(b, dir);

	if (ret == 0 && n && dir[n - 1] != '/')
		ret = buf_str(b, "/");
	return ret ?: buf_str(b, name);
}

int path_open_inside(int dirfd, const char *rel, int flags, mode_t mode)
{
	struct open_how how = {
		.flags = (uint64_t)(flags | O_CLOEXEC),
		.mode = flags & O_CREAT ? mode : 0,
		.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS,
	};
	int fd;

	if (!path_is_inside(rel))
		return -EXDEV;
	do
		fd = (int)syscall(SYS_openat2, dirfd, rel, &how, sizeof(how));
	while (fd < 0 && errno == EAGAIN);
	return fd < 0 ? -errno : fd;
}
