/*
 * Receipts: what was decided for a sandbox and what passed. A bounded ring with a rising number,
 * read by cursor; a reader that comes too late sees a gap in the numbers. A receipt never holds a
 * path, a header, a query or a secret.
 */
#ifndef CLOCHE_EGRESS_RECEIPT_H
#define CLOCHE_EGRESS_RECEIPT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "egress/hostname.h"
#include "egress/ip.h"

#define RECEIPTS_MAX 512
#define RECEIPT_RULE_LEN 128

enum receipt_event {
	RECEIPT_ALLOW,	/* a connection or a lookup passed */
	RECEIPT_REFUSE, /* …was refused */
	RECEIPT_FAIL,	/* allowed, but the other side could not be reached */
	RECEIPT_CLOSE,	/* an allowed connection ended; bytes are final */
	RECEIPT_CUT,	/* …was ended by a new policy or a limit */
	RECEIPT_SECRET, /* a secret was put into a request (rule holds its name) */
};

struct receipt {
	uint64_t seq;
	int64_t wall_ms;
	enum receipt_event event;
	const char *protocol; /* literal: "dns", "tls", "http", "tcp", "udp" */
	uint64_t connection;  /* 0 for lookups */
	char host[HOSTNAME_LEN];
	bool has_address;
	struct ip address;
	uint16_t port;
	char rule[RECEIPT_RULE_LEN]; /* "" none */
	const char *reason;	     /* literal code */
	uint64_t bytes_out, bytes_in, duration_ms;
	uint32_t count; /* of equal ones in a row, this one included */
};

struct receipts;

int receipts_new(struct receipts **out);
void receipts_free(struct receipts *l); /* NULL-safe */

/* Adds r (seq, wall_ms and count are set here); equal lookups in a row are counted as one. */
void receipts_add(struct receipts *l, const struct receipt *r);

/*
 * {"records":[…],"next":n}: at most `limit` receipts with a number above `after`, oldest first.
 * NULL when out of memory.
 */
json_t *receipts_json(const struct receipts *l, uint64_t after, size_t limit);

#endif
