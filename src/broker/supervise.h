/*
 * The broker's main loop: keeps one api child running, answers its requests, and ends with it
 * when told: by SIGTERM or SIGINT, which leave the sandboxes running, or by SIGQUIT, on which the
 * child stops them first.
 */
#ifndef CLOCHE_BROKER_SUPERVISE_H
#define CLOCHE_BROKER_SUPERVISE_H

#include <sys/types.h>

struct broker_server;
struct err;

#define SUPERVISE_BROKER_FD 3	/* what the child finds */
#define SUPERVISE_EXIT_FATAL 78 /* the child's exit status when starting it again is no use */

struct supervise_config {
	struct broker_server *server;
	char *const *argv; /* of the child */
	int exe;	   /* the program it runs, opened */
	uid_t uid;
	gid_t gid;
};

/* Returns the exit status for main(): 0 after an orderly stop. */
int supervise_run(const struct supervise_config *c, struct err *e);

#endif
