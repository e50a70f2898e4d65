/*
 * From here into a sandbox. A folder is walked with descriptors (openat, O_NOFOLLOW), depth first;
 * each folder is made in the sandbox before what is in it. Links and special files are left out
 * and named.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/json.h"
#include "cli/copy.h"
#include "cli/http.h"
#include "cli/path.h"
#include "cli/sandbox.h"
#include "cli/term.h"

#define DEPTH_MAX 64

static int upload(struct copy *c, int fd, const struct stat *st, const char *remote, struct err *e)
{
	char query[32] = "";
	_cleanup_free_ char *url = NULL;

	if (st && S_ISREG(st->st_mode))
		snprintf(query, sizeof(query), "&mode=%04o", (unsigned)st->st_mode & 0777);
	url = copy_url(c, "", remote, query);
	if (!url)
		return err_errno(e, ENOMEM, "copy %s", remote);
	progress_step(c->progress, "Copying %s", remote);
	c->files++;
	return http_upload(c->http, url, fd, st && S_ISREG(st->st_mode) ? st->st_size : -1, NULL,
			   e);
}

static int make_dir(struct copy *c, const char *remote, struct err *e)
{
	_cleanup_json_ json_t *body = json_pack("{s:s,s:b}", "path", remote, "parents", 1);

	if (!body)
		return err_set(e, "not_utf8", EILSEQ, "the name of folder %s is not UTF-8", remote);
	return sandbox_call_on(c->http, "POST", c->sandbox, "/files/mkdir", body, NULL, e);
}

static int copy_dir(struct copy *c, int fd, const char *remote, int depth, struct err *e);

static int copy_entry(struct copy *c, int dirfd, const char *name, const char *remote, int depth,
		      struct err *e)
{
	_cleanup_close_ int fd = -1;
	struct stat st;

	if (fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return err_errno(e, errno, "look at %s", remote);
	if (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode)) {
		copy_skip(c, remote, S_ISLNK(st.st_mode) ? "a symbolic link" : "a special file");
		return 0;
	}
	fd = openat(dirfd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) < 0)
		return err_errno(e, errno, "open %s", name);
	if (S_ISDIR(st.st_mode))
		return copy_dir(c, steal_fd(&fd), remote, depth + 1, e);
	return upload(c, fd, &st, remote, e);
}

/* Takes over fd. */
static int copy_dir(struct copy *c, int fd, const char *remote, int depth, struct err *e)
{
	_cleanup_closedir_ DIR *dir = fdopendir(fd);
	struct dirent *d;
	int ret;

	if (!dir) {
		ret = err_errno(e, errno, "read the folder for %s", remote);
		close(fd);
		return ret;
	}
	if (depth > DEPTH_MAX)
		return err_set(e, "too_deep", ELOOP, "%s is more than %d folders deep", remote,
			       DEPTH_MAX);
	ret = make_dir(c, remote, e);
	while (ret == 0 && (errno = 0, d = readdir(dir))) {
		_cleanup_buf_ struct buf path = { 0 };

		if (strcmp(d->d_name, ".") == 0 || strcmp(d->d_name, "..") == 0)
			continue;
		if (path_join(&path, remote, d->d_name) < 0)
			return err_errno(e, ENOMEM, "copy %s", remote);
		ret = copy_entry(c, dirfd(dir), d->d_name, path.data, depth, e);
	}
	if (ret == 0 && errno)
		ret = err_errno(e, errno, "read the folder for %s", remote);
	return ret;
}

/* As cp(1): into remote when that is a folder, else to remote itself. */
static int target_of(struct copy *c, const char *local, const char *remote, struct buf *out,
		     struct err *e)
{
	size_t len, n = strlen(remote);
	const char *last = path_last(local, &len);
	bool into = n && remote[n - 1] == '/';
	_cleanup_json_ json_t *st = NULL;
	_cleanup_free_ char *name = NULL;
	int ret = 0;

	if (!into) {
		st = copy_stat(c, remote, &ret, e);
		if (ret < 0)
			return ret;
		into = st && strcmp(json_get_str(st, "type", ""), "directory") == 0;
	}
	if (into && !last)
		return cli_usage(e, "%s has no name of its own: give the whole target", local);
	name = into ? strndup(last, len) : NULL;
	if (into ? !name || path_join(out, remote, name) < 0 : buf_str(out, remote) < 0)
		return err_errno(e, ENOMEM, "copy %s", local);
	return 0;
}

int copy_up(struct copy *c, const char *local, const char *remote, struct err *e)
{
	_cleanup_buf_ struct buf target = { 0 };
	_cleanup_close_ int fd = -1;
	struct stat st;
	int ret;

	if (strcmp(local, "-") == 0)
		return upload(c, STDIN_FILENO, NULL, remote, e);
	fd = open(local, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) < 0)
		return err_errno(e, errno, "open %s", local);
	ret = target_of(c, local, remote, &target, e);
	if (ret < 0)
		return ret;
	if (S_ISDIR(st.st_mode))
		return copy_dir(c, steal_fd(&fd), target.data, 0, e);
	return upload(c, fd, &st, target.data, e);
}
