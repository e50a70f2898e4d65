/*
 * Starts a cloche-vmm of our own and speaks its control protocol, blocking: for the guest tests and
 * the developer's tool.
 */
#ifndef CLOCHE_TESTS_GUEST_VMM_CLIENT_H
#define CLOCHE_TESTS_GUEST_VMM_CLIENT_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct err;

struct vmm_client {
	pid_t pid;
	int sock;      /* a connection to its control socket */
	char name[64]; /* of its listening socket, in the abstract namespace */
};

struct vmm_guest {
	const char *kernel;
	const char *const *initrds; /* paths; NULL-terminated, or NULL */
	const char *const *disks;   /* paths; NULL-terminated, or NULL; opened for writing */
	const char *cmdline;
	unsigned vcpus, memory_mib;
};

/* Spawns program with the control socket as descriptor 3 and connects to it. */
int vmm_client_spawn(struct vmm_client *c, const char *program, struct err *e);

/* Another connection to the same VMM, or a negative errno. */
int vmm_client_connect(const struct vmm_client *c);

/*
 * Sends a request (taken over) with descriptors and returns the answer, which may be an error:
 * NULL only when the VMM did not answer at all.
 */
json_t *vmm_client_call(int sock, json_t *request, const int *fds, size_t nfds, struct err *e);

/* As vmm_client_call(), but an error answer becomes e (its code, as the VMM gave it). */
json_t *vmm_client_ask(int sock, json_t *request, const int *fds, size_t nfds, struct err *e);

/* Opens what g names and configures. */
int vmm_client_configure(struct vmm_client *c, const struct vmm_guest *g, struct err *e);

/* The files of a saved machine: memory files of its state and its memory. */
struct vmm_saved {
	int state, memory;
};

/* Saves a paused guest into fresh memory files. */
int vmm_client_save(struct vmm_client *c, struct vmm_saved *out, struct err *e);

/* Restores into a VMM that is neither configured nor started; the guest is then paused. */
int vmm_client_restore(struct vmm_client *c, const struct vmm_saved *s, struct err *e);
void vmm_saved_close(struct vmm_saved *s);

/* A stream to a port of the guest: its descriptor, or negative. */
int vmm_client_stream(struct vmm_client *c, uint32_t port, unsigned timeout_ms, struct err *e);

/* Waits for the process; its exit status as waitpid(2) gives it. Closes the connection. */
int vmm_client_reap(struct vmm_client *c);

#endif
