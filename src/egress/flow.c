/*
 * Accepting, looking and judging. The first bytes stay in the kernel (MSG_PEEK) until the verdict,
 * so that a spliced connection needs no buffer of ours; SO_RCVLOWAT makes the kernel wait for more
 * when a hello or a head is not whole.
 *
 * A client that waits for the server to speak first is judged by address and remembered names
 * after a short grace, and what it then says is still checked before it is passed on.
 */
#include "egress/flow.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/loop.h"
#include "egress/engine.h"
#include "egress/http_head.h"
#include "egress/names.h"

#define ACCEPT_ROUND 32
#define ACCEPT_PAUSE_MS 100
#define HEAD_MS 10000  /* for a whole hello or head */
#define SILENT_MS 200  /* a client that may wait for the server to speak first */
#define HOPELESS_MS 50 /* a client that nothing but a name it has yet to say could let pass */
/*
 * What all connections of a sandbox may move in one turn of the loop, shared between them: a
 * sandbox with many busy connections gets about as much as one with a few.
 */
#define RELAY_SHARE (4 << 20)
#define RELAY_BUDGET_MAX (512 << 10)
#define RELAY_BUDGET_MIN (16 << 10)

static void on_grace(void *ctx);
static void on_head_timeout(void *ctx);

int flow_timer(struct flow *f, unsigned ms, loop_fn fn)
{
	if (timer_set(f->t->eg->timers, &f->timer, clock_mono_ns() + ms * NSEC_PER_MSEC, fn, f) ==
	    0)
		return 0;
	flow_end(f, RECEIPT_FAIL, "out_of_memory", true);
	return -ENOMEM;
}

static int watch_side(struct flow *f, int fd, struct loop_source **s, uint32_t *have, uint32_t want,
		      loop_fd_fn fn)
{
	struct err e;
	int r = 0;

	if (fd < 0 || (*s && *have == want))
		return 0;
	if (*s)
		r = loop_set_events(*s, want);
	else
		r = loop_add_fd(f->t->eg->loop, fd, want, fn, f, s, &e);
	*have = want;
	return r;
}

int flow_watch(struct flow *f, uint32_t client_events, uint32_t server_events)
{
	if (watch_side(f, f->client, &f->client_source, &f->client_events, client_events,
		       flow_on_client) == 0 &&
	    watch_side(f, f->server, &f->server_source, &f->server_events, server_events,
		       flow_on_server) == 0)
		return 0;
	flow_end(f, RECEIPT_FAIL, "out_of_memory", true);
	return -ENOMEM;
}

/* Whether the port is one where clients always speak first. */
static bool client_first_port(uint16_t port)
{
	return port == 80 || port == 443 || port == 8080 || port == 8443;
}

/*
 * The verdict on dst when the client names nothing: by range or mode, else by a name that the
 * sandbox looked up and that led here; *name is that name.
 */
static struct verdict judge_address(const struct flow *f, const char **name)
{
	const struct tenant *t = f->t;
	struct verdict v = policy_addr(t->policy, &f->dst, f->port);
	uint64_t now = clock_mono_ns();
	size_t it = 0;

	*name = NULL;
	if (v.by_range || (v.why != WHY_NOT_ALLOWED && v.why != WHY_MODE_OPEN))
		return v;
	while ((*name = names_of(t->names, &f->dst, now, &it))) {
		struct verdict n = policy_both(t->policy, *name, &f->dst, f->port);

		if (n.allow)
			return n;
	}
	return v;
}

static struct flow *flow_new(struct tenant *t, int fd, const struct ip *dst, uint16_t port)
{
	struct flow *f = calloc(1, sizeof(*f));

	if (!f)
		return NULL;
	f->t = t;
	f->id = ++t->eg->next_connection;
	f->client = fd;
	f->server = -1;
	f->dst = *dst;
	f->port = port;
	f->relay.pool = &t->eg->pipes;
	f->started = clock_mono_ns();
	f->next = t->flows;
	f->link = &t->flows;
	if (f->next)
		f->next->link = &f->next;
	t->flows = f;
	t->n_flows++;
	t->flows_total++;
	return f;
}

