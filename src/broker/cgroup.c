/*
 * A sandbox has one folder a hierarchy. Hierarchies that several v1 controllers share (as
 * "cpu,cpuacct") or that v2 unifies are visited once: v1 paths are compared, and the v2 folder
 * stands for all controllers it has. Entering v2 happens at clone(2), because moving a process
 * afterwards takes a global lock that costs tens of milliseconds on a busy host.
 */
#include "broker/cgroup.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/log.h"

#define CPU_PERIOD_US 100000u
#define FILE_MAX (1u << 20)

static const char *const controller_names[CGROUP_CONTROLLERS] = {
	[CGROUP_MEMORY] = "memory",
	[CGROUP_CPU] = "cpu",
	[CGROUP_PIDS] = "pids",
};

/* Whether word is one of the words of list, separated by any of seps. */
static bool has_word(const char *list, const char *word, const char *seps)
{
	size_t n = strlen(word);

	while (*list) {
		size_t len = strcspn(list, seps);

		if (len == n && memcmp(list, word, n) == 0)
			return true;
		list += len;
		list += strspn(list, seps);
	}
	return false;
}

static int path_join(char out[PATH_MAX], const char *dir, const char *group, const char *id,
		     const char *file, struct err *e)
{
	int n = snprintf(out, PATH_MAX, "%s/%s%s%s%s%s", dir, group, id ? "/" : "", id ? id : "",
			 file ? "/" : "", file ? file : "");

	if (n < 0 || n >= PATH_MAX)
		return err_errno(e, ENAMETOOLONG, "control group below %s", dir);
	return 0;
}

static int file_write(const char *path, const char *text, struct err *e)
{
	_cleanup_close_ int fd = open(path, O_WRONLY | O_CLOEXEC);
	int r;

	if (fd < 0)
		return err_errno(e, errno, "open %s", path);
	r = fd_write_full(fd, text, strlen(text));
	if (r < 0)
		return err_errno(e, -r, "write \"%s\" to %s", text, path);
	return 0;
}

static int group_write(const char *dir, const struct cgroup *c, const char *id, const char *file,
		       const char *text, struct err *e)
{
	char path[PATH_MAX];
	int r = path_join(path, dir, c->group, id, file, e);

	return r < 0 ? r : file_write(path, text, e);
}

/* One line of mountinfo: "… - TYPE SOURCE SUPER_OPTIONS"; field 5 is the mount point. */
static void take_mount(struct cgroup *c, const char *root, char *line)
{
	char *tail = strstr(line, " - "), *save = NULL, *point = NULL, *type, *opts;
	char *field = strtok_r(line, " ", &save);

	if (!tail)
		return;
	*tail = '\0';
	for (int i = 0; field && i < 5; i++, field = strtok_r(NULL, " ", &save))
		point = field;
	type = strtok_r(tail + 3, " ", &save);
	strtok_r(NULL, " ", &save);
	opts = strtok_r(NULL, " ", &save);
	if (!point || !type || !opts)
		return;
	if (strcmp(type, "cgroup2") == 0 && !c->v2[0]) {
		snprintf(c->v2, sizeof(c->v2), "%s%s", root, point);
		return;
	}
	if (strcmp(type, "cgroup") != 0)
		return;
	for (int i = 0; i < CGROUP_CONTROLLERS; i++)
		if (!c->v1[i][0] && has_word(opts, controller_names[i], ","))
			snprintf(c->v1[i], sizeof(c->v1[i]), "%s%s", root, point);
}

static int find_mounts(struct cgroup *c, const char *mountinfo, const char *root, struct err *e)
{
	_cleanup_buf_ struct buf b = { 0 };
	char *save = NULL;
	int r = fd_read_file(mountinfo, &b, FILE_MAX, e);

	if (r < 0)
		return r;
	for (char *line = strtok_r(b.len ? b.data : (char[]){ "" }, "\n", &save); line;
	     line = strtok_r(NULL, "\n", &save))
		take_mount(c, root, line);
	return 0;
}

