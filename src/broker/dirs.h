/* The folders of the daemon and who owns them. */
#ifndef CLOCHE_BROKER_DIRS_H
#define CLOCHE_BROKER_DIRS_H

#include <sys/types.h>

struct err;

/*
 * Makes what is missing and sets owners and modes:
 *	STATE                 api, 0700: store, keys
 *	STATE/sandboxes       api, 0700: a folder each with its disk
 *	STATE/images          api, 0755
 *	RUN                   root, 0755
 *	RUN/vmm               root, group api, 0750: control sockets and records
 */
int dirs_prepare(const char *state_dir, const char *run_dir, uid_t api_uid, gid_t api_gid,
		 struct err *e);

/*
 * Takes the lock that one daemon holds on a run folder; *fd keeps it. "already_running" when
 * another has it.
 */
int dirs_lock(const char *run_dir, int *fd, struct err *e);

#endif
