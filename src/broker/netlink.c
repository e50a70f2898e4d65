/* Each call builds one message, sends it and waits for its acknowledgement. No state. */
#include "broker/netlink.h"

#include <arpa/inet.h>
#include <errno.h>
#include <libmnl/libmnl.h>
#include <linux/if_addr.h>
#include <linux/neighbour.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <string.h>

#include "base/err.h"

#define MSG_MAX 512

struct address {
	int family;
	size_t len;
	unsigned char b[16];
};

static int address_parse(const char *text, struct address *a, struct err *e)
{
	a->family = strchr(text, ':') ? AF_INET6 : AF_INET;
	a->len = a->family == AF_INET ? 4 : 16;
	if (inet_pton(a->family, text, a->b) != 1)
		return err_set(e, "bad_address", EINVAL, "%s is not an address", text);
	return 0;
}

int netlink_open(struct mnl_socket **out, struct err *e)
{
	struct mnl_socket *nl = mnl_socket_open2(NETLINK_ROUTE, SOCK_CLOEXEC);

	if (!nl)
		return err_errno(e, errno, "rtnetlink");
	if (mnl_socket_bind(nl, 0, MNL_SOCKET_AUTOPID) < 0) {
		int r = err_errno(e, errno, "rtnetlink");

		mnl_socket_close(nl);
		return r;
	}
	*out = nl;
	return 0;
}

static int talk(struct mnl_socket *nl, struct nlmsghdr *h, const char *what, struct err *e)
{
	char answer[1024];
	ssize_t n;

	h->nlmsg_seq = 1;
	if (mnl_socket_sendto(nl, h, h->nlmsg_len) < 0)
		return err_errno(e, errno, "%s", what);
	n = mnl_socket_recvfrom(nl, answer, sizeof(answer));
	if (n < 0 || mnl_cb_run(answer, (size_t)n, 1, mnl_socket_get_portid(nl), NULL, NULL) < 0)
		return err_errno(e, errno, "%s", what);
	return 0;
}

static struct nlmsghdr *start(char b[MSG_MAX], uint16_t type, uint16_t flags)
{
	struct nlmsghdr *h = mnl_nlmsg_put_header(b);

	h->nlmsg_type = type;
	h->nlmsg_flags = (uint16_t)(NLM_F_REQUEST | NLM_F_ACK | flags);
	return h;
}

int netlink_link_up(struct mnl_socket *nl, unsigned ifindex, struct err *e)
{
	char b[MSG_MAX] __attribute__((aligned(8))) = { 0 };
	struct nlmsghdr *h = start(b, RTM_NEWLINK, 0);
	struct ifinfomsg *m = mnl_nlmsg_put_extra_header(h, sizeof(*m));

	m->ifi_index = (int)ifindex;
	m->ifi_flags = IFF_UP;
	m->ifi_change = IFF_UP;
	return talk(nl, h, "bring a link up", e);
}

int netlink_addr_add(struct mnl_socket *nl, unsigned ifindex, const char *address, unsigned prefix,
		     struct err *e)
{
	char b[MSG_MAX] __attribute__((aligned(8))) = { 0 };
	struct nlmsghdr *h = start(b, RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL);
	struct ifaddrmsg *m = mnl_nlmsg_put_extra_header(h, sizeof(*m));
	struct address a;

	if (address_parse(address, &a, e) < 0)
		return -EINVAL;
	m->ifa_family = (unsigned char)a.family;
	m->ifa_prefixlen = (unsigned char)prefix;
	m->ifa_index = ifindex;
	m->ifa_flags = a.family == AF_INET6 ? IFA_F_NODAD : 0;
	mnl_attr_put(h, IFA_LOCAL, a.len, a.b);
	mnl_attr_put(h, IFA_ADDRESS, a.len, a.b);
	return talk(nl, h, "add an address", e);
}

int netlink_route_all_local(struct mnl_socket *nl, int family, unsigned lo_ifindex, struct err *e)
{
	char b[MSG_MAX] __attribute__((aligned(8))) = { 0 };
	struct nlmsghdr *h = start(b, RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL);
	struct rtmsg *m = mnl_nlmsg_put_extra_header(h, sizeof(*m));

	m->rtm_family = (unsigned char)family;
	m->rtm_table = RT_TABLE_MAIN;
	m->rtm_protocol = RTPROT_STATIC;
	m->rtm_scope = family == AF_INET ? RT_SCOPE_HOST : RT_SCOPE_UNIVERSE;
	m->rtm_type = RTN_LOCAL;
	mnl_attr_put_u32(h, RTA_OIF, lo_ifindex);
	return talk(nl, h, "add the local route", e);
}

int netlink_neigh_add(struct mnl_socket *nl, unsigned ifindex, const char *address,
		      const unsigned char mac[6], struct err *e)
{
	char b[MSG_MAX] __attribute__((aligned(8))) = { 0 };
	struct nlmsghdr *h = start(b, RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE);
	struct ndmsg *m = mnl_nlmsg_put_extra_header(h, sizeof(*m));
	struct address a;

	if (address_parse(address, &a, e) < 0)
		return -EINVAL;
	m->ndm_family = (unsigned char)a.family;
	m->ndm_ifindex = (int)ifindex;
	m->ndm_state = NUD_PERMANENT;
	mnl_attr_put(h, NDA_DST, a.len, a.b);
	mnl_attr_put(h, NDA_LLADDR, 6, mac);
	return talk(nl, h, "add a neighbour", e);
}
