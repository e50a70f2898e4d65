/*
 * Folders are opened without following a link and changed through the descriptor, so that a
 * link planted by the unprivileged child cannot send a chown elsewhere.
 */
#include "broker/dirs.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"

static int make_parents(const char *path, struct err *e)
{
	char p[PATH_MAX];

	if (path[0] != '/' || snprintf(p, sizeof(p), "%s", path) >= (int)sizeof(p))
		return err_set(e, "system", EINVAL, "folder %s: not an absolute path", path);
	for (char *slash = strchr(p + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		if (mkdir(p, 0755) < 0 && errno != EEXIST)
			return err_errno(e, errno, "make folder %s", p);
		*slash = '/';
	}
	return 0;
}

static int make(const char *base, const char *sub, uid_t uid, gid_t gid, mode_t mode, struct err *e)
{
	_cleanup_close_ int fd = -1;
	char path[PATH_MAX];
	int r;

	if (snprintf(path, sizeof(path), "%s%s", base, sub) >= (int)sizeof(path))
		return err_errno(e, ENAMETOOLONG, "folder %s", base);
	r = make_parents(path, e);
	if (r < 0)
		return r;
	if (mkdir(path, mode) < 0 && errno != EEXIST)
		return err_errno(e, errno, "make folder %s", path);
	fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0 || fchown(fd, uid, gid) < 0 || fchmod(fd, mode) < 0)
		return err_errno(e, errno, "set up folder %s", path);
	return 0;
}

int dirs_prepare(const char *state_dir, const char *run_dir, uid_t api_uid, gid_t api_gid,
		 struct err *e)
{
	int r = make(state_dir, "", api_uid, api_gid, 0700, e);

	if (r == 0)
		r = make(state_dir, "/sandboxes", api_uid, api_gid, 0700, e);
	if (r == 0)
		r = make(state_dir, "/images", api_uid, api_gid, 0755, e);
	if (r == 0)
		r = make(run_dir, "", 0, 0, 0755, e);
	return r < 0 ? r : make(run_dir, "/vmm", 0, api_gid, 0750, e);
}

int dirs_lock(const char *run_dir, int *fd, struct err *e)
{
	_cleanup_close_ int f = -1;
	char path[PATH_MAX];
	int r;

	if (snprintf(path, sizeof(path), "%s/cloched.lock", run_dir) >= (int)sizeof(path))
		return err_errno(e, ENAMETOOLONG, "run folder");
	f = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (f < 0)
		return err_errno(e, errno, "open %s", path);
	if (flock(f, LOCK_EX | LOCK_NB) < 0) {
		r = errno != EWOULDBLOCK ? err_errno(e, errno, "lock %s", path)
					 : err_set(e, "already_running", EBUSY,
						   "another cloched runs with %s", run_dir);
		err_fix(e, "Stop it, or give this one another --run-dir and --state-dir.");
		return r;
	}
	*fd = steal_fd(&f);
	return 0;
}
