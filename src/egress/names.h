/*
 * What a sandbox was told about names: each answer is remembered, so that a connection to an
 * address can be judged by the name that led to it, and a name need not be looked up twice within
 * its TTL. Bounded: the oldest answers go first.
 */
#ifndef CLOCHE_EGRESS_NAMES_H
#define CLOCHE_EGRESS_NAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "egress/dns_msg.h"
#include "egress/hostname.h"
#include "egress/ip.h"

#define NAMES_MAX 1024
#define NAMES_KEEP_MIN_S 600 /* programs keep an address beyond its TTL */
#define NAMES_KEEP_MAX_S 86400

struct names;

struct name_answer {
	uint32_t hash;
	enum dns_type type;
	char name[HOSTNAME_LEN];
	struct ip addrs[DNS_ANSWERS_MAX];
	size_t n;
	uint64_t fresh_until, keep_until; /* clock_mono_ns() */
};

int names_new(struct names **out);
void names_free(struct names *m); /* NULL-safe */

/* Remembers an answer (addrs[n] already filtered by policy). 0 or -ENOMEM. */
int names_put(struct names *m, const char *name, enum dns_type type, const struct ip *addrs,
	      size_t n, uint32_t ttl, uint64_t now);

/* The answer for name while it is fresh, else NULL. */
const struct name_answer *names_fresh(const struct names *m, const char *name, enum dns_type type,
				      uint64_t now);

/*
 * Names that led to address a, the latest first: start with *it = 0, ends with NULL. Only answers
 * that are still kept.
 */
const char *names_of(const struct names *m, const struct ip *a, uint64_t now, size_t *it);
bool names_has(const struct names *m, const char *name, const struct ip *a, uint64_t now);

#endif
