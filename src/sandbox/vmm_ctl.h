/*
 * Talking to a VMM (proto/vmm.h). A connection carries one request at a time; connections are
 * cheap and several may be open. Error codes: "vmm_gone" when the other end closed or does not
 * listen, "vmm_timeout", "connection_refused" and "timeout" of the connect verb,
 * "memory_unavailable", "kernel_invalid", "kvm_unavailable"; everything else is "vmm_failed".
 */
#ifndef CLOCHE_SANDBOX_VMM_CTL_H
#define CLOCHE_SANDBOX_VMM_CTL_H

#include <jansson.h>
#include <stddef.h>

struct err;

int vmm_ctl_open(const char *run_dir, const char *id, int *fd, struct err *e);

/* Sends a request {"verb":…,…}, which is consumed (NULL: out of memory), with nfds descriptors. */
int vmm_ctl_send(int fd, json_t *request, const int *fds, size_t nfds, struct err *e);

/* The answer, within timeout_ms (-1: none); *reply is the caller's, NULL to drop it. */
int vmm_ctl_recv(int fd, json_t **reply, int timeout_ms, struct err *e);

/* open, send, recv and close. */
int vmm_ctl_call(const char *run_dir, const char *id, json_t *request, const int *fds, size_t nfds,
		 json_t **reply, int timeout_ms, struct err *e);

#endif
