/*
 * What the parts of cloche-egress share: the process (struct egress) and one sandbox's slot
 * (struct tenant). One thread runs everything from one loop.
 */
#ifndef CLOCHE_EGRESS_EGRESS_H
#define CLOCHE_EGRESS_EGRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/timers.h"
#include "egress/bucket.h"
#include "egress/policy.h"
#include "egress/receipt.h"
#include "egress/relay.h"
#include "proto/egress.h"
#include "proto/slot.h"

struct dns_conn;
struct err;
struct flow;
struct loop;
struct loop_source;
struct names;
struct resolver;
struct ruleset_book;
struct swaps;
struct tls;
struct vault;

/* Limits of one sandbox. */
struct egress_limits {
	unsigned flows;			    /* connections at once */
	unsigned flow_rate, flow_burst;	    /* new connections a second */
	unsigned lookups;		    /* waiting for the resolver at once */
	unsigned lookup_rate, lookup_burst; /* DNS queries a second */
};

struct egress {
	struct loop *loop;
	struct timers *timers;
	struct resolver *resolver;
	struct ruleset_book *book;
	struct vault *vault; /* NULL: no credential proxy */
	struct tls *tls;     /* NULL likewise */
	struct egress_limits limits;
	struct tenant *tenants;
	uint64_t next_connection;
	struct relay_pool pipes;
};

struct tenant {
	struct tenant *next;
	struct egress *eg;
	char slot[EGRESS_SLOT_MAX + 1];
	char sandbox[EGRESS_SANDBOX_MAX + 1];
	int fds[SLOT_SOCKETS];
	struct loop_source *sources[SLOT_SOCKETS];
	struct timer accept_pause;

	struct policy *policy; /* never NULL: closed until one is set */
	uint64_t generation;
	struct names *names;
	struct receipts *log;
	struct swaps *swaps; /* secrets of this sandbox; NULL: none */

	struct flow *flows;
	unsigned n_flows;
	struct dns_conn *dns_conns;
	unsigned n_dns_conns, n_lookups;
	struct dns_pending *lookups;
	struct bucket flow_bucket, lookup_bucket;
	uint64_t flows_total, flows_refused, bytes_out, bytes_in, dns_total, dns_refused;
};

/*
 * Takes over the slot's sockets (closed with the tenant, on failure stay the caller's) and starts
 * to serve them under a policy that closes everything.
 */
int tenant_new(struct egress *eg, const char *slot, const int fds[SLOT_SOCKETS],
	       struct tenant **out, struct err *e);
void tenant_free(struct tenant *t); /* cuts its connections */
struct tenant *tenant_find(struct egress *eg, const char *slot);

/* Puts a policy in force (its reference is taken over); returns how many connections it cut. */
unsigned tenant_set_policy(struct tenant *t, struct policy *p, uint64_t generation);

/* Records a decision; fields of the receipt that are literal stay the caller's. */
void tenant_record(struct tenant *t, struct receipt *r, const struct verdict *v);

#endif
