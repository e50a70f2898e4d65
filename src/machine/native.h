/*
 * Native mode without a service manager: one cloched on this host, started and found again by its
 * record in the state folder. Where a service manager runs cloched, nothing of this is needed.
 */
#ifndef CLOCHE_MACHINE_NATIVE_H
#define CLOCHE_MACHINE_NATIVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cloche_paths;
struct err;

/*
 * Starts cloched unless an API answers on the port already; returns when it answers. The error of
 * one that does not come up holds the end of its log.
 */
int native_start(const struct cloche_paths *p, uint16_t port, struct err *e);

/* Ends the cloched that native_start() started; sandboxes live on. 1 when one ran, 0 when not. */
int native_stop(const struct cloche_paths *p, struct err *e);

bool native_running(const struct cloche_paths *p);

/* The first API key of the daemon whose state is in p->home. */
int native_key(const struct cloche_paths *p, char *key, size_t n, struct err *e);

#endif
