/*
 * IP addresses of both families in one form: 16 bytes, an IPv4 address as ::ffff:a.b.c.d. So an
 * IPv4-mapped IPv6 address and its IPv4 form are one value, and no rule can be passed by writing
 * an address another way. Text is parsed strictly: four decimal parts or RFC 4291 IPv6;
 * "2130706433", "0x7f.1" and "127.1" are not addresses here.
 */
#ifndef CLOCHE_EGRESS_IP_H
#define CLOCHE_EGRESS_IP_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#define IP_TEXT_LEN INET6_ADDRSTRLEN
#define IP_RANGE_TEXT_LEN (INET6_ADDRSTRLEN + 4)

struct ip {
	uint8_t b[16];
};

struct ip_range {
	struct ip net;
	unsigned bits; /* of the 16-byte form, 0..128: IPv4 /8 is 104 */
};

struct ip ip_from_v4(const uint8_t b[4]);
struct ip ip_from_v6(const uint8_t b[16]);
bool ip_is_v4(const struct ip *a);
bool ip_equal(const struct ip *a, const struct ip *b);

/* 0, or -EINVAL when s is not an address. */
int ip_parse(const char *s, struct ip *out);
void ip_format(const struct ip *a, char out[IP_TEXT_LEN]);

/*
 * Parses "ADDRESS" (a range of one) or "ADDRESS/LENGTH". -EINVAL: not a range; -ERANGE: bits are
 * set beyond the length (out then holds the range with those bits cleared, for a hint).
 */
int ip_range_parse(const char *s, struct ip_range *out);
void ip_range_format(const struct ip_range *r, char out[IP_RANGE_TEXT_LEN]);
bool ip_in_range(const struct ip *a, const struct ip_range *r);

/*
 * Why the address is closed unless a rule opens it: a literal such as "private", "loopback",
 * "link-local", or NULL for an address of the public internet.
 */
const char *ip_closed(const struct ip *a);

/* From and to socket addresses; port in host order. ip_to_sockaddr returns the length. */
int ip_from_sockaddr(const struct sockaddr_storage *sa, struct ip *out, uint16_t *port);
socklen_t ip_to_sockaddr(const struct ip *a, uint16_t port, struct sockaddr_storage *sa);

#endif
