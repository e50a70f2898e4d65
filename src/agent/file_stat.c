/* What a path is, in JSON; names of its owner are looked up once for a run of equal ones. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/agent.h"
#include "agent/file.h"
#include "agent/users.h"
#include "base/cleanup.h"
#include "base/json.h"

static const char *type_name(mode_t mode)
{
	switch (mode & S_IFMT) {
	case S_IFREG:
		return "file";
	case S_IFDIR:
		return "directory";
	case S_IFLNK:
		return "symlink";
	case S_IFIFO:
		return "fifo";
	case S_IFSOCK:
		return "socket";
	default:
		return "device";
	}
}

/* Length of the UTF-8 character at s, 0 when the bytes are none. */
static size_t utf8_len(const unsigned char *s)
{
	static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
	size_t n = s[0] < 0x80	     ? 1
		   : s[0] >> 5 == 6  ? 2
		   : s[0] >> 4 == 14 ? 3
		   : s[0] >> 3 == 30 ? 4
				     : 0;
	uint32_t c = n < 2 ? s[0] : s[0] & (0xffu >> (n + 1));

	for (size_t i = 1; i < n; i++) {
		if (s[i] >> 6 != 2)
			return 0;
		c = c << 6 | (s[i] & 0x3f);
	}
	if (n > 1 && (c < least[n] || c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff)))
		return 0;
	return n;
}

/* s as a JSON string; bytes that are not UTF-8 become U+FFFD and *lossy is set. */
static json_t *repaired(const char *s, bool *lossy)
{
	_cleanup_buf_ struct buf b = { 0 };

	while (*s) {
		size_t n = utf8_len((const unsigned char *)s);

		if (buf_add(&b, n ? s : "\xef\xbf\xbd", n ? n : 3) < 0)
			return NULL;
		*lossy |= n == 0;
		s += n ? n : 1;
	}
	return json_string(b.data ? b.data : "");
}

static void look_up_names(struct file_io *io, const struct stat *st)
{
	if (io->name_uid != st->st_uid)
		user_name(st->st_uid, io->user, sizeof(io->user));
	if (io->name_gid != st->st_gid)
		group_name(st->st_gid, io->group, sizeof(io->group));
	io->name_uid = st->st_uid;
	io->name_gid = st->st_gid;
}

json_t *file_stat_json(struct file_io *io, int dir, const char *name, const char *path,
		       struct err *e)
{
	bool lossy = false;
	struct stat st;
	json_t *o;

	if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW | (*name ? 0 : AT_EMPTY_PATH)) < 0) {
		agent_errno(e, errno, "stat %s", path);
		return NULL;
	}
	look_up_names(io, &st);
	o = json_pack("{s:o,s:s,s:I,s:i,s:s,s:s,s:I,s:I,s:I}", "path", repaired(path, &lossy),
		      "type", type_name(st.st_mode), "size", (json_int_t)st.st_size, "mode",
		      (int)(st.st_mode & 07777), "user", io->user, "group", io->group, "uid",
		      (json_int_t)st.st_uid, "gid", (json_int_t)st.st_gid, "mtimeMs",
		      (json_int_t)st.st_mtim.tv_sec * 1000 + st.st_mtim.tv_nsec / 1000000);
	if (o && S_ISLNK(st.st_mode)) {
		char target[PATH_MAX];
		ssize_t n = readlinkat(dir, name, target, sizeof(target) - 1);

		target[n < 0 ? 0 : n] = '\0';
		json_object_set_new(o, "target", repaired(target, &lossy));
	}
	if (o && lossy)
		json_object_set_new(o, "lossyName", json_true());
	if (!o)
		agent_errno(e, ENOMEM, "stat %s", path);
	return o;
}

int file_stat(struct file_io *io, const json_t *request, struct err *e)
{
	const char *path = json_get_str(request, "path", "");
	json_t *st = file_stat_json(io, AT_FDCWD, path, path, e);

	if (!st)
		return -EIO;
	file_send_json(io, FRAME_REPLY, st);
	return 0;
}
