/*
 * Runs one command in a sandbox for a person at a terminal or a script: streams its output byte
 * for byte, forwards stdin, passes signals on.
 */
#ifndef CLOCHE_CLI_EXEC_H
#define CLOCHE_CLI_EXEC_H

#include <jansson.h>

#include "cli/cli.h"

struct err;

/* The options of `exec` and `run` that describe the command. */
#define EXEC_OPTIONS                                                                      \
	{ "cwd", 'w', CLI_STR, "DIR", "the working directory (/workspace)", 0, 0, NULL }, \
		{ "user", 'u', CLI_STR, "USER", "who runs it (agent)", 0, 0, NULL },      \
		{ "timeout-seconds",                                                      \
		  0,                                                                      \
		  CLI_INT,                                                                \
		  "N",                                                                    \
		  "kill it after N seconds (exit status 124)",                            \
		  1,                                                                      \
		  1LL << 31,                                                              \
		  NULL },                                                                 \
	{                                                                                 \
		"no-stdin", 0, CLI_FLAG, NULL,                                            \
			"give it no input, even when stdin is a pipe or file", 0, 0, NULL \
	}

/*
 * Signals that a person or a supervisor sends to us, as a descriptor: from watch_begin() on SIGINT,
 * SIGTERM and SIGHUP no longer end the program and SIGPIPE is ignored.
 */
struct watch {
	int fd;
	int count; /* taken so far */
	int last;  /* the number of the last one */
};

int watch_begin(struct watch *w, struct err *e);
void watch_end(struct watch *w); /* closes; the signals stay blocked */

/* Takes what is pending without waiting; returns how many came since the last call. */
int watch_take(struct watch *w);

/*
 * Runs c->command in the sandbox. env: object of strings or NULL. Returns the exit status for the
 * shell: the command's, 128 + n when signal n ended it, 124 on its time limit, 126 or 127 when it
 * could not be started, 130 when a second signal came. Negative with e when Cloche failed or the
 * outcome is unknown.
 */
int exec_in_sandbox(struct cli *c, const char *id, const json_t *env, struct watch *w,
		    struct err *e);

#endif
