/* The steps of a request between libmicrohttpd's callbacks and the handlers. */
#ifndef CLOCHE_API_DISPATCH_H
#define CLOCHE_API_DISPATCH_H

#include <microhttpd.h>

struct err;
struct request;

/* Fills r->uri, route, param, key, query; begins an upload. 0 or negative. */
int request_head(struct request *r, struct err *e);

/* Remembers why the request failed; request_end() will answer it. */
void request_fail(struct request *r, const struct err *e);

/* Carries the request out unless it has failed, and queues its answer. */
enum MHD_Result request_end(struct request *r);

#endif
