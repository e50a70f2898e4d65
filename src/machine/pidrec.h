/*
 * Naming a process so that it cannot be mistaken for another: its pid and its start time. A number
 * alone may belong to a stranger by the time it is used.
 */
#ifndef CLOCHE_MACHINE_PIDREC_H
#define CLOCHE_MACHINE_PIDREC_H

#include <stdint.h>
#include <sys/types.h>

struct pidrec {
	pid_t pid;
	uint64_t start; /* clock ticks after boot, field 22 of /proc/PID/stat */
};

/* The start time out of the text of /proc/PID/stat, whose second field may hold anything; 0 if bad.
 */
uint64_t pidrec_parse_start(const char *stat);

/* Records a process that runs; -ESRCH when there is none (a zombie counts as none). */
int pidrec_of(pid_t pid, struct pidrec *out);

/* A pidfd of the recorded process, or -ESRCH when it has ended, whoever has its number now. */
int pidrec_open(const struct pidrec *r);

/* Waits for a pidfd's process to end; 0, -ETIME, or another negative errno. */
int pidrec_wait(int pidfd, unsigned timeout_ms);

/* SIGTERM, then after term_ms SIGKILL; returns when it has ended. */
int pidrec_end(int pidfd, unsigned term_ms);

#endif
