/*
 * Listing, and changes of names: mkdir, move, remove. Trees are walked by descriptors and never
 * through links: a folder that is swapped for a link meanwhile is refused by O_NOFOLLOW.
 *
 * Removal holds one descriptor at a time, however deep the tree: it goes down by name and up by
 * "..", and checks that up is where it came from.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/agent.h"
#include "agent/file.h"
#include "base/cleanup.h"
#include "base/json.h"

#define LIST_DEFAULT 10000
#define PART_BYTES (96u << 10)

#define DIR_FLAGS (O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)

static int reply_stat(struct file_io *io, const char *path, struct err *e)
{
	json_t *st = file_stat_json(io, AT_FDCWD, path, path, e);

	if (!st)
		return -EIO;
	file_send_json(io, FRAME_REPLY, st);
	return 0;
}

/* ---- listing ---- */

struct listing {
	struct file_io *io;
	json_t *part;
	size_t part_bytes;
	int64_t left;
	bool truncated;
};

static void part_send(struct listing *l)
{
	if (json_array_size(l->part))
		file_send_json(l->io, FRAME_ENTRIES, json_incref(l->part));
	json_decref(l->part);
	l->part = json_array();
	l->part_bytes = 0;
}

static int compare(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static void names_free(struct buf *names)
{
	char **v = (char **)names->data;

	for (size_t i = 0; i < names->len / sizeof(*v); i++)
		free(v[i]);
	buf_free(names);
}

/* All names in the folder, sorted, as an array of strings in b. */
static int names_read(int fd, struct buf *b)
{
	_cleanup_close_ int own = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	_cleanup_closedir_ DIR *d = own < 0 ? NULL : fdopendir(own);
	struct dirent *de;

	if (!d)
		return -errno;
	steal_fd(&own);
	while ((de = readdir(d))) {
		char *name;

		if (strcmp(de->d_name, ".") == 0 || strcmp(de->d_name, "..") == 0)
			continue;
		name = strdup(de->d_name);
		if (!name || buf_add(b, &name, sizeof(name)) < 0) {
			free(name);
			return -ENOMEM;
		}
	}
	if (b->len)
		qsort(b->data, b->len / sizeof(char *), sizeof(char *), compare);
	return 0;
}

static void list_entry(struct listing *l, int dir, const char *name, const char *path, int depth);

/* A folder inside that cannot be read is listed without its content. */
static int list_folder(struct listing *l, int fd, const char *path, int depth)
{
	_cleanup_(names_free) struct buf names = { 0 };
	int r = names_read(fd, &names);
	char **v = (char **)names.data;

	for (size_t i = 0; r == 0 && i < names.len / sizeof(*v); i++) {
		_cleanup_buf_ struct buf full = { 0 };

		if (l->truncated)
			break;
		if (buf_printf(&full, "%s%s%s", path, path[1] ? "/" : "", v[i]) < 0)
			return -ENOMEM;
		list_entry(l, fd, v[i], full.data, depth);
	}
	return r;
}

static void list_entry(struct listing *l, int dir, const char *name, const char *path, int depth)
{
	struct err e = { 0 };
	json_t *st;

	if (l->left == 0) {
		l->truncated = true;
		return;
	}
	st = file_stat_json(l->io, dir, name, path, &e);
	if (!st)
		return; /* removed since its folder was read */
	l->left--;
	l->part_bytes += 256 + 2 * strlen(path) + strlen(json_get_str(st, "target", "")) * 2;
	json_array_append_new(l->part, st);
	if (depth > 1 && strcmp(json_get_str(st, "type", ""), "directory") == 0) {
		_cleanup_close_ int fd = openat(dir, name, DIR_FLAGS);

		if (fd >= 0)
			(void)list_folder(l, fd, path, depth - 1);
	}
	if (l->part_bytes > PART_BYTES)
		part_send(l);
}

int file_list(struct file_io *io, const json_t *request, struct err *e)
{
	const char *path = json_get_str(request, "path", "");
	struct listing l = { .io = io, .left = json_get_int(request, "limit", LIST_DEFAULT) };
	/* The folder that was asked for may itself be a link. */
	_cleanup_close_ int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	_cleanup_free_ char *base = strdup(path);
	size_t n = strlen(path);
	int r;

	if (fd < 0 || !base)
		return agent_errno(e, fd < 0 ? errno : ENOMEM, "list %s", path);
	while (n > 1 && base[n - 1] == '/')
		base[--n] = '\0';
	file_send_json(io, FRAME_REPLY, file_stat_json(io, fd, "", path, e));
	l.part = json_array();
	r = list_folder(&l, fd, base, (int)json_get_int(request, "depth", 1));
	if (r == 0)
		part_send(&l);
	json_decref(l.part);
	if (r < 0)
		return agent_errno(e, -r, "list %s", path);
	file_send_json(io, FRAME_END, json_pack("{s:b}", "truncated", l.truncated));
	return 0;
}

/* ---- mkdir, move ---- */

static int make_one(const char *path, mode_t mode)
{
	struct stat st;
	int saved;

	if (mkdir(path, mode) == 0)
		return 0;
	saved = errno; /* an existing folder may also say EROFS or EACCES */
	if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
		return 0;
	return saved == EEXIST ? -ENOTDIR : -saved;
}

int file_make_parents(const char *path, bool all, mode_t mode, struct err *e)
{
	_cleanup_free_ char *s = strdup(path);
	int r = 0;

	if (!s)
		return agent_errno(e, ENOMEM, "make %s", path);
	for (char *at = s + 1; *at && r == 0; at++) {
		if (*at != '/')
			continue;
		*at = '\0';
		r = make_one(s, 0755);
		*at = '/';
	}
	if (r == 0 && all)
		r = make_one(s, mode);
	return r < 0 ? agent_errno(e, -r, "make %s", path) : 0;
}

int file_mkdir(struct file_io *io, const json_t *request, struct err *e)
{
	const char *path = json_get_str(request, "path", "");
	mode_t mode = (mode_t)json_get_int(request, "mode", 0755);
	int r = 0;

	if (json_get_bool(request, "parents", false))
		r = file_make_parents(path, true, mode, e);
	else if (mkdir(path, mode) < 0)
		r = agent_errno(e, errno, "make %s", path);
	return r < 0 ? r : reply_stat(io, path, e);
}

int file_move(struct file_io *io, const json_t *request, struct err *e)
{
	const char *from = json_get_str(request, "from", ""), *to = json_get_str(request, "to", "");
	unsigned flags = json_get_bool(request, "overwrite", false) ? 0 : RENAME_NOREPLACE;

	if (renameat2(AT_FDCWD, from, AT_FDCWD, to, flags) < 0) {
		int errnum = errno;

		agent_errno(e, errnum, "move %s to %s", from, to);
		if (errnum == EXDEV)
			err_fix(e, "The two are on different file systems: copy, then remove.");
		if (errnum == EEXIST)
			err_fix(e, "Set overwrite, or choose another name.");
		return -errnum;
	}
	return reply_stat(io, to, e);
}

/* ---- remove ---- */

struct level {
	dev_t dev;
	ino_t ino;
	char *name; /* in the folder above */
};

struct walk {
	int dir;	   /* the folder we are in */
	struct buf levels; /* those above it, and it */
};

static struct level *top(struct walk *w)
{
	return (struct level *)(w->levels.data + w->levels.len) - 1;
}

static void walk_free(struct walk *w)
{
	while (w->levels.len) {
		free(top(w)->name);
		w->levels.len -= sizeof(struct level);
	}
	buf_free(&w->levels);
	close_fd(&w->dir);
}

static int go_down(struct walk *w, const char *name)
{
	_cleanup_close_ int fd = openat(w->dir, name, DIR_FLAGS);
	struct level l = { 0 };
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0)
		return -errno;
	l = (struct level){ st.st_dev, st.st_ino, strdup(name) };
	if (!l.name || buf_add(&w->levels, &l, sizeof(l)) < 0) {
		free(l.name);
		return -ENOMEM;
	}
	close_fd(&w->dir);
	w->dir = steal_fd(&fd);
	return 0;
}

