/* Shared by agent_conn.c and agent_file.c; nobody else includes it. */
#ifndef CLOCHE_SANDBOX_AGENT_PRIV_H
#define CLOCHE_SANDBOX_AGENT_PRIV_H

#include "base/buf.h"
#include "base/sha256.h"
#include "proto/frame.h"
#include "sandbox/agent_conn.h"

struct agent_conn {
	int fd;
	bool broken;	  /* an error was reported; nothing more is read or sent */
	bool peer_closed; /* recv() gave 0 */
	struct buf in;
	size_t in_at; /* bytes of in that were handed out */
	struct buf out;
	size_t out_at;
	struct buf stdin_q; /* waits for the agent's window */
	bool stdin_eof;	    /* follows stdin_q */
	uint64_t stdin_sent, stdin_taken;
	struct sha256 sha; /* of a file's bytes, either way */
	char sha_hex[SHA256_HEX_LEN];
	bool sha_done;
};

/* An absolute monotonic deadline in ns for a timeout in ms; UINT64_MAX for -1. */
uint64_t agent_deadline(int timeout_ms);

/* Marks the connection useless and fills e. Returns negative. */
int agent_fail(struct agent_conn *c, struct err *e, const char *code, int errnum, const char *fmt,
	       ...) __attribute__((format(printf, 5, 6)));

/* The next frame: 1, or 0 at the deadline. ERROR frames and a closed stream are errors. */
int agent_take(struct agent_conn *c, struct frame *f, uint64_t deadline, struct err *e);

/* Sends what is queued in out. While it waits it also receives: an ERROR frame that arrives is
 * returned as the error. 0 or negative. */
int agent_flush(struct agent_conn *c, uint64_t deadline, struct err *e);

/* The JSON of a frame (any value), or NULL with e. */
json_t *agent_json(struct agent_conn *c, const struct frame *f, struct err *e);

#endif
