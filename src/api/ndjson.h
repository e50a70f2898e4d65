/*
 * The lines of a command's stream: {"seq":n,"type":…}. Output is "data" where it is UTF-8, else
 * "base64"; a character that a chunk cuts is held back until its rest has come, so text stays
 * text. Offsets count the bytes of the stream, so that nothing can be lost unnoticed.
 */
#ifndef CLOCHE_API_NDJSON_H
#define CLOCHE_API_NDJSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/buf.h"

struct agent_exit;
struct err;

struct ndjson {
	struct buf out; /* lines made and not yet taken */
	size_t taken;
	uint64_t seq;
	bool cursors; /* output lines carry "cursor": where to go on after them */
	struct ndjson_side {
		unsigned char tail[4]; /* the beginning of a character */
		size_t n;
		uint64_t next; /* offset after what was shown or is held back */
	} side[2];	       /* stdout, stderr */
};

void ndjson_free(struct ndjson *n);

/* Each appends a line. 0 or -ENOMEM. */
int ndjson_start(struct ndjson *n, const char *process_id);
int ndjson_output(struct ndjson *n, bool is_stderr, uint64_t offset, const void *p, size_t len);
int ndjson_dropped(struct ndjson *n, bool is_stderr, uint64_t offset, uint64_t bytes);
int ndjson_ping(struct ndjson *n);
int ndjson_exit(struct ndjson *n, const struct agent_exit *x);
/* The stream ends and the process goes on. */
int ndjson_end(struct ndjson *n);
/* The stream ends without knowing how the command did. */
int ndjson_error(struct ndjson *n, const struct err *e, const char *request_id);

/* Moves at most max bytes of what was made to p. */
size_t ndjson_take(struct ndjson *n, char *p, size_t max);

/* A cursor is "STDOUT.STDERR", the offsets to go on at. 0 or -EINVAL. */
#define NDJSON_CURSOR_LEN 44
int ndjson_cursor_parse(const char *text, uint64_t offset[2]);

/* {code, signal, timedOut, durationMs}: code is null when a signal ended it, else signal is. */
json_t *exit_json(const struct agent_exit *x);

#endif