/* Leaves the emptied folder and removes it. */
static int go_up(struct walk *w)
{
	_cleanup_close_ int up = openat(w->dir, "..", DIR_FLAGS);
	_cleanup_free_ char *name = steal_ptr(top(w)->name);
	struct stat st;

	w->levels.len -= sizeof(struct level);
	if (up < 0 || fstat(up, &st) < 0)
		return -errno;
	if (st.st_dev != top(w)->dev || st.st_ino != top(w)->ino)
		return -ESTALE; /* somebody moved the tree while we were in it */
	close_fd(&w->dir);
	w->dir = steal_fd(&up);
	return unlinkat(w->dir, name, AT_REMOVEDIR) < 0 ? -errno : 0;
}

/* Removes everything but folders from w->dir. 1 with the name of a folder that is left to empty,
 * 0 when nothing is left. */
static int empty_folder(struct walk *w, char **folder)
{
	_cleanup_close_ int own = openat(w->dir, ".", DIR_FLAGS);
	_cleanup_closedir_ DIR *d = own < 0 ? NULL : fdopendir(own);
	struct dirent *de;

	if (!d)
		return -errno;
	steal_fd(&own);
	while ((de = readdir(d))) {
		const char *name = de->d_name;

		if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
			continue;
		if (de->d_type != DT_DIR && (unlinkat(w->dir, name, 0) == 0 || errno == ENOENT))
			continue;
		if (de->d_type != DT_DIR && errno != EISDIR)
			return -errno;
		if (unlinkat(w->dir, name, AT_REMOVEDIR) == 0)
			continue;
		if (errno != ENOTEMPTY && errno != EEXIST)
			return -errno;
		*folder = strdup(name);
		return *folder ? 1 : -ENOMEM;
	}
	return 0;
}

