/* The agent's own state, shared by its parts. There is one, made by main(). */
#ifndef CLOCHE_AGENT_AGENT_H
#define CLOCHE_AGENT_AGENT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "agent/cgroup.h"
#include "base/err.h"
#include "base/loop.h"

#define AGENT_STREAMS_MAX 256 /* open at once */
#define AGENT_HELPERS_MAX 64  /* file operations at once, each a forked child */
#define AGENT_RUNNING_MAX 512 /* commands at once */
#define AGENT_ENDED_MAX 128   /* ended commands whose output is kept */
#define AGENT_SCRATCH (64u << 10)

struct process;
struct stream;

struct agent {
	struct loop *loop;
	int64_t started_ms; /* of CLOCK_BOOTTIME */
	bool machine;	    /* PID 1 of a guest: clock, host name and power are ours */
	bool stopping;
	bool adopted;
	int64_t generation;
	json_t *env;	     /* the account's, object of strings, or NULL */
	const char *run_dir; /* holds the generation file */
	struct cgroup cgroup;
	struct stream *streams;
	unsigned n_streams;
	struct process *processes; /* newest first */
	unsigned n_running, n_ended;
	size_t output_bytes, output_max; /* memory of all kept output */
	pid_t helpers[AGENT_HELPERS_MAX];
	unsigned n_helpers;
	struct loop_source *stop_timer;
	enum { STOP_TERM, STOP_KILL, STOP_DRAIN } stop_phase; /* while stopping */
	uint8_t scratch[AGENT_SCRATCH];			      /* for one read, within one call */
};

/* Fills e with the protocol's code for errnum and returns -errnum. */
int agent_errno(struct err *e, int errnum, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* Serves connections of a listening socket, which stays the caller's. */
int server_listen(struct agent *a, int fd, struct err *e);

/* Takes every dead child: commands, helpers, orphans. */
void reap_children(struct agent *a);

/* adopt.c */
int adopt(struct agent *a, const json_t *request, struct err *e);
json_t *hello(struct agent *a);

/* power.c: what the stop operation sets off, and a step of it whenever a child has ended. */
int power_stop(struct agent *a, int64_t timeout_ms, struct err *e);
void power_advance(struct agent *a);

#endif
