/*
 * A query becomes a struct dns_pending: answered at once from policy or memory, or after a lookup.
 * UDP queries remember both addresses of their packet (the guest may ask any address; the answer
 * must come from it). A TCP connection handles one query at a time: it is not read while one is
 * pending, so a client that pipelines is bounded by its socket buffer.
 */
#include "egress/dns_server.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/loop.h"
#include "egress/dns_msg.h"
#include "egress/egress.h"
#include "egress/names.h"
#include "egress/resolver.h"

#define UDP_ROUND 32 /* queries taken in one go: others want the loop too */
#define CONNS_MAX 16
#define CONN_IDLE_S 10
#define TTL_MAX 300
#define QUERY_MAX 1024

union control {
	struct cmsghdr align;
	char b[CMSG_SPACE(sizeof(struct in6_pktinfo))];
};

struct dns_conn {
	struct tenant *t;
	struct dns_conn *next, **link;
	int fd;
	struct loop_source *source;
	struct timer idle, again;
	uint8_t in[2 + QUERY_MAX];
	size_t in_len;
	struct dns_pending *pending;
};

/* A query that waits for a lookup, or the stack copy of one that need not. */
struct dns_pending {
	struct tenant *t;
	struct dns_pending *next, **link; /* in t->lookups, when it waits */
	struct dns_query q;
	struct verdict verdict; /* of the name; rule belongs to policy */
	struct policy *policy;
	struct lookup *lookup;

	struct dns_conn *conn; /* TCP */
	int udp;	       /* UDP: the socket… */
	struct sockaddr_storage peer;
	socklen_t peer_len;
	union control local; /* …and the address that was asked, as it came */
	size_t local_len;
};

static void conn_free(struct dns_conn *c);
static void conn_answered(struct dns_conn *c, const uint8_t *msg, size_t n);

