/* A command's stream from the agent to an HTTP client, for exec and for a process's output. */
#ifndef CLOCHE_API_COMMAND_H
#define CLOCHE_API_COMMAND_H

#include <stdbool.h>

#include "api/ndjson.h"
#include "api/request.h"
#include "sandbox/agent_conn.h"

enum command_end {
	COMMAND_EVENT,	  /* *ev is the next event */
	COMMAND_QUIET,	  /* none came for a while */
	COMMAND_GONE,	  /* the client went away */
	COMMAND_STOPPING, /* the daemon is to end */
	COMMAND_FAILED,	  /* e says why */
};

/* Waits for the next event, the client's or daemon's end, or quiet_ms (-1: no limit). */
enum command_end command_next(struct agent_conn *c, const struct client *client,
			      struct agent_event *ev, int quiet_ms, struct err *e);

/* Kills the command and gives the agent a moment to take note. */
void command_cancel(struct agent_conn *c);

/*
 * Answers with the events of c as lines; c is taken over. When `owner` the command is killed if
 * the client goes away before its end (known fault 9).
 */
int command_stream(struct request *r, struct agent_conn *c, struct ndjson *lines, bool owner,
		   struct err *e);

#endif
