/*
 * Making a slot: the thread unshares its network namespace, pins it, sets it up as if it were its
 * own (tap, addresses, routes, firewall), and goes back. Every address is local inside ("AnyIP"
 * routes), so what the guest sends anywhere ends at a socket here or nowhere.
 *
 * Going back cannot be allowed to fail: a broker in the wrong namespace would make every later
 * slot inside a sandbox's, so that is the one place where this code ends the process.
 */
#include "broker/slot.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libmnl/libmnl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <nftables/libnftables.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/log.h"
#include "broker/netlink.h"
#include "broker/slot_rules.h"

#define BACKLOG 512

static const struct {
	const char *path, *value;
} sysctls[] = {
	/* IPv4 settings are inherited from the host's: say them all. */
	{ "/proc/sys/net/ipv4/ip_forward", "0" },
	{ "/proc/sys/net/ipv4/conf/" SLOT_TAP_NAME "/arp_ignore", "1" },
	{ "/proc/sys/net/ipv4/conf/" SLOT_TAP_NAME "/rp_filter", "1" },
	{ "/proc/sys/net/ipv4/conf/" SLOT_TAP_NAME "/accept_redirects", "0" },
	{ "/proc/sys/net/ipv4/conf/" SLOT_TAP_NAME "/accept_source_route", "0" },
	{ "/proc/sys/net/ipv4/tcp_syncookies", "1" },
	/* Else only the first few refusals of a second would be answered. */
	{ "/proc/sys/net/ipv4/icmp_ratelimit", "0" },
	{ "/proc/sys/net/ipv6/icmp/ratelimit", "0" },
	{ "/proc/sys/net/ipv6/conf/" SLOT_TAP_NAME "/disable_ipv6", "0" },
	{ "/proc/sys/net/ipv6/conf/" SLOT_TAP_NAME "/accept_ra", "0" },
	{ "/proc/sys/net/ipv6/conf/" SLOT_TAP_NAME "/accept_redirects", "0" },
	{ "/proc/sys/net/ipv6/conf/" SLOT_TAP_NAME "/accept_dad", "0" },
};

static bool id_ok(const char *id)
{
	size_t n = strlen(id);

	return n && n <= SLOT_ID_MAX &&
	       id[strspn(id, "abcdefghijklmnopqrstuvwxyz0123456789_-")] == 0;
}

static int netns_here(struct err *e)
{
	int fd = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);

	return fd < 0 ? err_errno(e, errno, "open this thread's network namespace") : fd;
}

static void netns_return(int home)
{
	if (setns(home, CLONE_NEWNET) == 0)
		return;
	log_error("cannot go back to the host's network namespace: %s", strerror(errno));
	abort();
}

static int set_sysctls(struct err *e)
{
	for (size_t i = 0; i < ARRAY_SIZE(sysctls); i++) {
		_cleanup_close_ int fd = open(sysctls[i].path, O_WRONLY | O_CLOEXEC);

		if (fd < 0 || write(fd, sysctls[i].value, 1) != 1)
			return err_errno(e, errno, "set %s", sysctls[i].path);
	}
	return 0;
}

static int mac_parse(const char *text, unsigned char mac[6])
{
	return sscanf(text, "%2hhx:%2hhx:%2hhx:%2hhx:%2hhx:%2hhx", &mac[0], &mac[1], &mac[2],
		      &mac[3], &mac[4], &mac[5]) == 6
		       ? 0
		       : -EINVAL;
}

/* The tap, with its MAC; returns its descriptor. */
static int tap_make(struct err *e)
{
	_cleanup_close_ int fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK);
	struct ifreq r = { .ifr_name = SLOT_TAP_NAME,
			   .ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR };
	int hdr = SLOT_TAP_HDR_LEN;
	unsigned char mac[6];

	if (fd < 0)
		return err_errno(e, errno, "open /dev/net/tun");
	if (ioctl(fd, TUNSETIFF, &r) < 0 || ioctl(fd, TUNSETVNETHDRSZ, &hdr) < 0)
		return err_errno(e, errno, "make a tap");
	memset(&r, 0, sizeof(r));
	memcpy(r.ifr_name, SLOT_TAP_NAME, sizeof(SLOT_TAP_NAME));
	mac_parse(SLOT_GATEWAY_MAC, mac);
	r.ifr_hwaddr.sa_family = ARPHRD_ETHER;
	memcpy(r.ifr_hwaddr.sa_data, mac, 6);
	if (ioctl(fd, SIOCSIFHWADDR, &r) < 0)
		return err_errno(e, errno, "set the tap's address");
	return steal_fd(&fd);
}

