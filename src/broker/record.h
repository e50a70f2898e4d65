/*
 * What a broker writes down about a VMM so that its successor finds it: run_dir/vmm/ID.json.
 */
#ifndef CLOCHE_BROKER_RECORD_H
#define CLOCHE_BROKER_RECORD_H

#include <stddef.h>
#include <sys/types.h>

struct err;

struct record {
	pid_t pid;		  /* 0: about to be started */
	unsigned long long start; /* field 22 of /proc/PID/stat */
	uid_t uid;
};

int record_write(const char *path, const struct record *r, struct err *e);
int record_read(const char *path, struct record *out, struct err *e);
int record_parse(const char *text, size_t n, struct record *out, struct err *e);

/* When a process started, in clock ticks since boot; -ESRCH when there is none. */
int record_process_start(pid_t pid, unsigned long long *out);

#endif