static void send_udp(const struct dns_pending *p, const uint8_t *msg, size_t n)
{
	struct iovec iov = { (void *)(uintptr_t)msg, n };
	struct msghdr m = { .msg_name = (void *)(uintptr_t)&p->peer,
			    .msg_namelen = p->peer_len,
			    .msg_iov = &iov,
			    .msg_iovlen = 1,
			    .msg_control = (void *)(uintptr_t)p->local.b,
			    .msg_controllen = p->local_len };

	/* A full buffer loses the answer, as a network would; the client asks again. */
	if (sendmsg(p->udp, &m, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 && errno != EAGAIN)
		log_debug("answer a DNS query: %s", strerror(errno));
}

static void answer(struct dns_pending *p, const struct dns_answer *a)
{
	uint8_t out[DNS_TCP_MAX];
	size_t n = dns_answer_write(&p->q, a, out, p->conn ? sizeof(out) : p->q.udp_max);

	if (p->conn)
		conn_answered(p->conn, out, n);
	else
		send_udp(p, out, n);
}

static void record(struct dns_pending *p, enum receipt_event event, const struct verdict *v,
		   const char *reason)
{
	struct receipt r = { .event = event, .protocol = "dns", .reason = reason };

	memcpy(r.host, p->q.name, sizeof(r.host));
	tenant_record(p->t, &r, v);
}

static void refuse(struct dns_pending *p, const struct verdict *v)
{
	_cleanup_buf_ struct buf why = { 0 };
	struct dns_answer a = { .rcode = DNS_REFUSED };

	if (policy_explain(v, p->q.name, &why) == 0)
		a.reason = why.data;
	p->t->dns_refused++;
	record(p, RECEIPT_REFUSE, v, policy_why_code(v->why));
	answer(p, &a);
}

static void answer_code(struct dns_pending *p, enum dns_rcode rcode)
{
	answer(p, &(struct dns_answer){ .rcode = rcode, .ttl = 0 });
}

/* Answers with addresses that policy lets pass; remembers them. */
static void answer_addrs(struct dns_pending *p, const struct lookup_answer *found)
{
	struct verdict v = { 0 };
	struct ip ok[DNS_ANSWERS_MAX];
	size_t n = 0;

	for (size_t i = 0; i < found->n; i++) {
		struct verdict each = policy_both(p->t->policy, p->q.name, &found->addrs[i], 0);

		if (each.allow)
			ok[n++] = found->addrs[i];
		else
			v = each;
	}
	if (found->n && !n) {
		refuse(p, &v);
		return;
	}
	if (found->rcode == DNS_NOERROR &&
	    names_put(p->t->names, p->q.name, (enum dns_type)p->q.type, ok, n, found->ttl,
		      clock_mono_ns()) < 0) {
		answer_code(p, DNS_SERVFAIL);
		return;
	}
	record(p, found->rcode == DNS_SERVFAIL ? RECEIPT_FAIL : RECEIPT_ALLOW, &p->verdict,
	       found->rcode == DNS_SERVFAIL ? "lookup_failed" : policy_why_code(p->verdict.why));
	answer(p, &(struct dns_answer){ .rcode = found->rcode,
					.addrs = ok,
					.n = n,
					.ttl = found->ttl < TTL_MAX ? found->ttl : TTL_MAX });
}

static void pending_free(struct dns_pending *p)
{
	*p->link = p->next;
	if (p->next)
		p->next->link = p->link;
	p->t->n_lookups--;
	lookup_cancel(p->lookup);
	policy_unref(p->policy);
	free(p);
}

static void on_lookup(void *ctx, const struct lookup_answer *found)
{
	struct dns_pending *p = ctx;
	struct dns_conn *conn = p->conn;

	p->lookup = NULL;
	if (conn)
		conn->pending = NULL;
	answer_addrs(p, found);
	pending_free(p);
}

/* Hands the query on to the resolver. */
static void look_up(const struct dns_pending *query)
{
	struct tenant *t = query->t;
	struct dns_pending *p = NULL;

	if (t->n_lookups < t->eg->limits.lookups)
		p = malloc(sizeof(*p));
	if (!p) {
		answer_code((struct dns_pending *)(uintptr_t)query, DNS_SERVFAIL);
		return;
	}
	*p = *query;
	p->policy = policy_ref(t->policy); /* keeps verdict.rule alive */
	p->next = t->lookups;
	p->link = &t->lookups;
	if (p->next)
		p->next->link = &p->next;
	t->lookups = p;
	t->n_lookups++;
	if (p->conn)
		p->conn->pending = p;
	p->lookup =
		resolver_lookup(t->eg->resolver, p->q.name, (enum dns_type)p->q.type, on_lookup, p);
	if (!p->lookup) {
		if (p->conn)
			p->conn->pending = NULL;
		answer_code(p, DNS_SERVFAIL);
		pending_free(p);
	}
}

/* "localhost" is answered here, as RFC 6761 asks; it must not reach a resolver. */
static bool answer_localhost(struct dns_pending *p)
{
	static const uint8_t v4[4] = { 127, 0, 0, 1 }, v6[16] = { [15] = 1 };
	struct ip a = p->q.type == DNS_A ? ip_from_v4(v4) : ip_from_v6(v6);

	if (strcmp(p->q.name, "localhost") != 0 && !hostname_below(p->q.name, "localhost"))
		return false;
	answer(p,
	       &(struct dns_answer){ .rcode = DNS_NOERROR, .addrs = &a, .n = 1, .ttl = TTL_MAX });
	return true;
}

static void handle(struct dns_pending *p, const uint8_t *msg, size_t n)
{
	struct tenant *t = p->t;
	const struct name_answer *known;
	uint64_t now = clock_mono_ns();
	int r = dns_query_parse(msg, n, &p->q);

	t->dns_total++;
	if (r < 0) {
		if (p->conn)
			conn_free(p->conn);
		return;
	}
	if (r != DNS_NOERROR) {
		answer_code(p, (enum dns_rcode)r);
		return;
	}
	if (!bucket_take(&t->lookup_bucket, t->eg->limits.lookup_rate, t->eg->limits.lookup_burst,
			 now)) {
		t->dns_refused++;
		record(p, RECEIPT_REFUSE, NULL, "rate_limit");
		answer_code(p, DNS_REFUSED);
		return;
	}
	if (!p->q.name[0]) { /* not a host name: a service label, the root, or smuggled bytes */
		record(p, RECEIPT_REFUSE, NULL, "not_a_host_name");
		answer_code(p, DNS_REFUSED);
		return;
	}
	if (answer_localhost(p))
		return;
	p->verdict = policy_name(t->policy, p->q.name, 0);
	if (!p->verdict.allow) {
		refuse(p, &p->verdict);
		return;
	}
	if (p->q.type != DNS_A && p->q.type != DNS_AAAA) {
		record(p, RECEIPT_ALLOW, &p->verdict, "type_not_served");
		answer_code(p, DNS_NOERROR);
		return;
	}
	known = names_fresh(t->names, p->q.name, (enum dns_type)p->q.type, now);
	if (known) {
		struct lookup_answer a = { .n = known->n };

		memcpy(a.addrs, known->addrs, known->n * sizeof(a.addrs[0]));
		a.ttl = (uint32_t)((known->fresh_until - now) / NSEC_PER_SEC);
		answer_addrs(p, &a);
		return;
	}
	look_up(p);
}

void dns_server_udp(void *tenant, int fd, uint32_t events)
{
	struct tenant *t = tenant;

	(void)events;
	for (int i = 0; i < UDP_ROUND; i++) {
		struct dns_pending p = { .t = t, .udp = fd };
		uint8_t msg[QUERY_MAX];
		struct iovec iov = { msg, sizeof(msg) };
		struct msghdr m = { .msg_name = &p.peer,
				    .msg_namelen = sizeof(p.peer),
				    .msg_iov = &iov,
				    .msg_iovlen = 1,
				    .msg_control = p.local.b,
				    .msg_controllen = sizeof(p.local.b) };
		ssize_t n = recvmsg(fd, &m, MSG_DONTWAIT);
		struct cmsghdr *c;

		if (n < 0)
			return; /* none left, or an ICMP error of an earlier answer */
		c = CMSG_FIRSTHDR(&m);
		if ((m.msg_flags & MSG_TRUNC) || !c)
			continue;
		/* Sent back as it came it chooses source and device; IPv4 wants its other field. */
		if (c->cmsg_level == IPPROTO_IP) {
			struct in_pktinfo pi;

			memcpy(&pi, CMSG_DATA(c), sizeof(pi));
			pi.ipi_spec_dst = pi.ipi_addr;
			pi.ipi_ifindex = 0;
			memcpy(CMSG_DATA(c), &pi, sizeof(pi));
		}
		p.peer_len = m.msg_namelen;
		p.local_len = m.msg_controllen;
		handle(&p, msg, (size_t)n);
	}
}

static void conn_free(struct dns_conn *c)
{
	struct tenant *t = c->t;

	if (c->pending)
		pending_free(c->pending);
	timer_cancel(t->eg->timers, &c->idle);
	timer_cancel(t->eg->timers, &c->again);
	loop_remove(c->source);
	close(c->fd);
	*c->link = c->next;
	if (c->next)
		c->next->link = c->link;
	t->n_dns_conns--;
	free(c);
}

static void conn_idle(void *ctx)
{
	conn_free(ctx);
}

/* Handles the query at the head of c->in if it is whole. May free c. */
static void conn_take(void *ctx)
{
	struct dns_conn *c = ctx;
	struct dns_pending p = { .t = c->t, .conn = c };
	uint8_t msg[QUERY_MAX];
	size_t len;

	if (c->in_len < 2)
		return;
	len = (size_t)c->in[0] << 8 | c->in[1];
	if (len > QUERY_MAX) {
		conn_free(c);
		return;
	}
	if (c->in_len < 2 + len)
		return;
	memcpy(msg, c->in + 2, len);
	c->in_len -= 2 + len;
	memmove(c->in, c->in + 2 + len, c->in_len);
	loop_set_events(c->source, 0); /* until answered */
	if (timer_set(c->t->eg->timers, &c->idle, clock_mono_ns() + CONN_IDLE_S * NSEC_PER_SEC,
		      conn_idle, c) < 0) {
		conn_free(c);
		return;
	}
	handle(&p, msg, len);
}

/* The answer of at most 4 KiB fits an idle socket's buffer; a peer that lets it fill is dropped. */
static void conn_answered(struct dns_conn *c, const uint8_t *msg, size_t n)
{
	uint8_t out[2 + DNS_TCP_MAX];

	out[0] = (uint8_t)(n >> 8);
	out[1] = (uint8_t)n;
	memcpy(out + 2, msg, n);
	if (send(c->fd, out, n + 2, MSG_DONTWAIT | MSG_NOSIGNAL) != (ssize_t)(n + 2))
		shutdown(c->fd, SHUT_RDWR); /* the next read ends it */
	loop_set_events(c->source, EPOLLIN);
	/* The next query may have come with this one; not from here, the caller still uses c. */
	if (c->in_len && timer_set(c->t->eg->timers, &c->again, 1, conn_take, c) < 0)
		shutdown(c->fd, SHUT_RDWR);
}

static void conn_readable(void *ctx, int fd, uint32_t events)
{
	struct dns_conn *c = ctx;
	ssize_t n = recv(fd, c->in + c->in_len, sizeof(c->in) - c->in_len, MSG_DONTWAIT);

	(void)events;
	if (n < 0 && errno == EAGAIN)
		return;
	if (n <= 0) {
		conn_free(c);
		return;
	}
	c->in_len += (size_t)n;
	if (!c->pending)
		conn_take(c);
}

static void conn_new(struct tenant *t, int fd)
{
	struct dns_conn *c = calloc(1, sizeof(*c));
	struct err e;

	if (!c) {
		close(fd);
		return;
	}
	c->t = t;
	c->fd = fd;
	if (loop_add_fd(t->eg->loop, fd, EPOLLIN, conn_readable, c, &c->source, &e) < 0) {
		log_err(LOG_WARN, &e, "DNS over TCP");
		close(fd);
		free(c);
		return;
	}
	c->next = t->dns_conns;
	c->link = &t->dns_conns;
	if (c->next)
		c->next->link = &c->next;
	t->dns_conns = c;
	t->n_dns_conns++;
	if (timer_set(t->eg->timers, &c->idle, clock_mono_ns() + CONN_IDLE_S * NSEC_PER_SEC,
		      conn_idle, c) < 0)
		conn_free(c);
}

void dns_server_accept(void *tenant, int fd, uint32_t events)
{
	struct tenant *t = tenant;

	(void)events;
	for (int i = 0; i < UDP_ROUND; i++) {
		int c = accept4(fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

		if (c < 0)
			return;
		if (t->n_dns_conns >= CONNS_MAX)
			close(c);
		else
			conn_new(t, c);
	}
}

void dns_server_stop(struct tenant *t)
{
	while (t->dns_conns)
		conn_free(t->dns_conns);
	while (t->lookups)
		pending_free(t->lookups);
}