static int links_up(struct mnl_socket *nl, struct err *e)
{
	unsigned lo = if_nametoindex("lo"), tap = if_nametoindex(SLOT_TAP_NAME);
	unsigned char guest[6];
	int r;

	mac_parse(SLOT_GUEST_MAC, guest);
	if ((r = netlink_link_up(nl, lo, e)) < 0 || (r = netlink_link_up(nl, tap, e)) < 0 ||
	    (r = netlink_addr_add(nl, tap, SLOT_GATEWAY_IP4, SLOT_PREFIX4, e)) < 0 ||
	    (r = netlink_addr_add(nl, tap, SLOT_GATEWAY_IP6, SLOT_PREFIX6, e)) < 0 ||
	    (r = netlink_neigh_add(nl, tap, SLOT_GUEST_IP4, guest, e)) < 0 ||
	    (r = netlink_neigh_add(nl, tap, SLOT_GUEST_IP6, guest, e)) < 0 ||
	    (r = netlink_route_all_local(nl, AF_INET, lo, e)) < 0 ||
	    (r = netlink_route_all_local(nl, AF_INET6, lo, e)) < 0)
		return r;
	return 0;
}

/* libnftables rather than the nft command: starting a program costs more than all the rest. */
static int load_rules(struct err *e)
{
	struct nft_ctx *nft = nft_ctx_new(NFT_CTX_DEFAULT);
	int r = 0;

	if (!nft)
		return err_errno(e, ENOMEM, "load the firewall of a slot");
	if (nft_ctx_buffer_error(nft) < 0 || nft_run_cmd_from_buffer(nft, slot_rules) != 0)
		r = err_set(e, "firewall_failed", EIO, "load the firewall of a slot: %s",
			    nft_ctx_get_error_buffer(nft));
	nft_ctx_free(nft);
	return r;
}

/* Everything that is done inside the new namespace. The firewall is there before the link is up. */
static int setup_inside(struct slot *s, struct err *e)
{
	struct mnl_socket *nl = NULL;
	int r;

	s->tap = tap_make(e);
	if (s->tap < 0)
		return s->tap;
	if ((r = set_sysctls(e)) < 0 || (r = load_rules(e)) < 0 || (r = netlink_open(&nl, e)) < 0)
		return r;
	r = links_up(nl, e);
	mnl_socket_close(nl);
	return r;
}

static int pin(struct slot *s, struct err *e)
{
	_cleanup_close_ int fd = open(s->pin, O_CREAT | O_EXCL | O_RDONLY | O_CLOEXEC, 0400);

	if (fd < 0)
		return err_errno(e, errno, "make %s", s->pin);
	if (mount("/proc/thread-self/ns/net", s->pin, NULL, MS_BIND, NULL) < 0) {
		int r = err_errno(e, errno, "pin a namespace at %s", s->pin);

		unlink(s->pin);
		return r;
	}
	return 0;
}

static int slot_new(const char *run_dir, const char *id, struct slot **out, struct err *e)
{
	_cleanup_buf_ struct buf b = { 0 };
	struct slot *s;

	if (!id_ok(id))
		return err_set(e, "bad_slot", EINVAL, "%.40s is not a slot's id", id);
	s = calloc(1, sizeof(*s));
	if (!s || buf_printf(&b, "%s/netns/%s", run_dir, id) < 0) {
		free(s);
		return err_errno(e, ENOMEM, "slot");
	}
	snprintf(s->id, sizeof(s->id), "%s", id);
	s->pin = buf_steal(&b);
	s->netns = s->tap = -1;
	*out = s;
	return 0;
}

int slot_prepare(const char *run_dir, struct err *e)
{
	_cleanup_buf_ struct buf b = { 0 };

	if (buf_printf(&b, "%s/netns", run_dir) < 0)
		return err_errno(e, ENOMEM, "slots");
	if (mkdir(b.data, 0700) < 0 && errno != EEXIST)
		return err_errno(e, errno, "make %s", b.data);
	return 0;
}

int slot_make(const char *run_dir, const char *id, struct slot **out, struct err *e)
{
	_cleanup_close_ int home = netns_here(e);
	struct slot *s;
	int r;

	if (home < 0)
		return home;
	r = slot_new(run_dir, id, &s, e);
	if (r < 0)
		return r;
	if (unshare(CLONE_NEWNET) < 0) {
		r = err_errno(e, errno, "make a network namespace");
		slot_free(s);
		return r;
	}
	r = pin(s, e);
	if (r < 0) {
		netns_return(home);
		slot_free(s);
		return r;
	}
	s->netns = netns_here(e);
	r = s->netns < 0 ? s->netns : setup_inside(s, e);
	netns_return(home);
	if (r < 0) {
		slot_destroy(s);
		return r;
	}
	*out = s;
	return 0;
}

