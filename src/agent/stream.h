/*
 * One connection of the host: frames in, frames out, never blocking. A stream is owned by whoever
 * handles its operation, through stream_ops; it frees itself once it is finished or gone.
 */
#ifndef CLOCHE_AGENT_STREAM_H
#define CLOCHE_AGENT_STREAM_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/frame.h"

struct agent;
struct buf;
struct err;
struct stream;

struct stream_ops {
	/* A frame came. A negative answer drops the stream (gone is called). */
	int (*frame)(struct stream *s, void *ctx, const struct frame *f);
	/* stream_room() grew. May be NULL. */
	void (*room)(struct stream *s, void *ctx);
	/* The connection is lost. s is freed after the call; not called after stream_finish(),
	 * stream_error() or stream_abandon(). May be NULL. */
	void (*gone)(struct stream *s, void *ctx);
};

/* Takes over the connected socket fd (closed on failure). */
int stream_new(struct agent *a, int fd, const struct stream_ops *ops, void *ctx, struct err *e);
void stream_set_owner(struct stream *s, const struct stream_ops *ops, void *ctx);

/* Output bytes that are wise to add now; 0 while the host is slow. Sending more is not refused:
 * small answers need no check. */
size_t stream_room(const struct stream *s);

/* Queue a frame and try to send it. Failures drop the stream later, through gone. */
void stream_send(struct stream *s, enum frame_type type, const void *p, size_t n);
void stream_send_json(struct stream *s, enum frame_type type, json_t *o); /* releases o */
/* The offset, then the bytes: STDOUT and STDERR. */
void stream_send_output(struct stream *s, enum frame_type type, uint64_t offset, const void *p,
			size_t n);

/* Stops or resumes taking frames (backpressure on the host). */
void stream_hold(struct stream *s, bool hold);

/* Nothing more will be said: the rest is sent, then the connection closed. The owner is let go. */
void stream_finish(struct stream *s);
/* ERROR with e, then stream_finish(). */
void stream_error(struct stream *s, const struct err *e);
/* REPLY {} or o, then stream_finish(). Releases o. */
void stream_reply(struct stream *s, json_t *o);

/* For handing the stream to a forked child: its descriptor, which stays the stream's, and what was
 * received beyond the last frame, appended to `left`. Negative errno without memory. */
int stream_peek_fd(const struct stream *s, struct buf *left);
/* Closes our end at once, without a word to the owner: somebody else has the connection. */
void stream_abandon(struct stream *s);

struct agent *stream_agent(const struct stream *s);

/* The JSON object {"code","message","fix"?} of e. */
json_t *stream_error_json(const struct err *e);

#endif
