/*
 * Looking names up for sandboxes, on the host: A or AAAA, the CNAME chain followed by the name
 * server. Nothing is read from the host's own hosts file and no search domain is added, so a guest
 * learns nothing about the host's names.
 */
#ifndef CLOCHE_EGRESS_RESOLVER_H
#define CLOCHE_EGRESS_RESOLVER_H

#include <stddef.h>
#include <stdint.h>

#include "egress/dns_msg.h"
#include "egress/ip.h"

struct err;
struct loop;
struct lookup;
struct resolver;
struct timers;

struct lookup_answer {
	enum dns_rcode rcode; /* NOERROR (perhaps without addresses), NXDOMAIN or SERVFAIL */
	struct ip addrs[DNS_ANSWERS_MAX];
	size_t n;
	uint32_t ttl; /* the shortest of the chain */
};

typedef void (*lookup_fn)(void *ctx, const struct lookup_answer *a);

/* servers: "ADDRESS[:PORT],…", or NULL for those of /etc/resolv.conf. */
int resolver_new(struct loop *l, struct timers *t, const char *servers, struct resolver **out,
		 struct err *e);
void resolver_free(struct resolver *r); /* NULL-safe; pending lookups are cancelled */

/* Calls fn once, never before this returns, unless cancelled first. NULL when out of memory. */
struct lookup *resolver_lookup(struct resolver *r, const char *name, enum dns_type type,
			       lookup_fn fn, void *ctx);
void lookup_cancel(struct lookup *lk); /* NULL-safe */

#endif
