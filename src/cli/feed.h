/*
 * Sends our stdin to a running command, from a thread of its own, as it comes and as the command
 * takes it. Input that nobody wants any more is dropped in silence, as in a shell's pipe line.
 */
#ifndef CLOCHE_CLI_FEED_H
#define CLOCHE_CLI_FEED_H

#include <stdbool.h>

struct err;
struct feed;
struct http;

/* Whether stdin is there to be sent: not a terminal, not closed, not /dev/null. */
bool feed_wanted(void);

/* Starts to send. The strings are copied; daemon is cloned. */
int feed_start(const struct http *daemon, const char *sandbox, const char *process,
	       struct feed **out, struct err *e);

/* Ends it, wherever it is. NULL-safe. */
void feed_stop(struct feed *f);

#endif
