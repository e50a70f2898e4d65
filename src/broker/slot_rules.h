/*
 * The firewall of a slot, as nft reads it.
 *
 * guard  sees each frame of the guest before anything else of the kernel does: one MAC, its two
 *        addresses, ARP and neighbour discovery about itself. The rest never was.
 * steer  hands TCP to the transparent listeners. No NAT and no connection tracking, so a flood
 *        fills no table, and the accepted socket's own address is what the guest asked for.
 * input  takes TCP, DNS and the ICMP errors that TCP needs; answers everything else with
 *        "administratively prohibited", at most so often that a flood costs little.
 * No hook forwards: the slot has nowhere to forward to, and would not.
 */
#ifndef CLOCHE_BROKER_SLOT_RULES_H
#define CLOCHE_BROKER_SLOT_RULES_H

#include "proto/slot.h"

#define SLOT_TCP_PORT 15001 /* of the transparent listeners; nothing reaches it by number */
#define SLOT_TCP_PORT_TEXT "15001"

static const char slot_rules[] =
	"table netdev cloche {\n"
	" chain guard {\n"
	"  type filter hook ingress device \"" SLOT_TAP_NAME "\" priority -500; policy drop;\n"
	"  ether saddr != " SLOT_GUEST_MAC " drop\n"
	"  ether type arp arp saddr ether " SLOT_GUEST_MAC " arp saddr ip { " SLOT_GUEST_IP4
	", 0.0.0.0 } accept\n"
	"  ether type ip ip saddr " SLOT_GUEST_IP4 " accept\n"
	"  ether type ip6 ip6 saddr " SLOT_GUEST_IP6 " accept\n"
	"  ether type ip6 ip6 saddr { ::, fe80::/10 } icmpv6 type"
	" { nd-neighbor-solicit, nd-neighbor-advert } accept\n"
	" }\n"
	"}\n"
	"table inet cloche {\n"
	" chain steer {\n"
	"  type filter hook prerouting priority mangle; policy accept;\n"
	"  iifname != \"" SLOT_TAP_NAME "\" accept\n"
	"  tcp dport 53 accept\n"
	"  meta nfproto ipv4 meta l4proto tcp tproxy ip to :" SLOT_TCP_PORT_TEXT " accept\n"
	"  meta nfproto ipv6 meta l4proto tcp tproxy ip6 to :" SLOT_TCP_PORT_TEXT " accept\n"
	" }\n"
	" chain input {\n"
	"  type filter hook input priority filter; policy drop;\n"
	"  iifname \"lo\" accept\n"
	"  meta l4proto tcp accept\n"
	"  udp dport 53 accept\n"
	"  icmp type { destination-unreachable, time-exceeded } accept\n"
	"  icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert, destination-unreachable,"
	" packet-too-big, time-exceeded } accept\n"
	"  limit rate 500/second burst 100 packets reject with icmpx admin-prohibited\n"
	" }\n"
	" chain forward {\n"
	"  type filter hook forward priority filter; policy drop;\n"
	" }\n"
	"}\n";

#endif
