/*
 * Connections whose content is read: plain HTTP whose every request is judged by its Host, and TLS
 * that is terminated so that a secret can be put in. An engine has two channels and a codec (h1.h,
 * h2.h) that turns what one side said into what the other is told.
 */
#ifndef CLOCHE_EGRESS_ENGINE_H
#define CLOCHE_EGRESS_ENGINE_H

#include <stdbool.h>
#include <stdint.h>

#include "egress/chan.h"

struct flow;
struct h1;
struct h2;

enum engine_phase {
	ENGINE_UPSTREAM_TLS, /* handshake with the real server */
	ENGINE_CLIENT_TLS,   /* handshake with the sandbox */
	ENGINE_RUN,
	ENGINE_LAST_WORDS, /* only what waits for the client is still written */
};

struct engine {
	struct flow *f;
	struct chan client, server;
	enum engine_phase phase;
	bool tls;
	bool server_broken; /* it takes nothing more */
	struct h1 *h1;
	struct h2 *h2;
	const char *trouble; /* why the client gets 502 instead of the server (literal) */
};

/* Whether the flow's content must be read, by what is known of it now. */
bool engine_wanted(const struct flow *f);

/* Takes over a connected flow; ends it itself on failure. */
void engine_start(struct flow *f);

/* One side has events. The flow may be gone after. */
void engine_event(struct flow *f, bool client, uint32_t events);

void engine_free(struct flow *f);

/* --- for the codecs --- */

/*
 * Whether a request for `host` (from Host or :authority; "" none) may go out on this connection;
 * else *reason is a code and why gets words.
 */
bool engine_host_ok(struct engine *g, const char *host, bool is_address, const char **reason,
		    struct buf *why);

/* Records a refused request. */
void engine_refused(struct engine *g, const char *reason);

/* Records that a secret was put in. */
void engine_swapped(struct engine *g, const char *name);

#endif
