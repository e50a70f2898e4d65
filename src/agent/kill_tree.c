/*
 * A scan of /proc. Each round takes a list of all processes, keeps those below the agent (which is
 * PID 1 or a subreaper, so its orphans stay below it, and other agents' commands on the machine are
 * never touched), marks those that belong, spreads the mark to their children, and signals. A
 * process forked during the scan is found by the next round; rounds end when one finds nobody new,
 * or after ROUNDS (a fork bomb outruns any scan: that is what cgroups are for, and this is the way
 * without them).
 */
#include "agent/kill_tree.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/cgroup.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/str.h"

#define ROUNDS 20
#define ENVIRON_MAX (4u << 20)

struct seen {
	pid_t pid, parent, session;
	bool below; /* the agent */
	bool ours;
};

/* pid, parent and session of a live process; -1 for a zombie or one that has gone. */
static int read_stat(const char *name, struct seen *out)
{
	_cleanup_buf_ struct buf b = { 0 };
	char path[64], state;
	const char *after;

	snprintf(path, sizeof(path), "/proc/%.20s/stat", name);
	if (fd_read_file(path, &b, 4096, NULL) < 0 || !b.data)
		return -1;
	after = strrchr(b.data, ')'); /* the program's name may hold anything, ')' too */
	if (!after || sscanf(after + 1, " %c %d %*d %d", &state, &out->parent, &out->session) != 3)
		return -1;
	return state == 'Z' || state == 'X' ? -1 : 0;
}

static bool has_mark(const char *name, const char *id)
{
	_cleanup_buf_ struct buf b = { 0 };
	size_t at = 0, len = strlen(AGENT_MARK "=");
	char path[64];

	snprintf(path, sizeof(path), "/proc/%.20s/environ", name);
	if (fd_read_file(path, &b, ENVIRON_MAX, NULL) < 0)
		return false;
	while (at < b.len) {
		const char *s = b.data + at;

		if (strncmp(s, AGENT_MARK "=", len) == 0 && (!id || strcmp(s + len, id) == 0))
			return true;
		at += strlen(s) + 1;
	}
	return false;
}

static int scan(const char *id, pid_t pid, struct buf *list)
{
	_cleanup_closedir_ DIR *d = opendir("/proc");
	struct dirent *de;

	if (!d)
		return -errno;
	while ((de = readdir(d))) {
		struct seen s = { 0 };
		int64_t n;

		if (str_to_int(de->d_name, 2, INT32_MAX, &n) < 0 || read_stat(de->d_name, &s) < 0)
			continue;
		s.pid = (pid_t)n;
		s.ours =
			(pid > 0 && (s.pid == pid || s.session == pid)) || has_mark(de->d_name, id);
		if (buf_add(list, &s, sizeof(s)) < 0)
			return -ENOMEM;
	}
	return 0;
}

/* Everything below the agent, then of that everything below what is ours. */
static void spread(struct seen *s, size_t n, pid_t self)
{
	bool changed = true;

	while (changed) {
		changed = false;
		for (size_t i = 0; i < n; i++)
			for (size_t k = 0; k < n && !s[i].below; k++)
				if (s[i].parent == self || (s[k].below && s[i].parent == s[k].pid))
					s[i].below = changed = true;
	}
	for (size_t i = 0; i < n; i++)
		s[i].ours &= s[i].below;
	for (changed = true; changed;) {
		changed = false;
		for (size_t i = 0; i < n; i++)
			for (size_t k = 0; k < n && !s[i].ours; k++)
				if (s[k].ours && s[i].parent == s[k].pid)
					s[i].ours = changed = true;
	}
}

int kill_tree(const char *id, pid_t pid, int sig)
{
	pid_t self = getpid();
	int found = 0;

	for (int round = 0; round < ROUNDS; round++) {
		_cleanup_buf_ struct buf list = { 0 };
		struct seen *s;
		size_t n;

		if (scan(id, pid, &list) < 0)
			return found;
		s = (struct seen *)list.data;
		n = list.len / sizeof(*s);
		spread(s, n, self);
		found = 0;
		for (size_t i = 0; i < n; i++)
			if (s[i].ours && s[i].pid != self) {
				found++;
				kill(s[i].pid, sig);
			}
		if (found == 0 || sig != SIGKILL)
			break;
	}
	return found;
}
