/* What each verb of the control protocol does. Pure of sockets: JSON in, JSON out. */
#ifndef CLOCHE_EGRESS_VERBS_H
#define CLOCHE_EGRESS_VERBS_H

#include <jansson.h>
#include <stddef.h>

struct egress;
struct err;

/*
 * Does one request. fds[*nfds] came with it; those taken over are set to -1. Returns the answer
 * (without "id"), or NULL when out of memory.
 */
json_t *verbs_handle(struct egress *eg, const json_t *request, int *fds, size_t nfds);

/* {"ok":false,"error":…}; takes problems over (may be NULL). */
json_t *verbs_error(const struct err *e, json_t *problems);

#endif