/* Reads which controllers v2 offers and hands them down to our group and its children. */
static int enable_v2(struct cgroup *c, struct err *e)
{
	_cleanup_buf_ struct buf have = { 0 };
	char path[PATH_MAX], word[16];
	int r;

	snprintf(path, sizeof(path), "%s/cgroup.controllers", c->v2);
	r = fd_read_file(path, &have, FILE_MAX, e);
	if (r < 0)
		return r;
	for (int i = 0; i < CGROUP_CONTROLLERS; i++) {
		if (!have.len || !has_word(have.data, controller_names[i], " \n"))
			continue;
		snprintf(word, sizeof(word), "+%s", controller_names[i]);
		snprintf(path, sizeof(path), "%s/cgroup.subtree_control", c->v2);
		r = file_write(path, word, e);
		if (r == 0)
			r = group_write(c->v2, c, NULL, "cgroup.subtree_control", word, e);
		if (r < 0)
			return r;
		c->on_v2[i] = true;
		c->v1[i][0] = '\0';
	}
	return 0;
}

static int group_mkdir(const char *dir, const struct cgroup *c, const char *id, struct err *e)
{
	char path[PATH_MAX];
	int r = path_join(path, dir, c->group, id, NULL, e);

	if (r < 0)
		return r;
	if (mkdir(path, 0755) < 0 && errno != EEXIST)
		return err_errno(e, errno, "make control group %s", path);
	return 0;
}

static bool uses_v2(const struct cgroup *c)
{
	return c->on_v2[CGROUP_MEMORY] || c->on_v2[CGROUP_CPU] || c->on_v2[CGROUP_PIDS];
}

/* The folder of hierarchy i, each once: 0..CGROUP_CONTROLLERS-1 are v1, the last is v2. */
static const char *hierarchy(const struct cgroup *c, int i)
{
	if (i == CGROUP_CONTROLLERS)
		return uses_v2(c) ? c->v2 : NULL;
	if (!c->v1[i][0])
		return NULL;
	for (int j = 0; j < i; j++)
		if (strcmp(c->v1[i], c->v1[j]) == 0)
			return NULL;
	return c->v1[i];
}

int cgroup_init(struct cgroup *c, const char *mountinfo, const char *root, const char *group,
		struct err *e)
{
	int r;

	memset(c, 0, sizeof(*c));
	if (snprintf(c->group, sizeof(c->group), "%s", group) >= (int)sizeof(c->group))
		return err_errno(e, ENAMETOOLONG, "control group %s", group);
	r = find_mounts(c, mountinfo, root, e);
	if (r == 0 && c->v2[0])
		r = group_mkdir(c->v2, c, NULL, e);
	if (r == 0 && c->v2[0])
		r = enable_v2(c, e);
	if (r < 0)
		return r;
	for (int i = 0; i < CGROUP_CONTROLLERS; i++) {
		if (c->v1[i][0])
			r = group_mkdir(c->v1[i], c, NULL, e);
		else if (!c->on_v2[i])
			log_warn("the host has no %s controller: sandboxes run without that limit",
				 controller_names[i]);
		if (r < 0)
			return r;
	}
	return 0;
}

static int set_memory(const struct cgroup *c, const char *id, uint64_t bytes, struct err *e)
{
	char text[32];
	int r;

	snprintf(text, sizeof(text), "%llu", (unsigned long long)bytes);
	if (c->v1[CGROUP_MEMORY][0])
		return group_write(c->v1[CGROUP_MEMORY], c, id, "memory.limit_in_bytes", text, e);
	if (!c->on_v2[CGROUP_MEMORY])
		return 0;
	r = group_write(c->v2, c, id, "memory.max", text, e);
	/* One process killed of several would leave a machine that is neither alive nor dead. */
	return r < 0 ? r : group_write(c->v2, c, id, "memory.oom.group", "1", e);
}

static int set_cpu(const struct cgroup *c, const char *id, unsigned percent, struct err *e)
{
	char text[48];
	int r;

	if (c->v1[CGROUP_CPU][0]) {
		snprintf(text, sizeof(text), "%u", CPU_PERIOD_US);
		r = group_write(c->v1[CGROUP_CPU], c, id, "cpu.cfs_period_us", text, e);
		snprintf(text, sizeof(text), "%llu", CPU_PERIOD_US / 100ULL * percent);
		return r < 0 ? r
			     : group_write(c->v1[CGROUP_CPU], c, id, "cpu.cfs_quota_us", text, e);
	}
	if (!c->on_v2[CGROUP_CPU])
		return 0;
	snprintf(text, sizeof(text), "%llu %u", CPU_PERIOD_US / 100ULL * percent, CPU_PERIOD_US);
	return group_write(c->v2, c, id, "cpu.max", text, e);
}

