/*
 * Moving bytes between two sockets inside the kernel, both ways, with half-close. A pipe is held
 * only while bytes are in it, so an idle connection costs none; what one side cannot take is not
 * read from the other (at most a pipe's worth is on the way).
 */
#ifndef CLOCHE_EGRESS_RELAY_H
#define CLOCHE_EGRESS_RELAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RELAY_SPARE_MAX 32

/* Spare pipes, shared by all relays of a thread. */
struct relay_pool {
	int spare[RELAY_SPARE_MAX][2];
	size_t n;
};

struct relay_half {
	int pipe[2];
	size_t in_pipe;
	bool has_pipe, eof, shut;
	bool want_in, want_out; /* blocked on the source, on the destination */
	uint64_t bytes;
};

struct relay {
	struct relay_pool *pool;
	struct relay_half up, down; /* client to server, server to client */
	bool hold_up;		    /* do not read the client yet */
};

enum relay_result { RELAY_GOING, RELAY_DONE, RELAY_BROKEN };

/*
 * Moves what can be moved, at most `budget` bytes each way (sets *more when it stopped for that).
 * RELAY_DONE: both directions ended cleanly. RELAY_BROKEN: a side failed; reset the other.
 */
enum relay_result relay_step(struct relay *r, int client, int server, size_t budget, bool *more);

/* The epoll events to wait for next. */
uint32_t relay_client_events(const struct relay *r);
uint32_t relay_server_events(const struct relay *r);

/* Gives its pipes back. A relay is zeroed but for its pool before it is used. */
void relay_end(struct relay *r);
void relay_pool_drain(struct relay_pool *p);

#endif
