/*
 * Where a VMM runs: namespaces made once and shared by all of them (an empty read-only file
 * system, a network without an interface, no IPC objects, no host name), a uid of its own, no
 * capability, no new privileges, limits, and exactly the descriptors 0 to 3.
 */
#ifndef CLOCHE_BROKER_JAIL_H
#define CLOCHE_BROKER_JAIL_H

#include <stdbool.h>
#include <sys/types.h>

struct err;

#define JAIL_NS_MAX 4

struct jail {
	int ns[JAIL_NS_MAX]; /* mount, network, IPC, UTS; -1 when not made */
};

#define JAIL_NONE                      \
	{                              \
		{                      \
			-1, -1, -1, -1 \
		}                      \
	}

/*
 * Makes the namespaces; needs root. with_root false leaves the file system as it is, for
 * dynamically linked development builds of the VMM.
 */
int jail_open(struct jail *j, bool with_root, struct err *e);
void jail_close(struct jail *j);

struct jail_spec {
	const struct jail *jail;
	uid_t uid;
	gid_t gid;
	int exe;	   /* the program, opened beforehand */
	int log;	   /* becomes 2 */
	int listen;	   /* becomes 3 */
	const char *argv0; /* what ps shows */
	bool keep_user;	   /* development: stay root */
};

/* Why jail_exec() failed, as it is written to the report descriptor. */
struct jail_failure {
	char step[32];
	int errnum;
};

/*
 * In a fresh child: puts it in the jail and runs the program. Only returns to write a struct
 * jail_failure to `report` (close-on-exec) and exit.
 */
_Noreturn void jail_exec(const struct jail_spec *s, int report);

#endif
