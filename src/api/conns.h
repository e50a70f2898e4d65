/*
 * The open connections and how long each may take for what it does now. libmicrohttpd's own
 * timeout ends silent connections; this one also ends those that send a byte now and then.
 */
#ifndef CLOCHE_API_CONNS_H
#define CLOCHE_API_CONNS_H

#include <stdint.h>

struct conn;
struct conns;
struct err;

int conns_new(struct conns **out, struct err *e); /* starts a thread */
void conns_free(struct conns *cs);		  /* NULL-safe; all connections must be gone */

/* fd stays the caller's and is open until conn_closed(). NULL without memory. */
struct conn *conn_opened(struct conns *cs, int fd);
void conn_closed(struct conns *cs, struct conn *c); /* NULL-safe */

/* Until when (clock_mono_ns(); UINT64_MAX: no limit) the connection may stay as it is. NULL-safe.
 */
void conn_deadline(struct conns *cs, struct conn *c, uint64_t mono_ns);

#endif
