/* Starting one command of a user: a new session, in its own cgroup, with the user's rights. */
#ifndef CLOCHE_AGENT_SPAWN_H
#define CLOCHE_AGENT_SPAWN_H

#include <stdbool.h>
#include <sys/types.h>

struct err;
struct user;

struct spawn {
	char *const *argv;
	char *const *env; /* the whole environment */
	const char *cwd;  /* NULL: /workspace, or the user's home, or / */
	const struct user *user;
	int fds[3]; /* become 0, 1, 2 */
	bool tty;   /* fds[0] is a terminal that becomes the controlling one */
	int cgroup; /* -1: none */
};

/*
 * Forks. Returns the child's pid and sets *failed_fd to a pipe that the caller watches: it ends
 * without a byte once the program runs, or yields a struct spawn_failure.
 */
pid_t spawn_start(const struct spawn *s, int *failed_fd, struct err *e);

struct spawn_failure {
	int stage; /* enum in spawn.c */
	int errnum;
};

/* Says in the protocol's words why a command did not start. */
int spawn_explain(const struct spawn_failure *f, const char *program, const char *cwd,
		  struct err *e);

#endif
