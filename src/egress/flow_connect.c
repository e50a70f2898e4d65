/*
 * From a name to a connected socket. Both families are looked up at once unless memory has a fresh
 * answer that holds the very address the guest chose; what policy closes is left out; the guest's
 * choice comes first, then its family, then the rest, one after the other.
 *
 * An address of the host itself is never connected to unless a range rule opens it: the kernel is
 * asked (a route whose source would be the destination is a local one), so every address the host
 * has, or gets later, counts.
 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/loop.h"
#include "egress/egress.h"
#include "egress/flow.h"
#include "egress/names.h"

#define CONNECT_MS 10000 /* one address */
#define KEEPALIVE_IDLE_S 60

static const enum dns_type families[2] = { DNS_A, DNS_AAAA };

static bool is_host_address(const struct ip *a)
{
	struct sockaddr_storage sa, self;
	socklen_t len = ip_to_sockaddr(a, 9, &sa), self_len = sizeof(self);
	_cleanup_close_ int fd = socket(sa.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct ip source;
	uint16_t port;

	if (fd < 0 || connect(fd, (struct sockaddr *)&sa, len) < 0)
		return false; /* no route: the real attempt will say so */
	if (getsockname(fd, (struct sockaddr *)&self, &self_len) < 0 ||
	    ip_from_sockaddr(&self, &source, &port) < 0)
		return true;
	return ip_equal(&source, a);
}

static void add_addr(struct flow *f, const struct ip *a)
{
	for (unsigned i = 0; i < f->n_addrs; i++)
		if (ip_equal(&f->addrs[i], a))
			return;
	if (f->n_addrs < FLOW_ADDRS_MAX)
		f->addrs[f->n_addrs++] = *a;
}

/* 0: the guest's own choice, 1: its family, 2: the other. */
static int rank(const struct flow *f, const struct ip *a)
{
	if (ip_equal(a, &f->dst))
		return 0;
	return ip_is_v4(a) == ip_is_v4(&f->dst) ? 1 : 2;
}

static void sort_addrs(struct flow *f)
{
	for (unsigned i = 1; i < f->n_addrs; i++) {
		struct ip a = f->addrs[i];
		unsigned j = i;

		for (; j > 0 && rank(f, &f->addrs[j - 1]) > rank(f, &a); j--)
			f->addrs[j] = f->addrs[j - 1];
		f->addrs[j] = a;
	}
}

/* All answers are in: keep what policy lets pass and connect. */
static void resolved(struct flow *f)
{
	struct ip found[FLOW_ADDRS_MAX];
	unsigned n = f->n_addrs;
	struct verdict v = f->verdict;

	memcpy(found, f->addrs, sizeof(found));
	f->n_addrs = 0;
	for (unsigned i = 0; i < n; i++) {
		struct verdict each = policy_both(f->policy, f->name, &found[i], f->port);

		if (each.allow)
			add_addr(f, &found[i]);
		else
			v = each;
	}
	if (n && !f->n_addrs) {
		f->addrs[0] = found[0]; /* for the words of the refusal */
		f->n_addrs = 1;
		flow_refuse(f, &v, policy_why_code(v.why), NULL);
	} else if (!n) {
		flow_unreachable(f, "lookup_failed", "the name has no address");
	} else {
		sort_addrs(f);
		flow_connect(f);
	}
}

static void on_lookup(struct flow *f, unsigned which, const struct lookup_answer *a)
{
	f->lookups[which] = NULL;
	for (size_t i = 0; i < a->n; i++)
		add_addr(f, &a->addrs[i]);
	if (a->rcode == DNS_NOERROR && a->n)
		(void)names_put(f->t->names, f->name, families[which], a->addrs, a->n, a->ttl,
				clock_mono_ns()); /* only a memory: without it, one more lookup */
	if (!f->lookups[0] && !f->lookups[1])
		resolved(f);
}

static void on_lookup4(void *ctx, const struct lookup_answer *a)
{
	on_lookup(ctx, 0, a);
}

static void on_lookup6(void *ctx, const struct lookup_answer *a)
{
	on_lookup(ctx, 1, a);
}

/* Uses memory where it is fresh; returns a bit for each family that must be asked. */
static unsigned from_memory(struct flow *f)
{
	uint64_t now = clock_mono_ns();
	unsigned ask = 0;

	for (unsigned i = 0; i < 2; i++) {
		const struct name_answer *a = names_fresh(f->t->names, f->name, families[i], now);
		bool has_choice = false;

		for (size_t k = 0; a && k < a->n; k++) {
			add_addr(f, &a->addrs[k]);
			has_choice |= ip_equal(&a->addrs[k], &f->dst);
		}
		if (has_choice)
			return 0; /* the guest's own choice is one of the name's addresses */
		if (!a)
			ask |= 1u << i;
	}
	return ask;
}

void flow_resolve(struct flow *f)
{
	static const lookup_fn fns[2] = { on_lookup4, on_lookup6 };
	unsigned ask = from_memory(f);

	f->state = FLOW_RESOLVE;
	if (!ask) {
		resolved(f);
		return;
	}
	if (flow_watch(f, 0, 0) < 0)
		return;
	for (unsigned i = 0; i < 2; i++) {
		if (!(ask & 1u << i))
			continue;
		f->lookups[i] =
			resolver_lookup(f->t->eg->resolver, f->name, families[i], fns[i], f);
		if (!f->lookups[i]) {
			flow_end(f, RECEIPT_FAIL, "out_of_memory", true);
			return;
		}
	}
}

static void on_connect_timeout(void *ctx)
{
	struct flow *f = ctx;

	flow_connect(f);
}

static void drop_server(struct flow *f)
{
	loop_remove(f->server_source);
	f->server_source = NULL;
	f->server_events = 0;
	close_fd(&f->server);
}

/* Starts one attempt. 0: under way or connected; negative: this address cannot be. */
static int attempt(struct flow *f, const struct ip *a)
{
	struct sockaddr_storage sa;
	socklen_t len = ip_to_sockaddr(a, f->port, &sa);
	int one = 1, idle = KEEPALIVE_IDLE_S;

	if (!f->verdict.by_range && is_host_address(a))
		return -EACCES;
	f->server = socket(sa.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (f->server < 0)
		return -errno;
	setsockopt(f->server, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	setsockopt(f->server, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
	setsockopt(f->server, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
	if (connect(f->server, (struct sockaddr *)&sa, len) < 0 && errno != EINPROGRESS)
		return -errno;
	return 0;
}

void flow_connect(struct flow *f)
{
	int r = -EHOSTUNREACH;

	f->state = FLOW_CONNECT;
	drop_server(f);
	while (f->next_addr < f->n_addrs) {
		f->peer = f->addrs[f->next_addr++];
		r = attempt(f, &f->peer);
		if (r == 0)
			break;
		close_fd(&f->server);
	}
	if (r == -EACCES)
		flow_refuse(f, NULL, "host_address", "it is an address of the host itself");
	else if (r < 0)
		flow_unreachable(f, "unreachable", "no address of it can be reached");
	else if (flow_timer(f, CONNECT_MS, on_connect_timeout) == 0)
		flow_watch(f, 0, EPOLLOUT);
}

void flow_connect_event(struct flow *f)
{
	socklen_t len = sizeof(int);
	int error = 0;

	if (getsockopt(f->server, SOL_SOCKET, SO_ERROR, &error, &len) < 0 || error) {
		flow_connect(f);
		return;
	}
	timer_cancel(f->t->eg->timers, &f->timer);
	flow_connected(f);
}
