/* Requests: from the bytes of a FRAME_REQUEST to a checked JSON object. Pure, no I/O. */
#ifndef CLOCHE_AGENT_REQUEST_H
#define CLOCHE_AGENT_REQUEST_H

#include <jansson.h>
#include <stddef.h>

struct err;

enum agent_op {
	OP_HELLO,
	OP_ADOPT,
	OP_EXEC,
	OP_ATTACH,
	OP_PS,
	OP_PROCESS,
	OP_SIGNAL,
	OP_KILL,
	OP_STDIN,
	OP_FORGET,
	OP_FILE_READ,
	OP_FILE_WRITE,
	OP_FILE_LIST,
	OP_FILE_STAT,
	OP_FILE_MKDIR,
	OP_FILE_MOVE,
	OP_FILE_REMOVE,
	OP_SYNC,
	OP_STOP,
	OP_COUNT,
};

/*
 * Parses and checks. On success *op is set and the object returned (the caller's), every member of
 * it known and in range, paths absolute. On failure NULL, and e is bad_request (or too_large) and
 * names every problem.
 */
json_t *request_parse(const void *text, size_t len, enum agent_op *op, struct err *e);

#endif
