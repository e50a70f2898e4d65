/*
 * Frames: how the host and the agent in the guest talk on one vsock stream. One stream carries
 * one operation and is closed after it. A frame is an 8-byte header and a payload:
 *
 *	u32 little-endian	payload length, 0..FRAME_PAYLOAD_MAX
 *	u8			type, enum frame_type
 *	u8[3]			zero
 *
 * Anything else is a protocol error: the reader drops the stream. Both ends are hostile to each
 * other; the parser trusts no length twice.
 */
#ifndef CLOCHE_PROTO_FRAME_H
#define CLOCHE_PROTO_FRAME_H

#include <stddef.h>
#include <stdint.h>

struct buf;

#define FRAME_HEADER_LEN 8
#define FRAME_PAYLOAD_MAX (256u << 10)
#define AGENT_VSOCK_PORT 1024

enum frame_type {
	/* host to agent */
	FRAME_REQUEST = 1,   /* JSON, first frame of a stream: {"op":…} (proto/agent.h) */
	FRAME_STDIN = 2,     /* bytes; at most AGENT_STDIN_WINDOW beyond the last STDIN_TAKEN */
	FRAME_STDIN_EOF = 3, /* empty */
	FRAME_SIGNAL = 4,    /* JSON {"signal":15} to the command's process group */
	FRAME_CANCEL = 5,    /* empty: the caller gave up; kill the command and its descendants */
	FRAME_RESIZE = 6,    /* JSON {"rows","cols"}: the terminal's new size */
	/* agent to host */
	FRAME_REPLY = 16,   /* JSON: the answer, or what the stream starts with */
	FRAME_ERROR = 17,   /* JSON {"code","message","fix"}; ends the stream */
	FRAME_STDOUT = 18,  /* u64 LE offset in the stream, then bytes */
	FRAME_STDERR = 19,  /* the same */
	FRAME_DROPPED = 20, /* JSON {"stream":"stdout","offset","bytes"}: kept output was overrun */
	FRAME_EXIT = 21,    /* JSON {"code","signal","timedOut","durationMs"}; ends the stream */
	FRAME_STDIN_TAKEN = 22, /* u64 LE: STDIN bytes the agent has taken out of its buffer */
	FRAME_ENTRIES = 23,	/* JSON array of stats, part of a listing */
	FRAME_END = 24,		/* JSON; ends a stream that has neither EXIT nor DATA_EOF */
	/* both ways */
	FRAME_DATA = 32,     /* bytes of a file */
	FRAME_DATA_EOF = 33, /* JSON {"sha256":hex?}: whole file sent */
};

struct frame {
	enum frame_type type;
	const uint8_t *payload; /* inside the reader's buffer, valid until the next call */
	size_t len;
};

/* Appends a frame to b. 0, -ENOMEM, or -EMSGSIZE when len > FRAME_PAYLOAD_MAX. */
int frame_put(struct buf *b, enum frame_type type, const void *payload, size_t len);

/*
 * Takes the frame at the start of p[n]. Returns the bytes it occupies, 0 when more bytes are
 * needed, -EPROTO when the header is not one.
 */
long frame_take(const uint8_t *p, size_t n, struct frame *out);

#endif
