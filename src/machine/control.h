/*
 * The host's line to a running machine: a serial port behind the unix socket STATE/control.sock,
 * served by images/machine/root/etc/cloche/control. And the same socket business for the shell.
 */
#ifndef CLOCHE_MACHINE_CONTROL_H
#define CLOCHE_MACHINE_CONTROL_H

#include <stdbool.h>

struct buf;
struct err;

/* Connects to STATE/NAME; works for folders whose path is longer than a socket address may be. */
int control_connect(const char *state_dir, const char *name, struct err *e);

/*
 * Sends one request ("ping", "key", "log", "poweroff"). 1 when the machine says ok, 0
 * when it says no, negative when it does not answer in time. The answer's lines are appended to
 * answer if that is not NULL.
 */
int control_ask(const char *state_dir, const char *verb, unsigned timeout_ms, struct buf *answer,
		struct err *e);

/* Whether one line of answer ends it: 1 for "ok", 0 for "no", -1 when it belongs to the text. */
int control_verdict(const char *line);

#endif
