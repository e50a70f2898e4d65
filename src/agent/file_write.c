/*
 * Writing a file so that a reader sees the old one or the new one: a temporary file beside it,
 * fsync, rename, fsync of the folder. Whatever goes wrong before the rename removes the temporary
 * file and leaves the old one as it was.
 *
 * A link as the last name is followed once to where it points (as `cat > link` would), and the
 * file there is replaced; the link stays.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/agent.h"
#include "agent/file.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/sha256.h"

#define TMP_LEN 32

struct target {
	char *path;	  /* absolute, its last name no link */
	const char *name; /* inside path */
	int dir;
	mode_t mode;
	char tmp[TMP_LEN]; /* exists in dir while not empty */
	int fd;
};

static void target_close(struct target *t)
{
	if (t->tmp[0])
		unlinkat(t->dir, t->tmp, 0);
	close_fd(&t->fd);
	close_fd(&t->dir);
	free(t->path);
}

/* Where the bytes go: links resolved, the folder open, the old file's mode known. */
static int target_find(struct target *t, const json_t *request, struct err *e)
{
	const char *path = json_get_str(request, "path", "");
	struct stat st;
	char *slash;
	int r;

	if (json_get_bool(request, "makeParents", false)) {
		r = file_make_parents(path, false, 0755, e);
		if (r < 0)
			return r;
	}
	if (lstat(path, &st) == 0 && S_ISLNK(st.st_mode))
		t->path = realpath(path, NULL);
	else
		t->path = strdup(path);
	if (!t->path)
		return agent_errno(e, errno, "write %s", path);
	slash = strrchr(t->path, '/');
	t->name = slash + 1;
	if (!*t->name || strcmp(t->name, ".") == 0 || strcmp(t->name, "..") == 0)
		return agent_errno(e, EISDIR, "write %s", path);
	*slash = '\0';
	t->dir = open(slash == t->path ? "/" : t->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	*slash = '/';
	if (t->dir < 0)
		return agent_errno(e, errno, "write %s", path);
	t->mode = 0644;
	if (fstatat(t->dir, t->name, &st, AT_SYMLINK_NOFOLLOW) == 0) {
		if (S_ISDIR(st.st_mode))
			return agent_errno(e, EISDIR, "write %s", path);
		if (!S_ISREG(st.st_mode))
			return err_set(e, "not_a_file", EINVAL, "write %s: it is no regular file",
				       path);
		t->mode = st.st_mode & 07777;
	}
	t->mode = (mode_t)json_get_int(request, "mode", t->mode);
	return 0;
}

static int target_open_tmp(struct target *t, int64_t size, struct err *e)
{
	uint64_t random;

	if (getrandom(&random, sizeof(random), 0) != sizeof(random))
		return agent_errno(e, errno, "write %s", t->path);
	snprintf(t->tmp, sizeof(t->tmp), ".cloche-%016llx", (unsigned long long)random);
	t->fd = openat(t->dir, t->tmp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (t->fd < 0) {
		t->tmp[0] = '\0';
		return agent_errno(e, errno, "write %s", t->path);
	}
	/* A file that cannot fit is refused before its bytes travel. Where the file system knows no
	 * fallocate the writes will tell. */
	if (size > 0 && fallocate(t->fd, FALLOC_FL_KEEP_SIZE, 0, size) < 0 &&
	    (errno == ENOSPC || errno == EDQUOT || errno == EFBIG))
		return agent_errno(e, errno, "write %s", t->path);
	return 0;
}

static int check_end(const struct frame *f, struct sha256 *sha, const char *path, struct err *e)
{
	_cleanup_json_ json_t *o = json_parse((const char *)f->payload, f->len, NULL);
	const char *want = json_get_str(o, "sha256", NULL);
	char hex[SHA256_HEX_LEN];

	sha256_end_hex(sha, hex);
	if (!o)
		return err_set(e, "bad_request", EPROTO, "the end of the bytes is not JSON");
	if (want && strcmp(want, hex) != 0)
		return err_set(e, "checksum_mismatch", EIO,
			       "write %s: the bytes that came have SHA-256 %s", path, hex);
	return 0;
}

static int receive_bytes(struct file_io *io, struct target *t, int64_t size, struct err *e)
{
	int64_t got = 0;
	struct sha256 sha;
	struct frame f;
	int r;

	sha256_init(&sha);
	for (;;) {
		r = file_receive(io, &f);
		if (r < 0)
			return err_set(e, "io_error", -r, "write %s: the bytes did not come whole",
				       t->path);
		if (f.type == FRAME_DATA_EOF)
			break;
		if (f.type != FRAME_DATA)
			return err_set(e, "bad_request", EPROTO, "frame %d among a file's bytes",
				       f.type);
		r = fd_write_full(t->fd, f.payload, f.len);
		if (r < 0)
			return agent_errno(e, -r, "write %s", t->path);
		sha256_add(&sha, f.payload, f.len);
		got += (int64_t)f.len;
	}
	if (size >= 0 && got != size)
		return err_set(e, "bad_request", EINVAL, "size is %lld, and %lld bytes came",
			       (long long)size, (long long)got);
	return check_end(&f, &sha, t->path, e);
}

static int commit(struct target *t, struct err *e)
{
	if (fchmod(t->fd, t->mode) < 0 || fsync(t->fd) < 0 ||
	    renameat(t->dir, t->tmp, t->dir, t->name) < 0)
		return agent_errno(e, errno, "write %s", t->path);
	t->tmp[0] = '\0';
	if (fsync(t->dir) < 0)
		return agent_errno(e, errno, "write %s", t->path);
	return 0;
}

int file_write(struct file_io *io, const json_t *request, struct err *e)
{
	_cleanup_(target_close) struct target t = { .dir = -1, .fd = -1 };
	int64_t size = json_get_int(request, "size", -1);
	int r = target_find(&t, request, e);
	json_t *st;

	if (r == 0)
		r = target_open_tmp(&t, size, e);
	if (r == 0)
		r = receive_bytes(io, &t, size, e);
	if (r == 0)
		r = commit(&t, e);
	if (r < 0)
		return r;
	st = file_stat_json(io, t.fd, "", json_get_str(request, "path", ""), e);
	if (!st)
		return -EIO;
	file_send_json(io, FRAME_REPLY, st);
	return 0;
}
