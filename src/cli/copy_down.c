/*
 * From a sandbox to here. Everything the sandbox says — names, kinds, order — is hostile. A folder
 * is listed once; each entry's name must be a plain path below the folder, and is opened relative
 * to a descriptor of the destination by path_open_inside(), so neither ".." nor a link, of the
 * sandbox's making or lying here already, leads out. Links and special files are left out and
 * named. A file arrives under a temporary name and is renamed when it is whole.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/id.h"
#include "base/json.h"
#include "cli/cli.h"
#include "cli/copy.h"
#include "cli/http.h"
#include "cli/path.h"
#include "cli/term.h"

#define LIST_DEPTH "16"

static int to_fd(void *ctx, const void *p, size_t n, struct err *e)
{
	int ret = fd_write_full(*(int *)ctx, p, n);

	return ret < 0 ? err_errno(e, -ret, "write the copy") : 0;
}

static int download(struct copy *c, const char *remote, int fd, struct err *e)
{
	_cleanup_free_ char *url = copy_url(c, "", remote, "");

	if (!url)
		return err_errno(e, ENOMEM, "copy %s", remote);
	progress_step(c->progress, "Copying %s", remote);
	c->files++;
	return http_download(c->http, url, to_fd, &fd, e);
}

/* remote's bytes as name in the folder dirfd (name has no slash). */
static int fetch(struct copy *c, const char *remote, mode_t mode, int dirfd, const char *name,
		 struct err *e)
{
	_cleanup_close_ int fd = -1;
	char id[ID_LEN], temp[ID_LEN + 16];
	int ret;

	id_new("tmp", id);
	snprintf(temp, sizeof(temp), ".cloche-%s", id);
	fd = path_open_inside(dirfd, temp, O_WRONLY | O_CREAT | O_EXCL, 0600);
	if (fd < 0)
		return err_errno(e, -fd, "make %s", name);
	ret = download(c, remote, fd, e);
	if (ret == 0 && fchmod(fd, mode) < 0)
		ret = err_errno(e, errno, "set the mode of %s", name);
	if (ret == 0 && renameat(dirfd, temp, dirfd, name) < 0)
		ret = err_errno(e, errno, "make %s", name);
	if (ret < 0)
		unlinkat(dirfd, temp, 0);
	return ret;
}

/* Opens the folder that holds rel, making folders on the way; *name is rel's last component. */
static int open_parent(int root, const char *rel, const char **name, struct err *e)
{
	const char *slash = strrchr(rel, '/');
	_cleanup_free_ char *dir = slash ? strndup(rel, (size_t)(slash - rel)) : NULL;
	int fd;

	*name = slash ? slash + 1 : rel;
	if (slash && !dir)
		return err_errno(e, ENOMEM, "make %s", rel);
	fd = dir ? path_open_inside(root, dir, O_RDONLY | O_DIRECTORY, 0)
		 : fcntl(root, F_DUPFD_CLOEXEC, 0);
	return fd < 0 ? err_errno(e, slash ? -fd : errno, "open the folder of %s", rel) : fd;
}

/* The permission bits of {"mode":"0644"}; the set-id and sticky bits are not taken over. */
static mode_t mode_of(const json_t *st)
{
	const char *text = json_get_str(st, "mode", "");
	mode_t mode = 0;

	if (!*text || text[strspn(text, "01234567")] || strlen(text) > 6)
		return 0644;
	for (; *text; text++)
		mode = mode << 3 | (mode_t)(*text - '0');
	return mode & 0777;
}

static int copy_entry(struct copy *c, int root, const char *rel, const char *remote,
		      const json_t *st, struct err *e)
{
	const char *type = json_get_str(st, "type", ""), *name;
	mode_t mode = mode_of(st);
	_cleanup_close_ int dir = -1;

	if (!path_is_inside(rel)) {
		copy_skip(c, remote, "its name leads out of the folder");
		return 0;
	}
	if (json_get_bool(st, "lossyName", false)) {
		copy_skip(c, remote, "its name is not UTF-8");
		return 0;
	}
	if (strcmp(type, "file") != 0 && strcmp(type, "directory") != 0) {
		copy_skip(c, remote,
			  strcmp(type, "symlink") == 0 ? "a symbolic link" : "a special file");
		return 0;
	}
	dir = open_parent(root, rel, &name, e);
	if (dir < 0)
		return dir;
	if (strcmp(type, "file") == 0)
		return fetch(c, remote, mode, dir, name, e);
	if (mkdirat(dir, name, mode | 0700) < 0 && errno != EEXIST)
		return err_errno(e, errno, "make the folder %s", rel);
	return 0;
}

