/*
 * The api child's side of proto/broker.h. Any thread may call; requests take turns. Errors carry
 * the broker's code; "broker_lost" when it does not answer any more, after which nothing does.
 */
#ifndef CLOCHE_BROKER_CLIENT_H
#define CLOCHE_BROKER_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "base/id.h"

struct broker_client;
struct err;

/* Takes over the socket on success. */
int broker_client_new(int sock, struct broker_client **out, struct err *e);
void broker_client_free(struct broker_client *c); /* NULL-safe */

struct broker_vmm {
	pid_t pid;
	int pidfd; /* readable when it ended; the caller's */
	int log;   /* its stderr, NUL-ended, from offset 0; the caller's, -1 when it is lost */
};

struct broker_exit {
	bool known; /* the next two mean something */
	int code, signal;
	bool oom_killed;
};

struct broker_vmm_row {
	char id[ID_LEN];
	pid_t pid;
	bool alive;
};

int broker_vmm_spawn(struct broker_client *c, const char *id, unsigned vcpus, unsigned memory_mib,
		     struct broker_vmm *out, struct err *e);
int broker_vmm_open(struct broker_client *c, const char *id, struct broker_vmm *out, struct err *e);
int broker_vmm_kill(struct broker_client *c, const char *id, struct err *e);
int broker_vmm_reap(struct broker_client *c, const char *id, struct broker_exit *out,
		    struct err *e);

/* All of them, ordered by id; *out is to be freed. */
int broker_vmm_list(struct broker_client *c, struct broker_vmm_row **out, size_t *n, struct err *e);
int broker_open_kvm(struct broker_client *c, int *fd, struct err *e);

#endif