int slot_find(const char *run_dir, const char *id, struct slot **out, struct err *e)
{
	struct slot *s;
	int r = slot_new(run_dir, id, &s, e);

	if (r < 0)
		return r;
	s->netns = open(s->pin, O_RDONLY | O_CLOEXEC);
	if (s->netns < 0) {
		r = err_errno(e, errno, "open slot %s", id);
		slot_free(s);
		return r;
	}
	*out = s;
	return 0;
}

/* One socket of the slot, in the namespace where the thread is. */
static int socket_make(enum slot_socket which, struct err *e)
{
	bool v6 = which == SLOT_TCP6 || which == SLOT_DNS_UDP6 || which == SLOT_DNS_TCP6;
	bool udp = which == SLOT_DNS_UDP4 || which == SLOT_DNS_UDP6;
	bool proxy = which == SLOT_TCP4 || which == SLOT_TCP6;
	uint16_t port = proxy ? SLOT_TCP_PORT : 53;
	struct sockaddr_in6 a6 = { .sin6_family = AF_INET6, .sin6_port = htons(port) };
	struct sockaddr_in a4 = { .sin_family = AF_INET, .sin_port = htons(port) };
	_cleanup_close_ int fd =
		socket(v6 ? AF_INET6 : AF_INET,
		       (udp ? SOCK_DGRAM : SOCK_STREAM) | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	int one = 1, level = v6 ? IPPROTO_IPV6 : IPPROTO_IP;

	if (fd < 0)
		return err_errno(e, errno, "make a slot's socket");
	if ((v6 && setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof(one)) < 0) ||
	    (!udp && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) < 0) ||
	    setsockopt(fd, level, v6 ? IPV6_TRANSPARENT : IP_TRANSPARENT, &one, sizeof(one)) < 0 ||
	    (udp &&
	     setsockopt(fd, level, v6 ? IPV6_RECVPKTINFO : IP_PKTINFO, &one, sizeof(one)) < 0))
		return err_errno(e, errno, "set up a slot's socket");
	if (bind(fd, v6 ? (struct sockaddr *)&a6 : (struct sockaddr *)&a4,
		 v6 ? sizeof(a6) : sizeof(a4)) < 0 ||
	    (!udp && listen(fd, BACKLOG) < 0))
		return err_errno(e, errno, "bind a slot's socket to port %u", port);
	return steal_fd(&fd);
}

int slot_listen(const struct slot *s, int fds[SLOT_SOCKETS], struct err *e)
{
	_cleanup_close_ int home = netns_here(e);
	int r = 0, n = 0;

	if (home < 0)
		return home;
	if (setns(s->netns, CLONE_NEWNET) < 0)
		return err_errno(e, errno, "enter slot %s", s->id);
	while (n < SLOT_SOCKETS && r >= 0) {
		r = socket_make((enum slot_socket)n, e);
		if (r >= 0)
			fds[n++] = r;
	}
	netns_return(home);
	while (r < 0 && n > 0)
		close_fd(&fds[--n]);
	return r < 0 ? r : 0;
}

void slot_free(struct slot *s)
{
	if (!s)
		return;
	close_fd(&s->netns);
	close_fd(&s->tap);
	free(s->pin);
	free(s);
}

static void unpin(const char *path)
{
	if (umount2(path, MNT_DETACH) < 0 && errno != EINVAL)
		log_warn("unmount %s: %s", path, strerror(errno));
	if (unlink(path) < 0 && errno != ENOENT)
		log_warn("remove %s: %s", path, strerror(errno));
}

void slot_destroy(struct slot *s)
{
	if (s)
		unpin(s->pin);
	slot_free(s);
}

int slot_sweep(const char *run_dir, int (*keep)(void *ctx, const char *id), void *ctx,
	       struct err *e)
{
	_cleanup_buf_ struct buf dir = { 0 };
	_cleanup_closedir_ DIR *d = NULL;
	struct dirent *de;
	int n = 0;

	if (buf_printf(&dir, "%s/netns", run_dir) < 0)
		return err_errno(e, ENOMEM, "sweep slots");
	d = opendir(dir.data);
	if (!d)
		return err_errno(e, errno, "open %s", dir.data);
	while ((de = readdir(d))) {
		_cleanup_buf_ struct buf path = { 0 };

		if (de->d_name[0] == '.' || keep(ctx, de->d_name))
			continue;
		if (buf_printf(&path, "%s/%s", dir.data, de->d_name) < 0)
			return err_errno(e, ENOMEM, "sweep slots");
		unpin(path.data);
		n++;
	}
	return n;
}