static int set_pids(const struct cgroup *c, const char *id, unsigned pids, struct err *e)
{
	const char *dir = c->v1[CGROUP_PIDS][0] ? c->v1[CGROUP_PIDS] : c->v2;
	char text[16];

	if (!c->v1[CGROUP_PIDS][0] && !c->on_v2[CGROUP_PIDS])
		return 0;
	snprintf(text, sizeof(text), "%u", pids);
	return group_write(dir, c, id, "pids.max", text, e);
}

int cgroup_make(const struct cgroup *c, const char *id, const struct cgroup_limits *l, int *v2_fd,
		struct err *e)
{
	char path[PATH_MAX];
	int r = 0;

	*v2_fd = -1;
	for (int i = 0; i <= CGROUP_CONTROLLERS && r == 0; i++)
		if (hierarchy(c, i))
			r = group_mkdir(hierarchy(c, i), c, id, e);
	if (r == 0)
		r = set_memory(c, id, l->memory_bytes, e);
	if (r == 0)
		r = set_cpu(c, id, l->cpu_percent, e);
	if (r == 0)
		r = set_pids(c, id, l->pids, e);
	if (r == 0 && uses_v2(c)) {
		r = path_join(path, c->v2, c->group, id, NULL, e);
		*v2_fd = r < 0 ? -1 : open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		if (r == 0 && *v2_fd < 0)
			r = err_errno(e, errno, "open %s", path);
	}
	if (r < 0)
		cgroup_remove(c, id, NULL);
	return r;
}

int cgroup_add_v1(const struct cgroup *c, const char *id, pid_t pid, struct err *e)
{
	char text[16];
	int r = 0;

	snprintf(text, sizeof(text), "%d", (int)pid);
	for (int i = 0; i < CGROUP_CONTROLLERS && r == 0; i++)
		if (hierarchy(c, i))
			r = group_write(hierarchy(c, i), c, id, "cgroup.procs", text, e);
	return r;
}

static int kill_procs(const char *path, struct err *e)
{
	_cleanup_buf_ struct buf b = { 0 };
	char *save = NULL;
	int seen = 0, r;

	r = fd_read_file(path, &b, FILE_MAX, e);
	if (r < 0)
		return r == -ENOENT ? 0 : r;
	for (char *p = strtok_r(b.len ? b.data : (char[]){ "" }, "\n", &save); p;
	     p = strtok_r(NULL, "\n", &save)) {
		long pid = strtol(p, NULL, 10);

		if (pid <= 1)
			continue;
		seen++;
		if (kill((pid_t)pid, SIGKILL) < 0 && errno != ESRCH)
			return err_errno(e, errno, "kill %ld", pid);
	}
	return seen;
}

int cgroup_kill(const struct cgroup *c, const char *id, struct err *e)
{
	char path[PATH_MAX];
	int seen = 0;

	for (int i = 0; i <= CGROUP_CONTROLLERS; i++) {
		int r;

		if (!hierarchy(c, i))
			continue;
		r = path_join(path, hierarchy(c, i), c->group, id, "cgroup.procs", e);
		if (r == 0)
			r = kill_procs(path, e);
		if (r < 0)
			return r;
		seen = r > seen ? r : seen;
	}
	return seen;
}

bool cgroup_oom_killed(const struct cgroup *c, const char *id)
{
	bool v1 = c->v1[CGROUP_MEMORY][0];
	_cleanup_buf_ struct buf b = { 0 };
	char path[PATH_MAX];
	const char *p;

	if (!v1 && !c->on_v2[CGROUP_MEMORY])
		return false;
	if (path_join(path, v1 ? c->v1[CGROUP_MEMORY] : c->v2, c->group, id,
		      v1 ? "memory.oom_control" : "memory.events", NULL) < 0 ||
	    fd_read_file(path, &b, FILE_MAX, NULL) < 0 || !b.len)
		return false;
	p = strstr(b.data, "oom_kill ");
	return p && strtoul(p + strlen("oom_kill "), NULL, 10) > 0;
}

int cgroup_remove(const struct cgroup *c, const char *id, struct err *e)
{
	char path[PATH_MAX];
	int ret = 0;

	for (int i = 0; i <= CGROUP_CONTROLLERS; i++) {
		if (!hierarchy(c, i) ||
		    path_join(path, hierarchy(c, i), c->group, id, NULL, NULL) < 0)
			continue;
		if (rmdir(path) < 0 && errno != ENOENT)
			ret = err_errno(e, errno, "remove control group %s", path);
	}
	return ret;
}
