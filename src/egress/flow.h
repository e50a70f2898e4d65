/*
 * A connection of a sandbox: accepted transparently, looked at, judged, and carried on.
 *
 *	PEEK -> (RESOLVE ->) CONNECT -> RELAY            plain bytes, spliced
 *	                              -> ENGINE          HTTP or TLS that is read and rewritten
 *	     -> LINGER                                   refused with an answer
 */
#ifndef CLOCHE_EGRESS_FLOW_H
#define CLOCHE_EGRESS_FLOW_H

#include "egress/client_hello.h"
#include "egress/egress.h"
#include "egress/relay.h"
#include "egress/resolver.h"

struct engine;

enum flow_state { FLOW_PEEK, FLOW_RESOLVE, FLOW_CONNECT, FLOW_RELAY, FLOW_ENGINE, FLOW_LINGER };
enum flow_protocol { FLOW_TCP, FLOW_TLS, FLOW_HTTP };

#define FLOW_ADDRS_MAX 16

struct flow {
	struct tenant *t;
	struct flow *next, **link;
	uint64_t id;
	enum flow_state state;
	enum flow_protocol protocol;
	struct ip dst; /* what the guest asked for */
	uint16_t port;
	char name[HOSTNAME_LEN]; /* "" none */
	bool named_by_client;	 /* name came from SNI or Host, not from an earlier lookup */
	bool direct;		 /* goes to dst itself, not to an address of the name */
	bool silent;		 /* connected before the client said anything */
	bool heard;		 /* …and it has said something acceptable since */
	struct policy *policy;	 /* of the verdict */
	struct verdict verdict;

	int client, server; /* -1 when not open */
	struct loop_source *client_source, *server_source;
	uint32_t client_events, server_events;
	struct timer timer;
	struct client_hello hello; /* FLOW_TLS */
	size_t peeked;		   /* bytes seen of a hello or head that is not whole */

	struct lookup *lookups[2];
	struct ip addrs[FLOW_ADDRS_MAX];
	unsigned n_addrs, next_addr;
	struct ip peer; /* the address connected to */

	struct relay relay;
	struct engine *engine;
	uint64_t bytes_out, bytes_in, started;
};

/* A listener is readable: a loop callback whose ctx is the tenant. */
void flow_accept(void *tenant, int fd, uint32_t events);

/* Judges an open connection again; true when it was cut. */
bool flow_recheck(struct flow *f);

/* Ends it at once with a reset on both sides. */
void flow_cut(struct flow *f, const char *reason);

/* --- between the files of the flow --- */

/* Judges by what is known (name or none) and goes on: resolve, connect, or refuse. */
void flow_decide(struct flow *f);

/* Looks f->name up (from memory when fresh) and connects to what policy lets pass. */
void flow_resolve(struct flow *f);

/* Connects to f->addrs in order. */
void flow_connect(struct flow *f);

/* The server side is connected. */
void flow_connected(struct flow *f);

/* Allowed, but the server cannot be reached (reason: literal; text: for people). */
void flow_unreachable(struct flow *f, const char *reason, const char *text);

/* Refuses with an answer in the client's protocol; v may be NULL when reason says it all. */
void flow_refuse(struct flow *f, const struct verdict *v, const char *reason, const char *text);

/* Ends and frees it. reset: both sides see a reset instead of an end. */
void flow_end(struct flow *f, enum receipt_event event, const char *reason, bool reset);

/* Writes a receipt about it. */
void flow_record(struct flow *f, enum receipt_event event, const char *reason);

/* Watches one side for events (0: only errors). Ends the flow and returns negative on failure. */
int flow_watch(struct flow *f, uint32_t client_events, uint32_t server_events);

/*
 * The last words to the client are written: waits for its end, taking what it still says. The
 * receipt must have been written.
 */
void flow_linger_start(struct flow *f);

/* FLOW_LINGER: takes what the refused client still says, until it ends. */
void flow_linger(struct flow *f);

/* Arms the flow's one timer. */
int flow_timer(struct flow *f, unsigned ms, loop_fn fn);

/* The event callbacks of both sides; ctx is the flow. */
void flow_on_client(void *ctx, int fd, uint32_t events);
void flow_on_server(void *ctx, int fd, uint32_t events);

/* Server side: a connecting attempt has an outcome. */
void flow_connect_event(struct flow *f);

#endif
