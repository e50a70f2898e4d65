/*
 * HTTP/2 through the engine: two nghttp2 sessions, one as the server of the sandbox's client and
 * one as a client of the real server, stream for stream. Headers are put together before secrets
 * are put in, so how they were cut into frames does not matter; data flows as it comes (streaming
 * and gRPC pass), each side's flow control reaching through to the other; trailers pass.
 */
#ifndef CLOCHE_EGRESS_H2_H
#define CLOCHE_EGRESS_H2_H

#include <stddef.h>

struct engine;
struct h2;

int h2_new(struct engine *g, struct h2 **out);
void h2_free(struct h2 *h); /* NULL-safe */

/* As h1.h: all of p[n] is taken; negative ends the connection. */
int h2_client_data(struct h2 *h, const char *p, size_t n);
int h2_server_data(struct h2 *h, const char *p, size_t n);
int h2_client_end(struct h2 *h);
int h2_server_end(struct h2 *h);

/*
 * Hands on what the sessions still have to say: after output has drained, and once at the start.
 * 1 when something was, 0 when not, negative as above.
 */
int h2_speak(struct h2 *h);

#endif
