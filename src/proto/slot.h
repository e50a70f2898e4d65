/*
 * A network slot as both of its sides see it. Every sandbox has the same addresses: a slot is a
 * network namespace of its own with one tap and no uplink, so nothing can clash, and a fork or a
 * resume in another slot finds the network it left.
 *
 * 192.0.0.0/29 (RFC 7335) is used on no real network, so it hides nothing from a guest.
 */
#ifndef CLOCHE_PROTO_SLOT_H
#define CLOCHE_PROTO_SLOT_H

#define SLOT_GUEST_IP4 "192.0.0.2"
#define SLOT_GATEWAY_IP4 "192.0.0.1" /* also the name server */
#define SLOT_PREFIX4 30
#define SLOT_GUEST_IP6 "fd00:c10c:e::2"
#define SLOT_GATEWAY_IP6 "fd00:c10c:e::1"
#define SLOT_PREFIX6 64
#define SLOT_GUEST_MAC "02:c1:0c:e0:00:02"
#define SLOT_GATEWAY_MAC "02:c1:0c:e0:00:01"

#define SLOT_TAP_NAME "tap0"
#define SLOT_TAP_HDR_LEN 12 /* struct virtio_net_hdr_mrg_rxbuf before each frame */

/* The sockets that egress serves inside a slot, in the order they are passed. */
enum slot_socket {
	SLOT_TCP4,     /* listens for every IPv4 TCP connection but DNS; its local address is */
	SLOT_TCP6,     /* the destination that the guest meant */
	SLOT_DNS_UDP4, /* port 53 of every address; IP_PKTINFO tells which was meant */
	SLOT_DNS_UDP6,
	SLOT_DNS_TCP4,
	SLOT_DNS_TCP6,
	SLOT_SOCKETS
};

#endif
