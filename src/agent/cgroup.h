/*
 * Where the users' commands live: one cgroup (v2) for all of them, with limits that leave the
 * agent and the kernel room to work, and in it one for each command, so that a command can be
 * killed with everything it ever started.
 *
 * Without a usable cgroup2 the same calls fall back to finding a command's descendants in /proc
 * by session, parent and the mark that they inherit in their environment (AGENT_MARK=id).
 */
#ifndef CLOCHE_AGENT_CGROUP_H
#define CLOCHE_AGENT_CGROUP_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct err;

#define AGENT_MARK "CLOCHE_PROCESS_ID"

struct cgroup {
	int slice;	    /* descriptor of the slice's folder, -1: no cgroup2 */
	bool limited;	    /* pids and memory limits are in force */
	unsigned leftovers; /* folders that could not be removed yet */
};

/* Makes the slice under root ("/sys/fs/cgroup"); NULL for none. Failures are logged and leave the
 * fallback: the agent must come up on any kernel. */
void cgroup_setup(struct cgroup *c, const char *root);

/*
 * Makes a command's group. *fd is its descriptor for clone3(CLONE_INTO_CGROUP), or -1 where there
 * are no groups at all. A failure is one: a command that nothing could end is not started.
 */
int cgroup_make(struct cgroup *c, const char *id, int *fd, struct err *e);

/* Removes it; removing it again is no error. While descendants of the command live it is kept, and
 * tried again by later calls. */
void cgroup_remove(struct cgroup *c, const char *id);

/* SIGKILL to every process of the command; pid is its first process, or 0 when that was reaped. */
void cgroup_kill(struct cgroup *c, const char *id, pid_t pid);

/* Whether any process of the command lives. */
bool cgroup_populated(struct cgroup *c, const char *id, pid_t pid);

/* sig to every command's processes, for stopping; and whether any is left. */
void cgroup_signal_all(struct cgroup *c, int sig);
bool cgroup_any(struct cgroup *c);

#endif