/* Empties the folder name in dir and removes it. */
static int remove_tree(int dir, const char *name)
{
	_cleanup_(walk_free) struct walk w = { .dir = dir };
	struct level bottom = { 0 };
	struct stat st;
	int r;

	if (fstat(dir, &st) < 0)
		return -errno;
	bottom = (struct level){ st.st_dev, st.st_ino, NULL };
	if (buf_add(&w.levels, &bottom, sizeof(bottom)) < 0)
		return -ENOMEM;
	r = go_down(&w, name);
	while (r == 0 && w.levels.len > sizeof(struct level)) {
		_cleanup_free_ char *folder = NULL;

		r = empty_folder(&w, &folder);
		if (r == 1)
			r = go_down(&w, folder);
		else if (r == 0)
			r = go_up(&w);
	}
	return r;
}

int file_remove(struct file_io *io, const json_t *request, struct err *e)
{
	const char *path = json_get_str(request, "path", "");
	_cleanup_free_ char *s = strdup(path);
	size_t n = strlen(path);
	struct stat st;
	char *slash;
	int dir, r;

	if (!s)
		return agent_errno(e, ENOMEM, "remove %s", path);
	while (n > 1 && s[n - 1] == '/')
		s[--n] = '\0';
	slash = strrchr(s, '/');
	if (!slash[1] || strcmp(slash + 1, ".") == 0 || strcmp(slash + 1, "..") == 0)
		return err_set(e, "bad_request", EINVAL, "remove %s: name the folder itself", path);
	*slash = '\0';
	dir = open(slash == s ? "/" : s, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0 || fstatat(dir, slash + 1, &st, AT_SYMLINK_NOFOLLOW) < 0) {
		r = -errno;
		close_fd(&dir);
	} else if (S_ISDIR(st.st_mode) && json_get_bool(request, "recursive", false)) {
		r = remove_tree(dir, slash + 1); /* owns dir */
	} else {
		r = unlinkat(dir, slash + 1, S_ISDIR(st.st_mode) ? AT_REMOVEDIR : 0) < 0 ? -errno
											 : 0;
		close(dir);
	}
	if (r < 0) {
		agent_errno(e, -r, "remove %s", path);
		if (r == -ENOTEMPTY)
			err_fix(e, "Set recursive to remove a folder with its content.");
		return r;
	}
	file_send_json(io, FRAME_REPLY, json_object());
	return 0;
}
