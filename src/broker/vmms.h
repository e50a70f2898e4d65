/*
 * The VMM processes of this host: spawned in their jail, found again after a broker's death, and
 * forgotten once reaped. One thread.
 */
#ifndef CLOCHE_BROKER_VMMS_H
#define CLOCHE_BROKER_VMMS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "base/id.h"
#include "broker/cgroup.h"
#include "broker/jail.h"

struct err;

struct vmms_config {
	const char *run_dir;  /* records and sockets are in run_dir/vmm */
	const char *vmm_path; /* the program */
	uid_t uid_first;      /* sandboxes run as uid_first .. uid_first + uid_count - 1 */
	unsigned uid_count;   /* also the most VMMs at once */
	uid_t api_uid;	      /* owns the control sockets */
	gid_t api_gid;
	unsigned memory_overhead_mib; /* what a VMM may use beyond its guest's memory */
	unsigned pids_extra;	      /* threads and processes beyond its vCPUs */
	bool unjailed;		      /* development: VMMs stay root */
	struct cgroup cgroup;
	struct jail jail;
};

struct vmm {
	struct vmm *next; /* ordered by id */
	char id[ID_LEN];
	pid_t pid;		  /* 0: never came to life */
	unsigned long long start; /* of the process, in clock ticks since boot */
	uid_t uid;
	int pidfd, log; /* -1 when gone */
	bool is_child;	/* ours to wait for */
};

struct vmm_exit {
	bool known; /* the next two mean something */
	int code, signal;
	bool oom_killed;
};

struct vmms {
	const struct vmms_config *config;
	int exe; /* the program, opened once: an upgrade does not mix versions */
	struct vmm *first;
};

/* Opens the program and reads the records that a former broker left. */
int vmms_open(struct vmms *v, const struct vmms_config *c, struct err *e);
void vmms_close(struct vmms *v); /* leaves the processes running */

/* NULL when unknown. */
struct vmm *vmms_find(struct vmms *v, const char *id);

/* "vmm_exists", "vmm_limit", "system". Nothing is left behind on failure. */
int vmms_spawn(struct vmms *v, const char *id, unsigned vcpus, unsigned memory_mib,
	       struct vmm **out, struct err *e);

bool vmm_alive(const struct vmm *vm);

/* Kills it and every process in its control group; returns before they are gone. */
int vmms_kill(struct vmms *v, struct vmm *vm, struct err *e);

/* Frees vm and what belongs to it. "vmm_alive" while a process of it lives. */
int vmms_reap(struct vmms *v, struct vmm *vm, struct vmm_exit *out, struct err *e);

#endif
