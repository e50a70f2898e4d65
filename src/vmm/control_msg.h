/* Requests of the control protocol (proto/vmm.h), parsed and checked. No I/O. */
#ifndef CLOCHE_VMM_CONTROL_MSG_H
#define CLOCHE_VMM_CONTROL_MSG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "vmm/machine_config.h"

struct err;

enum control_verb {
	CONTROL_CONFIGURE,
	CONTROL_START,
	CONTROL_RESTORE,
	CONTROL_PAUSE,
	CONTROL_RESUME,
	CONTROL_SAVE,
	CONTROL_BALLOON,
	CONTROL_CONNECT,
	CONTROL_SERIAL,
	CONTROL_STATS,
	CONTROL_WAIT,
	CONTROL_STOP,
};

struct control_request {
	enum control_verb verb;
	bool has_id;
	int64_t id;
	/* configure and restore; without descriptors until control_take_fds() */
	struct machine_config config;
	uint32_t port; /* connect */
	unsigned timeout_ms;
	uint64_t balloon_bytes; /* balloon */
};

/*
 * Parses one message. Error code bad_request; out->has_id and id are set even then if the message
 * had a usable id.
 */
int control_parse(const char *text, size_t len, struct control_request *out, struct err *e);

/*
 * Checks that exactly the descriptors of the verb came with it; configure's and restore's become
 * those of r->config. On failure the descriptors are still the caller's. Error code bad_request.
 */
int control_take_fds(struct control_request *r, const int *fds, size_t n, struct err *e);

#endif
