/*
 * Every comparison works on the 16-byte form. The table of closed ranges follows the IANA special
 * purpose registries; a range that embeds an IPv4 address (6to4, Teredo, NAT64, IPv4-compatible)
 * is closed as a whole, since it could name a private one. Outside 2000::/3 no IPv6 is public.
 * No state.
 */
#include "egress/ip.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"

#define V4_BITS 96

static const uint8_t mapped[12] = { [10] = 0xff, [11] = 0xff };

struct closed {
	uint8_t net[16];
	uint8_t bits;
	const char *why;
};

#define V4(a, b, c, d)                                                           \
	{                                                                        \
		[10] = 0xff, [11] = 0xff, [12] = a, [13] = b, [14] = c, [15] = d \
	}

static const struct closed closed_ranges[] = {
	{ V4(0, 0, 0, 0), V4_BITS + 8, "this-network" },
	{ V4(10, 0, 0, 0), V4_BITS + 8, "private" },
	{ V4(100, 64, 0, 0), V4_BITS + 10, "shared (carrier NAT)" },
	{ V4(127, 0, 0, 0), V4_BITS + 8, "loopback" },
	{ V4(168, 63, 129, 16), V4_BITS + 32, "cloud metadata" },
	{ V4(169, 254, 0, 0), V4_BITS + 16, "link-local (cloud metadata)" },
	{ V4(172, 16, 0, 0), V4_BITS + 12, "private" },
	{ V4(192, 0, 0, 0), V4_BITS + 24, "protocol assignments" },
	{ V4(192, 0, 2, 0), V4_BITS + 24, "documentation" },
	{ V4(192, 88, 99, 0), V4_BITS + 24, "6to4 relay" },
	{ V4(192, 168, 0, 0), V4_BITS + 16, "private" },
	{ V4(198, 18, 0, 0), V4_BITS + 15, "benchmarking" },
	{ V4(198, 51, 100, 0), V4_BITS + 24, "documentation" },
	{ V4(203, 0, 113, 0), V4_BITS + 24, "documentation" },
	{ V4(224, 0, 0, 0), V4_BITS + 4, "multicast" },
	{ V4(240, 0, 0, 0), V4_BITS + 4, "reserved" },
	{ { 0x20, 0x01, 0x00, 0x00 }, 23, "protocol assignments" }, /* Teredo, ORCHID among them */
	{ { 0x20, 0x01, 0x0d, 0xb8 }, 32, "documentation" },
	{ { 0x20, 0x02 }, 16, "6to4" },
	{ { 0x3f, 0xff }, 20, "documentation" },
	{ { 0xfc }, 7, "private (unique local)" },
	{ { 0xfe, 0x80 }, 10, "link-local" },
	{ { 0xff }, 8, "multicast" },
};

struct ip ip_from_v4(const uint8_t b[4])
{
	struct ip a;

	memcpy(a.b, mapped, sizeof(mapped));
	memcpy(a.b + 12, b, 4);
	return a;
}

struct ip ip_from_v6(const uint8_t b[16])
{
	struct ip a;

	memcpy(a.b, b, 16);
	return a;
}

bool ip_is_v4(const struct ip *a)
{
	return memcmp(a->b, mapped, sizeof(mapped)) == 0;
}

bool ip_equal(const struct ip *a, const struct ip *b)
{
	return memcmp(a->b, b->b, 16) == 0;
}

int ip_parse(const char *s, struct ip *out)
{
	uint8_t b[16];

	if (inet_pton(AF_INET, s, b) == 1) {
		*out = ip_from_v4(b);
		return 0;
	}
	if (inet_pton(AF_INET6, s, b) == 1) {
		*out = ip_from_v6(b);
		return 0;
	}
	return -EINVAL;
}

void ip_format(const struct ip *a, char out[IP_TEXT_LEN])
{
	if (ip_is_v4(a))
		inet_ntop(AF_INET, a->b + 12, out, IP_TEXT_LEN);
	else
		inet_ntop(AF_INET6, a->b, out, IP_TEXT_LEN);
}