/* The part of path below base, or NULL when it is not below. */
static const char *below(const char *base, const char *path)
{
	size_t n = strlen(base);

	while (n && base[n - 1] == '/')
		n--;
	if (strncmp(base, path, n) != 0 || path[n] != '/')
		return NULL;
	return path + n + 1;
}

static int copy_list(struct copy *c, const char *remote, const json_t *list, int root,
		     struct err *e)
{
	const json_t *st;
	size_t i;
	int ret = 0;

	json_array_foreach (list, i, st) {
		const char *path = json_get_str(st, "path", "");
		const char *rel = below(remote, path);

		if (rel && ret == 0)
			ret = copy_entry(c, root, rel, path, st, e);
		else if (!rel && ret == 0 && strcmp(path, remote) != 0)
			copy_skip(c, path, "it is not below the folder that was asked for");
	}
	return ret;
}

static int copy_folder(struct copy *c, const char *remote, const char *local, struct err *e)
{
	_cleanup_free_ char *url = copy_url(c, "/list", remote, "&depth=" LIST_DEPTH);
	_cleanup_json_ json_t *list = NULL;
	_cleanup_close_ int root = -1;
	int ret;

	if (!url)
		return err_errno(e, ENOMEM, "list %s", remote);
	ret = http_json(c->http, "GET", url, NULL, &list, e);
	if (ret < 0)
		return ret;
	if (json_get_bool(list, "truncated", false))
		return err_set(e, "too_large", EFBIG,
			       "%s has too many files to list: copy a tar of it", remote);
	if (mkdir(local, 0777) < 0 && errno != EEXIST)
		return err_errno(e, errno, "make the folder %s", local);
	root = open(local, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (root < 0)
		return err_errno(e, errno, "open the folder %s", local);
	return copy_list(c, remote, json_object_get(list, "data"), root, e);
}

/* As cp(1): into local when that is a folder, else local itself. The name comes from our own
 * command line, not from the sandbox. */
static int target_of(const char *remote, const char *local, struct buf *out, struct err *e)
{
	size_t len;
	const char *last = path_last(remote, &len);
	_cleanup_free_ char *name = NULL;
	struct stat st;
	bool into = stat(local, &st) == 0 && S_ISDIR(st.st_mode);

	if (into && !last)
		return cli_usage(e, "%s has no name of its own: give the whole target", remote);
	name = into ? strndup(last, len) : NULL;
	if (into ? !name || path_join(out, local, name) < 0 : buf_str(out, local) < 0)
		return err_errno(e, ENOMEM, "copy %s", remote);
	return 0;
}

static int copy_file(struct copy *c, const char *remote, const json_t *st, const char *local,
		     struct err *e)
{
	_cleanup_close_ int dir = -1;
	size_t len;
	const char *last = path_last(local, &len);
	_cleanup_free_ char *name = last ? strndup(last, len) : NULL;
	_cleanup_free_ char *parent = last ? strndup(local, (size_t)(last - local)) : NULL;

	if (!name || !parent || last[len])
		return cli_usage(e, "%s is no name for a file", local);
	dir = open(*parent ? parent : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0)
		return err_errno(e, errno, "open the folder of %s", local);
	return fetch(c, remote, mode_of(st), dir, name, e);
}

int copy_down(struct copy *c, const char *remote, const char *local, struct err *e)
{
	_cleanup_buf_ struct buf target = { 0 };
	_cleanup_json_ json_t *st = NULL;
	const char *type;
	int ret;

	if (strcmp(local, "-") == 0)
		return download(c, remote, STDOUT_FILENO, e);
	st = copy_stat(c, remote, &ret, e);
	if (ret < 0)
		return ret;
	if (!st)
		return err_set(e, "not_found", ENOENT, "there is no %s in %s", remote, c->sandbox);
	ret = target_of(remote, local, &target, e);
	if (ret < 0)
		return ret;
	type = json_get_str(st, "type", "");
	if (strcmp(type, "directory") == 0)
		return copy_folder(c, remote, target.data, e);
	if (strcmp(type, "file") == 0)
		return copy_file(c, remote, st, target.data, e);
	return err_set(e, "not_a_file", EINVAL, "%s is neither a file nor a folder but a %s",
		       remote, type);
}
