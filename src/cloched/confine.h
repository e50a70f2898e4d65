/* The system calls that the api child gives up for good. */
#ifndef CLOCHE_CLOCHED_CONFINE_H
#define CLOCHE_CLOCHED_CONFINE_H

struct err;

/*
 * Loads a seccomp filter for the whole process: no new programs, mounts, namespaces, modules,
 * tracing, keys or BPF. They fail with EPERM.
 */
int confine(struct err *e);

#endif
