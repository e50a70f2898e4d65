/*
 * Limits of one VMM: a control group per sandbox with memory, cpu and pids, on cgroup v2 where it
 * has the controller, on v1 else. Groups are GROUP/ID below each hierarchy's mount point.
 */
#ifndef CLOCHE_BROKER_CGROUP_H
#define CLOCHE_BROKER_CGROUP_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct err;

enum cgroup_controller { CGROUP_MEMORY, CGROUP_CPU, CGROUP_PIDS, CGROUP_CONTROLLERS };

#define CGROUP_PATH_MAX 256

/* Where each controller is. */
struct cgroup {
	char v2[CGROUP_PATH_MAX]; /* mount point of the v2 hierarchy, "" if none */
	char v1[CGROUP_CONTROLLERS][CGROUP_PATH_MAX]; /* "" where v2 has it or nobody does */
	bool on_v2[CGROUP_CONTROLLERS];
	char group[64]; /* our folder in each */
};

struct cgroup_limits {
	uint64_t memory_bytes;
	unsigned cpu_percent; /* 100 is one CPU */
	unsigned pids;
};

/*
 * Finds the hierarchies in mountinfo ("/proc/self/mountinfo"; mount points are taken below root,
 * "" in production) and makes our group in each. A controller that nobody has is logged once and
 * its limit left out.
 */
int cgroup_init(struct cgroup *c, const char *mountinfo, const char *root, const char *group,
		struct err *e);

/*
 * Makes the sandbox's groups with their limits; what an earlier one left is reused. *v2_fd is an
 * O_PATH-like folder descriptor for CLONE_INTO_CGROUP, or -1 when v2 has no controller of ours.
 */
int cgroup_make(const struct cgroup *c, const char *id, const struct cgroup_limits *l, int *v2_fd,
		struct err *e);

/* Moves a process into the v1 groups (v2 is entered at clone). */
int cgroup_add_v1(const struct cgroup *c, const char *id, pid_t pid, struct err *e);

/* SIGKILL to every process in the groups. Returns how many were seen, negative on failure. */
int cgroup_kill(const struct cgroup *c, const char *id, struct err *e);

/* Whether the kernel killed a process of it for lack of memory. False when unknown. */
bool cgroup_oom_killed(const struct cgroup *c, const char *id);

/* Removes the groups; -EBUSY while a process is in one. Missing ones are success. */
int cgroup_remove(const struct cgroup *c, const char *id, struct err *e);

#endif
