/*
 * The host's end of the agent's protocol (proto/frame.h, proto/agent.h): one connected stream
 * socket is one operation. Calls block the calling thread, never longer than the timeout they are
 * given; a connection belongs to one thread at a time.
 *
 * Timeouts are milliseconds from the call, -1 for none. Errors carry the agent's own code (every
 * one of AGENT_ERROR_CODES, "agent_error" for one we do not know) with its message and fix, or one
 * of ours:
 *
 *	stream_broken	the stream ended or failed before the operation's last frame: the outcome is
 *			unknown, and never to be taken for success
 *	agent_timeout	no answer in time
 *	agent_protocol	the agent sent what it must not; the connection is useless
 *
 * After any error a connection can only be freed. Freeing it never ends a command: only
 * agent_cancel() does.
 */
#ifndef CLOCHE_SANDBOX_AGENT_CONN_H
#define CLOCHE_SANDBOX_AGENT_CONN_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"

struct agent_conn;
struct err;

#define AGENT_SHA256_HEX 65 /* 64 digits and NUL */

/* Takes over fd (closed on failure too) and sends {"op":op, …request}; request may be NULL. */
int agent_open(int fd, const char *op, const json_t *request, struct agent_conn **out,
	       struct err *e);
void agent_free(struct agent_conn *c); /* NULL-safe; closes the stream */
CLEANUP_DEFINE(struct agent_conn *, cleanup_agent_conn, agent_free)
#define _cleanup_agent_conn_ _cleanup_(cleanup_agent_conn)

/* The socket, to poll beside others. Before polling it call agent_next() with timeout 0: frames
 * may be buffered already. */
int agent_fd(const struct agent_conn *c);
/* The events to poll for: POLLIN, and POLLOUT while something waits to be sent. */
short agent_poll_events(const struct agent_conn *c);

/* Waits for the REPLY. The caller owns *reply (pass NULL to drop it). */
int agent_reply(struct agent_conn *c, json_t **reply, int timeout_ms, struct err *e);

/* A whole operation that has one REPLY and nothing else; takes over fd. */
int agent_call(int fd, const char *op, const json_t *request, json_t **reply, int timeout_ms,
	       struct err *e);

/* ---- exec and attach: agent_open(), agent_reply(), then events until EXIT ---- */

enum agent_event_type {
	AGENT_STDOUT,  /* offset, data, len */
	AGENT_STDERR,  /* the same */
	AGENT_DROPPED, /* is_stderr, offset, dropped: bytes no longer kept */
	AGENT_STDIN,   /* stdin_free grew: more agent_stdin() may be taken */
	AGENT_EXIT,    /* exit; the last event */
	AGENT_END,     /* the last event of an attach without follow to a running process */
};

struct agent_exit {
	int code;	/* exit status, or -1 when a signal ended it */
	int signal;	/* 0, or the signal that ended it */
	bool timed_out; /* its own timeoutMs passed */
	int64_t duration_ms;
};

struct agent_event {
	enum agent_event_type type;
	bool is_stderr;
	uint64_t offset;  /* of data in its stream, from 0 */
	const void *data; /* valid until the next call on the connection */
	size_t len;
	uint64_t dropped;
	struct agent_exit exit;
};

/*
 * Sends what is queued and waits for the next event: 1 and *ev, 0 when timeout_ms passed, or
 * negative with e. timeout_ms 0 only looks.
 */
int agent_next(struct agent_conn *c, struct agent_event *ev, int timeout_ms, struct err *e);

/*
 * Queue input for a command started with stdin true; agent_next() sends it, as the command takes
 * it. The bytes are copied: a caller with a long input keeps agent_stdin_queued() small by calling
 * agent_next() between. 0 or negative with e.
 */
int agent_stdin(struct agent_conn *c, const void *p, size_t n, struct err *e);
int agent_stdin_eof(struct agent_conn *c, struct err *e);
size_t agent_stdin_queued(const struct agent_conn *c);

/* Sent at once, before any queued input. */
int agent_signal(struct agent_conn *c, int signal, struct err *e);
int agent_resize(struct agent_conn *c, int rows, int cols, struct err *e);

/* Kills the command and all its descendants; queued input is dropped. EXIT follows. */
int agent_cancel(struct agent_conn *c, struct err *e);

/* ---- files: agent_open(), then ---- */

/* file.read: agent_reply() gives {stat}; then pieces until *len is 0, which means that the whole
 * was received and its SHA-256 is right. *data is valid until the next call. */
int agent_read(struct agent_conn *c, const void **data, size_t *len, int timeout_ms, struct err *e);
/* The checked digest, after the last piece. */
const char *agent_read_sha256(const struct agent_conn *c);

/* file.write, stdin: sends n bytes; an ERROR the agent sends meanwhile is returned at once. */
int agent_write(struct agent_conn *c, const void *p, size_t n, int timeout_ms, struct err *e);
/* Ends the bytes (with their SHA-256 for file.write) and waits for the REPLY. want_sha256, when
 * not NULL, is compared with the digest of what was sent: checksum_mismatch leaves the old file. */
int agent_write_end(struct agent_conn *c, const char *want_sha256, json_t **reply, int timeout_ms,
		    struct err *e);

/* file.list: the next part as a JSON array of stats that the caller owns; NULL after the last,
 * then *truncated says whether the limit cut it. */
int agent_entries(struct agent_conn *c, json_t **part, bool *truncated, int timeout_ms,
		  struct err *e);

#endif