static void flow_start(struct tenant *t, int fd, const struct ip *dst, uint16_t port)
{
	struct flow *f = flow_new(t, fd, dst, port);
	const char *name;
	unsigned grace;
	int one = 1;

	if (!f) {
		close(fd);
		return;
	}
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
	if (client_first_port(port)) {
		if (flow_timer(f, HEAD_MS, on_head_timeout) < 0)
			return;
	} else {
		grace = judge_address(f, &name).allow		? SILENT_MS
			: policy_mode(t->policy) == POLICY_NONE ? 1
								: HOPELESS_MS;
		if (flow_timer(f, grace, on_grace) < 0)
			return;
	}
	flow_watch(f, EPOLLIN, 0);
}

static void reset_close(int fd)
{
	struct linger l = { .l_onoff = 1 };

	setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof(l));
	close(fd);
}

static void accept_again(void *tenant)
{
	struct tenant *t = tenant;

	loop_set_events(t->sources[SLOT_TCP4], EPOLLIN);
	loop_set_events(t->sources[SLOT_TCP6], EPOLLIN);
}

/* Out of descriptors or memory: leave the queue alone for a moment instead of spinning on it. */
static void accept_pause(struct tenant *t, int why)
{
	log_warn("accept connections of slot %s: %s", t->slot, strerror(why));
	if (timer_set(t->eg->timers, &t->accept_pause,
		      clock_mono_ns() + ACCEPT_PAUSE_MS * NSEC_PER_MSEC, accept_again, t) < 0)
		return;
	loop_set_events(t->sources[SLOT_TCP4], 0);
	loop_set_events(t->sources[SLOT_TCP6], 0);
}

static void refuse_limit(struct tenant *t, int fd, const struct ip *dst, uint16_t port,
			 const char *reason)
{
	struct receipt r = { .event = RECEIPT_REFUSE,
			     .protocol = "tcp",
			     .has_address = true,
			     .address = *dst,
			     .port = port,
			     .reason = reason };

	t->flows_refused++;
	tenant_record(t, &r, NULL);
	reset_close(fd);
}

