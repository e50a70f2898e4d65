/*
 * Running other programs: always an argv array, never a shell line. The child gets stdin from
 * /dev/null, default signals, and no descriptor but 0, 1, 2.
 */
#ifndef CLOCHE_BASE_PROC_H
#define CLOCHE_BASE_PROC_H

#include <stddef.h>
#include <sys/types.h>

struct buf;
struct err;

/* What proc_run() does with one line of the child's output (without its newline). */
typedef void (*proc_line_fn)(void *ctx, const char *line);

struct proc_spec {
	const char *const *argv; /* NULL-terminated; argv[0] is looked up in PATH */
	const char *const *env;	 /* NULL: ours; else the whole environment, NULL-terminated */
	const char *cwd;	 /* NULL: ours */
	struct buf *out;	 /* stdout is appended here; NULL: goes with stderr */
	size_t out_max;		 /* bytes of stdout kept; more is an error (0: 1 MiB) */
	proc_line_fn on_line;	 /* each line of stderr (and of stdout when out is NULL), or NULL */
	void *ctx;
	unsigned timeout_s; /* 0: none; on expiry the child's process group is killed */
};

/*
 * Runs and waits. Returns 0 when it exited with 0. Otherwise fills e with code "program_failed"
 * (its exit status or signal and its last line of stderr), "program_missing" or
 * "program_timeout" and returns negative.
 */
int proc_run(const struct proc_spec *spec, struct err *e);

#endif
