/* Requests of proto/broker.h: bytes in, a checked struct out. Pure; fuzzed. */
#ifndef CLOCHE_BROKER_MSG_H
#define CLOCHE_BROKER_MSG_H

#include <stddef.h>

#include "base/id.h"

struct err;

enum broker_op {
	BROKER_VMM_SPAWN,
	BROKER_VMM_OPEN,
	BROKER_VMM_KILL,
	BROKER_VMM_REAP,
	BROKER_VMM_LIST,
	BROKER_OPEN_KVM,
};

struct broker_request {
	enum broker_op op;
	char id[ID_LEN];	    /* vmm_list: `after`, "" from the start; open_kvm: "" */
	unsigned vcpus, memory_mib; /* vmm_spawn */
};

/* Parses p[n]. On failure e->code is "bad_request" and the message names every problem. */
int broker_msg_parse(const void *p, size_t n, struct broker_request *out, struct err *e);

const char *broker_op_name(enum broker_op op);

#endif
