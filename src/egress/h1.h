/*
 * HTTP/1.x through the engine: every request is parsed strictly and written anew, with secrets put
 * in; bodies are followed by their framing and searched for placeholders; responses pass as they
 * are. After an upgrade (WebSocket) bytes pass both ways.
 */
#ifndef CLOCHE_EGRESS_H1_H
#define CLOCHE_EGRESS_H1_H

#include <stdbool.h>
#include <stddef.h>

struct engine;
struct h1;

int h1_new(struct engine *g, struct h1 **out);
void h1_free(struct h1 *h); /* NULL-safe */

/*
 * Takes all of p[n] said by that side. 0; -ECONNABORTED when the client has been answered with a
 * refusal and the connection must end with it; another negative errno when it must be cut.
 */
int h1_client_data(struct h1 *h, const char *p, size_t n);
int h1_server_data(struct h1 *h, const char *p, size_t n);

/* The side has ended. */
int h1_client_end(struct h1 *h);
int h1_server_end(struct h1 *h);

/* Whether the client may be read: not while its next bytes could mean two things. */
bool h1_wants_client(const struct h1 *h);

/* Appends an answer of our own to the client: for what went wrong before a request was read. */
int h1_answer(struct engine *g, const char *status, const char *reason, const char *text);

#endif
