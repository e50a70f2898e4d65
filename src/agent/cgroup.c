/*
 * Files of cgroupfs, opened relative to the slice's descriptor. The agent itself stays in the root
 * group, which has no limits, so a starved slice never starves the agent.
 *
 * memory.max rather than memory.high: a group over "high" is slowed to a crawl, which its owner
 * sees as a frozen sandbox; over "max" the kernel ends a process and says so.
 */
#include "agent/cgroup.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "agent/agent.h"
#include "agent/kill_tree.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"

#define SLICE "cloche.slice"
#define RESERVE_MIB 24
#define CONTENT_MAX (64u << 10)

static int put(int dir, const char *file, const char *value)
{
	_cleanup_close_ int fd = openat(dir, file, O_WRONLY | O_CLOEXEC);

	if (fd < 0)
		return -errno;
	return fd_write_full(fd, value, strlen(value));
}

static int put_number(int dir, const char *file, uint64_t n)
{
	char text[24];

	snprintf(text, sizeof(text), "%llu", (unsigned long long)n);
	return put(dir, file, text);
}

static int get(int dir, const char *file, struct buf *out)
{
	_cleanup_close_ int fd = openat(dir, file, O_RDONLY | O_CLOEXEC);

	return fd < 0 ? -errno : fd_read_all(fd, out, CONTENT_MAX);
}

/* Limits from the machine's memory, so that one image fits every shape. */
static void limit(struct cgroup *c)
{
	uint64_t mib, reserve, pids;
	struct sysinfo si;

	if (sysinfo(&si) < 0)
		return;
	mib = (uint64_t)si.totalram * si.mem_unit >> 20;
	reserve = mib / 32 > RESERVE_MIB ? mib / 32 : RESERVE_MIB;
	pids = mib * 4 < 512 ? 512 : mib * 4 > 16384 ? 16384 : mib * 4;
	c->limited = put_number(c->slice, "pids.max", pids) == 0;
	if (mib > 2 * reserve && put_number(c->slice, "memory.max", (mib - reserve) << 20) < 0)
		c->limited = false;
	if (!c->limited)
		log_warn("commands run without limits on processes and memory");
}

void cgroup_setup(struct cgroup *c, const char *root)
{
	static const char *const controllers[] = { "+cpu", "+memory", "+pids", "+io" };
	_cleanup_close_ int dir = -1;

	*c = (struct cgroup){ .slice = -1 };
	if (!root)
		return;
	dir = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0) {
		log_warn("cgroup2 %s: %s; commands are killed by their sessions", root,
			 strerror(errno));
		return;
	}
	/* One at a time: a kernel without one of them refuses only that one. */
	for (size_t i = 0; i < ARRAY_SIZE(controllers); i++)
		(void)put(dir, "cgroup.subtree_control", controllers[i]);
	if (mkdirat(dir, SLICE, 0755) < 0 && errno != EEXIST)
		log_warn("make cgroup %s: %s", SLICE, strerror(errno));
	c->slice = openat(dir, SLICE, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (c->slice >= 0 && faccessat(c->slice, "cgroup.kill", W_OK, 0) < 0)
		close_fd(&c->slice);
	if (c->slice < 0)
		log_warn("no cgroup2 with cgroup.kill; commands are killed by their sessions");
	else
		limit(c);
}

/* Removes the groups of ended commands whose last process has gone meanwhile. */
static void sweep(struct cgroup *c)
{
	_cleanup_close_ int fd = openat(c->slice, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	_cleanup_closedir_ DIR *d = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *de;

	if (!d)
		return;
	steal_fd(&fd);
	c->leftovers = 0;
	while ((de = readdir(d))) {
		/* Marked for removal by its mode; the kernel refuses while it is populated. */
		struct stat st;

		if (de->d_type != DT_DIR || de->d_name[0] == '.' ||
		    fstatat(c->slice, de->d_name, &st, 0) < 0 || (st.st_mode & 0777) != 0700)
			continue;
		if (unlinkat(c->slice, de->d_name, AT_REMOVEDIR) < 0)
			c->leftovers++;
	}
}

int cgroup_make(struct cgroup *c, const char *id, int *fd, struct err *e)
{
	*fd = -1;
	if (c->slice < 0)
		return 0;
	if (c->leftovers)
		sweep(c);
	if (mkdirat(c->slice, id, 0755) < 0)
		return agent_errno(e, errno, "make a cgroup for the command");
	*fd = openat(c->slice, id, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return *fd < 0 ? agent_errno(e, errno, "open the command's cgroup") : 0;
}

void cgroup_remove(struct cgroup *c, const char *id)
{
	if (c->slice < 0)
		return;
	if (unlinkat(c->slice, id, AT_REMOVEDIR) == 0 || errno == ENOENT)
		return;
	if (fchmodat(c->slice, id, 0700, 0) == 0)
		c->leftovers++;
}

void cgroup_kill(struct cgroup *c, const char *id, pid_t pid)
{
	char path[64];
	int r;

	if (c->slice < 0) {
		kill_tree(id, pid, SIGKILL);
		return;
	}
	snprintf(path, sizeof(path), "%s/cgroup.kill", id);
	r = put(c->slice, path, "1");
	if (r < 0 && r != -ENOENT) /* ENOENT: removed, because nothing of it lived */
		log_warn("kill %s: %s", id, strerror(-r));
}

bool cgroup_populated(struct cgroup *c, const char *id, pid_t pid)
{
	_cleanup_buf_ struct buf events = { 0 };
	char path[64];

	if (c->slice < 0)
		return kill_tree(id, pid, 0) > 0;
	snprintf(path, sizeof(path), "%s/cgroup.events", id);
	return get(c->slice, path, &events) == 0 && events.data &&
	       strstr(events.data, "populated 1");
}

static void signal_procs(const char *list, int sig)
{
	while (*list) {
		char *end;
		long pid = strtol(list, &end, 10);

		if (end == list)
			return;
		if (pid > 1)
			kill((pid_t)pid, sig);
		list = *end ? end + 1 : end;
	}
}

void cgroup_signal_all(struct cgroup *c, int sig)
{
	_cleanup_close_ int fd = -1;
	_cleanup_closedir_ DIR *d = NULL;
	struct dirent *de;

	if (c->slice < 0) {
		kill_tree(NULL, 0, sig);
		return;
	}
	if (sig == SIGKILL) {
		put(c->slice, "cgroup.kill", "1");
		return;
	}
	fd = openat(c->slice, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	d = fd < 0 ? NULL : fdopendir(fd);
	if (!d)
		return;
	steal_fd(&fd);
	while ((de = readdir(d))) {
		_cleanup_buf_ struct buf procs = { 0 };
		char path[NAME_MAX + 16];

		if (de->d_type != DT_DIR || de->d_name[0] == '.')
			continue;
		snprintf(path, sizeof(path), "%s/cgroup.procs", de->d_name);
		if (get(c->slice, path, &procs) == 0 && procs.data)
			signal_procs(procs.data, sig);
	}
}

bool cgroup_any(struct cgroup *c)
{
	_cleanup_buf_ struct buf events = { 0 };

	if (c->slice < 0)
		return kill_tree(NULL, 0, 0) > 0;
	return get(c->slice, "cgroup.events", &events) == 0 && events.data &&
	       strstr(events.data, "populated 1");
}