/* Clears the bits of a beyond `bits`; returns whether any was set. */
static bool mask(struct ip *a, unsigned bits)
{
	bool any = false;

	for (unsigned i = 0; i < 16; i++) {
		unsigned keep = bits >= 8 * (i + 1) ? 8 : bits > 8 * i ? bits - 8 * i : 0;
		uint8_t m = (uint8_t)(0xff00u >> keep);

		any |= (a->b[i] & (uint8_t)~m) != 0;
		a->b[i] &= m;
	}
	return any;
}

int ip_range_parse(const char *s, struct ip_range *out)
{
	const char *slash = strchr(s, '/');
	char text[IP_TEXT_LEN];
	size_t n = slash ? (size_t)(slash - s) : strlen(s);
	bool v4_text = !memchr(s, ':', n);
	struct ip_range r;
	int64_t len;

	if (n >= sizeof(text))
		return -EINVAL;
	memcpy(text, s, n);
	text[n] = '\0';
	if (ip_parse(text, &r.net) < 0)
		return -EINVAL;
	r.bits = 128;
	if (slash) {
		if (str_to_int(slash + 1, 0, v4_text ? 32 : 128, &len) < 0)
			return -EINVAL;
		r.bits = (unsigned)len + (v4_text ? V4_BITS : 0);
	}
	*out = r;
	return mask(&out->net, out->bits) ? -ERANGE : 0;
}

void ip_range_format(const struct ip_range *r, char out[IP_RANGE_TEXT_LEN])
{
	char text[IP_TEXT_LEN];
	bool v4 = ip_is_v4(&r->net) && r->bits >= V4_BITS;

	ip_format(&r->net, text);
	snprintf(out, IP_RANGE_TEXT_LEN, "%s/%u", text, v4 ? r->bits - V4_BITS : r->bits);
}

bool ip_in_range(const struct ip *a, const struct ip_range *r)
{
	struct ip m = *a;

	mask(&m, r->bits);
	return ip_equal(&m, &r->net);
}

const char *ip_closed(const struct ip *a)
{
	static const uint8_t global[1] = { 0x20 };

	for (size_t i = 0; i < ARRAY_SIZE(closed_ranges); i++) {
		const struct closed *c = &closed_ranges[i];
		struct ip_range r = { .bits = c->bits };

		memcpy(r.net.b, c->net, 16);
		if (ip_in_range(a, &r))
			return c->why;
	}
	if (ip_is_v4(a) || (a->b[0] & 0xe0) == global[0])
		return NULL;
	return "outside the global unicast range";
}

int ip_from_sockaddr(const struct sockaddr_storage *sa, struct ip *out, uint16_t *port)
{
	struct sockaddr_in6 s6;
	struct sockaddr_in s4;

	if (sa->ss_family == AF_INET) {
		memcpy(&s4, sa, sizeof(s4));
		*out = ip_from_v4((const uint8_t *)&s4.sin_addr);
		*port = ntohs(s4.sin_port);
		return 0;
	}
	if (sa->ss_family == AF_INET6) {
		memcpy(&s6, sa, sizeof(s6));
		*out = ip_from_v6(s6.sin6_addr.s6_addr);
		*port = ntohs(s6.sin6_port);
		return 0;
	}
	return -EAFNOSUPPORT;
}

socklen_t ip_to_sockaddr(const struct ip *a, uint16_t port, struct sockaddr_storage *sa)
{
	memset(sa, 0, sizeof(*sa));
	if (ip_is_v4(a)) {
		struct sockaddr_in s4 = { .sin_family = AF_INET, .sin_port = htons(port) };

		memcpy(&s4.sin_addr, a->b + 12, 4);
		memcpy(sa, &s4, sizeof(s4));
		return sizeof(s4);
	}
	struct sockaddr_in6 s6 = { .sin6_family = AF_INET6, .sin6_port = htons(port) };

	memcpy(&s6.sin6_addr, a->b, 16);
	memcpy(sa, &s6, sizeof(s6));
	return sizeof(s6);
}
