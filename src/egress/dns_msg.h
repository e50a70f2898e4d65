/*
 * The part of DNS that a sandbox needs: reading one hostile query, writing its answer.
 * A query is one question of class IN, with or without EDNS. Answers hold A or AAAA records only.
 */
#ifndef CLOCHE_EGRESS_DNS_MSG_H
#define CLOCHE_EGRESS_DNS_MSG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "egress/hostname.h"
#include "egress/ip.h"

#define DNS_UDP_MAX 1232 /* the largest answer over UDP, whatever the client offers */
#define DNS_TCP_MAX 4096
#define DNS_QUESTION_MAX 260 /* name 255, type, class: rounded up */
#define DNS_ANSWERS_MAX 16

enum dns_type { DNS_A = 1, DNS_AAAA = 28 };

enum dns_rcode {
	DNS_NOERROR = 0,
	DNS_FORMERR = 1,
	DNS_SERVFAIL = 2,
	DNS_NXDOMAIN = 3,
	DNS_NOTIMP = 4,
	DNS_REFUSED = 5,
};

struct dns_query {
	uint16_t id;
	uint16_t type;
	bool recursion;
	bool edns;
	size_t udp_max;			    /* what the client takes over UDP, 512..DNS_UDP_MAX */
	char name[HOSTNAME_LEN];	    /* "" when it is not a host name */
	uint8_t question[DNS_QUESTION_MAX]; /* as sent, to be echoed (its letter case too) */
	size_t question_len;		    /* 0 when none could be read */
};

/*
 * Reads msg[n]. DNS_NOERROR: q is filled. DNS_FORMERR, DNS_NOTIMP: answer that; q holds id and
 * perhaps the question. -EBADMSG: not a query at all, answer nothing.
 */
int dns_query_parse(const uint8_t *msg, size_t n, struct dns_query *q);

struct dns_answer {
	enum dns_rcode rcode;
	const struct ip *addrs; /* of the family the query's type asks for */
	size_t n;
	uint32_t ttl;
	const char
		*reason; /* NULL, or a line for people (RFC 8914, "Prohibited"), with EDNS only */
};

/*
 * Writes the answer to q into out[max] and returns its length; when it does not fit the answers
 * are left out and TC is set. max >= 512.
 */
size_t dns_answer_write(const struct dns_query *q, const struct dns_answer *a, uint8_t *out,
			size_t max);

#endif
