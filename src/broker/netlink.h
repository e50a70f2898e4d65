/* The few rtnetlink requests a slot needs, in the network namespace of the calling thread. */
#ifndef CLOCHE_BROKER_NETLINK_H
#define CLOCHE_BROKER_NETLINK_H

struct err;
struct mnl_socket;

/* Opens a socket in the current namespace; close with mnl_socket_close(). */
int netlink_open(struct mnl_socket **out, struct err *e);

int netlink_link_up(struct mnl_socket *nl, unsigned ifindex, struct err *e);

/* address is text of either family; IPv6 addresses skip duplicate detection. */
int netlink_addr_add(struct mnl_socket *nl, unsigned ifindex, const char *address, unsigned prefix,
		     struct err *e);

/* Makes every address without a better route a local one (family AF_INET or AF_INET6). */
int netlink_route_all_local(struct mnl_socket *nl, int family, unsigned lo_ifindex, struct err *e);

/* A permanent neighbour, so that nothing is asked and nothing can be answered falsely. */
int netlink_neigh_add(struct mnl_socket *nl, unsigned ifindex, const char *address,
		      const unsigned char mac[6], struct err *e);

#endif
