/*
 * What this process may still ask of the kernel once a guest runs: two seccomp filters, one for
 * the whole process and a much shorter one that vCPU threads put on top. A call outside them kills
 * the process. In builds with a sanitizer nothing is filtered (the sanitizer needs more), and that
 * is logged.
 */
#ifndef CLOCHE_VMM_SANDBOX_H
#define CLOCHE_VMM_SANDBOX_H

#include <stdbool.h>

struct err;
struct sandbox;

/*
 * First thing in main(): no core dumps, not dumpable, no new privileges. Everything below depends
 * on it.
 */
int sandbox_harden(struct err *e);

/* Whether this build filters at all. */
bool sandbox_filters(void);

/* Compiles the filters. */
int sandbox_new(struct sandbox **out, struct err *e);
void sandbox_free(struct sandbox *s); /* NULL-safe; filters in force stay in force */

/* Filters every thread there is, and all that come. vCPU threads may narrow it afterwards. */
int sandbox_seal_process(const struct sandbox *s, struct err *e);

/* Filters the calling thread as one that runs a vCPU. After sandbox_seal_process(). */
int sandbox_seal_vcpu(const struct sandbox *s, struct err *e);

#endif