void flow_accept(void *tenant, int fd, uint32_t events)
{
	struct tenant *t = tenant;
	const struct egress_limits *l = &t->eg->limits;

	(void)events;
	for (int i = 0; i < ACCEPT_ROUND; i++) {
		int c = accept4(fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		struct sockaddr_storage sa;
		socklen_t len = sizeof(sa);
		struct ip dst;
		uint16_t port;

		if (c < 0) {
			if (errno != EAGAIN && errno != ECONNABORTED && errno != EINTR)
				accept_pause(t, errno);
			return;
		}
		if (getsockname(c, (struct sockaddr *)&sa, &len) < 0 ||
		    ip_from_sockaddr(&sa, &dst, &port) < 0)
			reset_close(c);
		else if (t->n_flows >= l->flows)
			refuse_limit(t, c, &dst, port, "connection_limit");
		else if (!bucket_take(&t->flow_bucket, l->flow_rate, l->flow_burst,
				      clock_mono_ns()))
			refuse_limit(t, c, &dst, port, "rate_limit");
		else
			flow_start(t, c, &dst, port);
	}
}

enum look { LOOK_MORE, LOOK_TCP, LOOK_TLS, LOOK_HTTP, LOOK_BAD };

struct sight {
	struct client_hello hello;
	char host[HOSTNAME_LEN];
	const char *problem;
};

/* What the first bytes are. problem is set with LOOK_BAD. */
static enum look look_at(const char *p, size_t n, struct sight *s)
{
	struct http_head h;
	long r;

	memset(s, 0, sizeof(*s));
	if (p[0] == 0x16) {
		s->problem = "the TLS hello cannot be read";
		r = client_hello_parse((const uint8_t *)p, n, &s->hello);
		memcpy(s->host, s->hello.sni, sizeof(s->host));
		return r > 0 ? LOOK_TLS : r == 0 ? LOOK_MORE : LOOK_BAD;
	}
	if (!http_looks_like_request(p, n))
		return LOOK_TCP;
	r = http_request_parse(p, n, &h, &s->problem);
	memcpy(s->host, h.host, sizeof(s->host));
	return r > 0 ? LOOK_HTTP : r == 0 ? LOOK_MORE : LOOK_BAD;
}

/* Peeks and looks. Negative: nothing to look at (closed, or not yet: -EAGAIN). */
static int peek(struct flow *f, struct sight *s)
{
	char buf[HTTP_HEAD_MAX];
	ssize_t n = recv(f->client, buf, sizeof(buf), MSG_PEEK | MSG_DONTWAIT);
	int low = 1, look;

	if (n < 0)
		return -errno;
	if (n == 0)
		return -EPIPE;
	look = look_at(buf, (size_t)n, s);
	f->protocol = look == LOOK_TLS || (look == LOOK_BAD && buf[0] == 0x16) ? FLOW_TLS
		      : look == LOOK_HTTP || look == LOOK_BAD		       ? FLOW_HTTP
									       : FLOW_TCP;
	if (look == LOOK_MORE) {
		/* Woken with nothing more than last time: the client has ended in the middle. */
		if ((size_t)n <= f->peeked)
			return -EPIPE;
		f->peeked = (size_t)n;
		low = (int)n + 1;
	} else {
		f->peeked = 0;
	}
	setsockopt(f->client, SOL_SOCKET, SO_RCVLOWAT, &low, sizeof(low));
	return look;
}

static void on_peek(struct flow *f)
{
	const char *name;
	struct sight s;
	int look = peek(f, &s);

	if (look == -EAGAIN)
		return;
	if (look < 0) {
		flow_end(f, RECEIPT_FAIL, "client_gone", true);
		return;
	}
	if (look == LOOK_MORE) {
		flow_timer(f, HEAD_MS, on_head_timeout);
		return;
	}
	if (look == LOOK_BAD) {
		/* Where the address alone is allowed, what is said there is not ours to judge. */
		if (!judge_address(f, &name).allow || name || policy_denies_names(f->t->policy)) {
			flow_refuse(f, NULL, "malformed", s.problem);
			return;
		}
		f->protocol = FLOW_TCP;
	}
	f->hello = s.hello;
	if (look == LOOK_TLS || look == LOOK_HTTP)
		memcpy(f->name, s.host, sizeof(f->name));
	f->named_by_client = f->name[0] != '\0';
	flow_decide(f);
}

static void on_head_timeout(void *ctx)
{
	flow_end(ctx, RECEIPT_FAIL, "head_timeout", true);
}

/* The client is silent: it may be waiting for the server. */
static void on_grace(void *ctx)
{
	struct flow *f = ctx;

	f->silent = true;
	flow_decide(f);
}

static void go_direct(struct flow *f, const struct verdict *v)
{
	f->verdict = *v;
	f->direct = true;
	f->addrs[0] = f->dst;
	f->n_addrs = 1;
	flow_connect(f);
}

void flow_decide(struct flow *f)
{
	struct tenant *t = f->t;
	struct policy *p = t->policy;
	const char *name = NULL;
	struct verdict v;

	timer_cancel(t->eg->timers, &f->timer);
	policy_unref(f->policy);
	f->policy = policy_ref(p);
	if (!f->name[0]) {
		v = judge_address(f, &name);
		if (!v.allow) {
			flow_refuse(f, &v, policy_why_code(v.why), NULL);
			return;
		}
		if (name)
			memcpy(f->name, name, strlen(name) + 1);
		go_direct(f, &v);
		return;
	}
	v = policy_both(p, f->name, &f->dst, f->port);
	if (v.by_range || (v.allow && policy_mode(p) == POLICY_OPEN && !policy_denies_names(p) &&
			   !engine_wanted(f))) {
		go_direct(f, &v);
		return;
	}
	f->verdict = policy_name(p, f->name, f->port);
	if (f->verdict.allow)
		flow_resolve(f);
	else
		flow_refuse(f, &f->verdict, policy_why_code(f->verdict.why), NULL);
}

static void relay_run(struct flow *f)
{
	size_t budget = RELAY_SHARE / f->t->n_flows;
	bool more;

	if (budget > RELAY_BUDGET_MAX)
		budget = RELAY_BUDGET_MAX;
	if (budget < RELAY_BUDGET_MIN)
		budget = RELAY_BUDGET_MIN;
	switch (relay_step(&f->relay, f->client, f->server, budget, &more)) {
	case RELAY_GOING:
		flow_watch(f, relay_client_events(&f->relay), relay_server_events(&f->relay));
		break;
	case RELAY_DONE:
		flow_end(f, RECEIPT_CLOSE, "done", false);
		break;
	case RELAY_BROKEN:
		flow_end(f, RECEIPT_CLOSE, "reset", true);
		break;
	}
}

void flow_connected(struct flow *f)
{
	flow_record(f, RECEIPT_ALLOW, policy_why_code(f->verdict.why));
	if (engine_wanted(f)) {
		f->state = FLOW_ENGINE;
		engine_start(f);
		return;
	}
	f->state = FLOW_RELAY;
	f->relay.hold_up = f->silent;
	relay_run(f);
}

/*
 * The first words of a client that was judged silent. TLS or HTTP for another name than the one
 * that let it pass would reach that name's site through a shared address: cut it.
 */
static void on_first_words(struct flow *f)
{
	enum flow_protocol was = f->protocol;
	struct sight s;
	int look = peek(f, &s);
	bool by_address = f->verdict.by_range || f->verdict.why == WHY_MODE_OPEN;

	if (look == -EAGAIN || look == LOOK_MORE)
		return;
	f->protocol = was;
	if ((look == LOOK_BAD && !by_address) ||
	    (look > 0 && s.host[0] && strcmp(s.host, f->name) != 0 &&
	     (!by_address || !policy_name(f->policy, s.host, f->port).allow))) {
		memcpy(f->name, s.host, sizeof(f->name));
		flow_cut(f, "name_mismatch");
		return;
	}
	f->heard = true;
	f->relay.hold_up = false;
	if (look == LOOK_TLS && s.host[0] && !f->relay.down.bytes && !f->relay.down.in_pipe) {
		f->protocol = FLOW_TLS;
		f->hello = s.hello;
		memcpy(f->name, s.host, sizeof(f->name));
		f->named_by_client = true;
		if (engine_wanted(f)) { /* a slow client, and a secret for this host */
			relay_end(&f->relay);
			f->state = FLOW_ENGINE;
			engine_start(f);
			return;
		}
	}
	relay_run(f);
}

/* A side that reports nothing but its end, while nothing of it is wanted, would wake us for ever.
 */
static bool only_hangup(uint32_t events, uint32_t wanted)
{
	return (events & (EPOLLHUP | EPOLLERR)) && !(events & wanted);
}

void flow_on_client(void *ctx, int fd, uint32_t events)
{
	struct flow *f = ctx;

	(void)fd;
	switch (f->state) {
	case FLOW_PEEK:
	case FLOW_LINGER:
		if (f->state == FLOW_PEEK)
			on_peek(f);
		else
			flow_linger(f);
		return;
	case FLOW_RESOLVE:
	case FLOW_CONNECT:
		flow_end(f, RECEIPT_FAIL, "client_gone", true);
		return;
	case FLOW_ENGINE:
		engine_event(f, true, events);
		return;
	case FLOW_RELAY:
		if (events & EPOLLERR) {
			flow_end(f, RECEIPT_CLOSE, "reset", true);
			return;
		}
		if (only_hangup(events, f->client_events)) {
			loop_remove(f->client_source);
			f->client_source = NULL;
			f->client_events = 0;
			return;
		}
		if (f->silent && !f->heard && (events & EPOLLIN))
			on_first_words(f);
		else
			relay_run(f);
		return;
	}
}

void flow_on_server(void *ctx, int fd, uint32_t events)
{
	struct flow *f = ctx;

	(void)fd;
	switch (f->state) {
	case FLOW_CONNECT:
		flow_connect_event(f);
		return;
	case FLOW_ENGINE:
		engine_event(f, false, events);
		return;
	case FLOW_RELAY:
		if (events & EPOLLERR) {
			flow_end(f, RECEIPT_CLOSE, "reset", true);
		} else if (only_hangup(events, f->server_events)) {
			loop_remove(f->server_source);
			f->server_source = NULL;
			f->server_events = 0;
		} else {
			relay_run(f);
		}
		return;
	default:
		return;
	}
}

bool flow_recheck(struct flow *f)
{
	struct policy *p = f->t->policy;
	const char *name = NULL;
	struct verdict v;

	if (f->state == FLOW_PEEK || f->state == FLOW_LINGER)
		return false; /* judged later, or refused already */
	if (!f->name[0])
		v = judge_address(f, &name);
	else if (f->direct)
		v = policy_both(p, f->name, &f->dst, f->port);
	else if (f->state == FLOW_RESOLVE)
		v = policy_name(p, f->name, f->port);
	else
		v = policy_both(p, f->name, &f->peer, f->port);
	/* By name alone only to an address that this name is known to have. */
	if (v.allow && f->direct && f->name[0] && !v.by_range && v.why != WHY_MODE_OPEN &&
	    !names_has(f->t->names, f->name, &f->dst, clock_mono_ns()))
		v.allow = false;
	if (!v.allow) {
		flow_cut(f, "policy_changed");
		return true;
	}
	if (name)
		memcpy(f->name, name, strlen(name) + 1);
	f->verdict = v;
	policy_unref(f->policy);
	f->policy = policy_ref(p);
	return false;
}
