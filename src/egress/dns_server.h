/*
 * The name server of a slot, over UDP and TCP. A name that policy refuses is answered REFUSED with
 * the reason (EDE) and never leaves the host; A and AAAA are looked up; any other type of an
 * allowed name is answered with nothing, so that no data travels in other records. Addresses that
 * policy closes are left out of an answer.
 */
#ifndef CLOCHE_EGRESS_DNS_SERVER_H
#define CLOCHE_EGRESS_DNS_SERVER_H

#include <stdint.h>

struct tenant;

void dns_server_udp(void *tenant, int fd, uint32_t events); /* readable: a loop callback */
void dns_server_accept(void *tenant, int fd, uint32_t events);

/* Ends every TCP connection and pending lookup of the tenant. */
void dns_server_stop(struct tenant *t);

#endif
