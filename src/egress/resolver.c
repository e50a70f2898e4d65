/*
 * c-ares does the protocol (retries, random ids and ports, TCP after truncation); here it meets
 * the loop: its sockets are loop sources, its next deadline is one timer. An answer is delivered
 * from the timer, not from inside resolver_lookup(), so callers never see a callback too early.
 */
#include "egress/resolver.h"

#include <ares.h>
#include <arpa/nameser.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/time.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/timers.h"

#define SOCKETS_MAX 64
#define TIMEOUT_MS 2000
#define TRIES 3

struct watched {
	int fd; /* -1: free */
	struct loop_source *source;
};

struct resolver {
	struct loop *loop;
	struct timers *timers;
	ares_channel channel;
	struct timer timer;
	struct watched watched[SOCKETS_MAX];
	struct lookup *done; /* answered, to be delivered */
};

struct lookup {
	struct resolver *r;
	struct lookup *next; /* in r->done */
	enum dns_type type;
	lookup_fn fn; /* NULL: cancelled */
	void *ctx;
	struct lookup_answer answer;
};

static void on_timer(void *ctx);

static void rearm(struct resolver *r)
{
	struct timeval tv, *t = ares_timeout(r->channel, NULL, &tv);
	uint64_t at;

	if (r->done)
		at = 1;
	else if (t)
		at = clock_mono_ns() + (uint64_t)t->tv_sec * NSEC_PER_SEC +
		     (uint64_t)t->tv_usec * 1000 + NSEC_PER_MSEC;
	else {
		timer_cancel(r->timers, &r->timer);
		return;
	}
	if (timer_set(r->timers, &r->timer, at, on_timer, r) < 0)
		log_error("out of memory for the resolver's timer");
}

/* Answers may be cancelled, and new lookups started, by the callbacks. */
static void deliver(struct resolver *r)
{
	while (r->done) {
		struct lookup *lk = r->done;

		r->done = lk->next;
		if (lk->fn)
			lk->fn(lk->ctx, &lk->answer);
		free(lk);
	}
}

static void on_timer(void *ctx)
{
	struct resolver *r = ctx;

	ares_process_fd(r->channel, ARES_SOCKET_BAD, ARES_SOCKET_BAD);
	deliver(r);
	rearm(r);
}

static void on_socket(void *ctx, int fd, uint32_t events)
{
	struct resolver *r = ctx;
	bool in = events & (EPOLLIN | EPOLLHUP | EPOLLERR), out = events & EPOLLOUT;

	ares_process_fd(r->channel, in ? fd : ARES_SOCKET_BAD, out ? fd : ARES_SOCKET_BAD);
	deliver(r);
	rearm(r);
}

static struct watched *watched_find(struct resolver *r, int fd)
{
	for (size_t i = 0; i < SOCKETS_MAX; i++)
		if (r->watched[i].fd == fd)
			return &r->watched[i];
	return NULL;
}

/* c-ares says what it wants of a socket; neither means it is about to close it. */
static void on_socket_state(void *data, ares_socket_t fd, int readable, int writable)
{
	uint32_t events = (readable ? EPOLLIN : 0u) | (writable ? EPOLLOUT : 0u);
	struct resolver *r = data;
	struct watched *w = watched_find(r, fd);
	struct err e;

	if (!events) {
		if (w) {
			loop_remove(w->source);
			w->fd = -1;
		}
		return;
	}
	if (w) {
		loop_set_events(w->source, events);
		return;
	}
	w = watched_find(r, -1);
	if (!w) {
		log_warn("the resolver has more than %d sockets; one waits for its timeout",
			 SOCKETS_MAX);
		return;
	}
	if (loop_add_fd(r->loop, fd, events, on_socket, r, &w->source, &e) < 0) {
		log_err(LOG_WARN, &e, "resolver");
		return;
	}
	w->fd = fd;
}

int resolver_new(struct loop *l, struct timers *t, const char *servers, struct resolver **out,
		 struct err *e)
{
	struct resolver *r = calloc(1, sizeof(*r));
	struct ares_options o = { .flags =
					  ARES_FLAG_NOSEARCH | ARES_FLAG_NOALIASES | ARES_FLAG_EDNS,
				  .ednspsz = 1232,
				  .timeout = TIMEOUT_MS,
				  .tries = TRIES,
				  .lookups = (char *)(uintptr_t) "b",
				  .sock_state_cb = on_socket_state,
				  .sock_state_cb_data = r };
	int status;

	if (!r)
		return err_errno(e, ENOMEM, "resolver");
	r->loop = l;
	r->timers = t;
	for (size_t i = 0; i < SOCKETS_MAX; i++)
		r->watched[i].fd = -1;
	status = ares_init_options(&r->channel, &o,
				   ARES_OPT_FLAGS | ARES_OPT_TIMEOUTMS | ARES_OPT_TRIES |
					   ARES_OPT_LOOKUPS | ARES_OPT_SOCK_STATE_CB |
					   ARES_OPT_EDNSPSZ);
	if (status == ARES_SUCCESS && servers)
		status = ares_set_servers_ports_csv(r->channel, servers);
	if (status != ARES_SUCCESS) {
		free(r);
		return err_set(e, "resolver_failed", EIO, "resolver: %s", ares_strerror(status));
	}
	*out = r;
	return 0;
}

void resolver_free(struct resolver *r)
{
	if (!r)
		return;
	ares_destroy(r->channel); /* ends every pending lookup into r->done */
	while (r->done) {
		struct lookup *lk = r->done;

		r->done = lk->next;
		free(lk);
	}
	timer_cancel(r->timers, &r->timer);
	free(r);
}

static void read_v4(struct lookup_answer *a, const unsigned char *msg, int len)
{
	struct ares_addrttl t[DNS_ANSWERS_MAX];
	int n = DNS_ANSWERS_MAX;

	if (ares_parse_a_reply(msg, len, NULL, t, &n) != ARES_SUCCESS)
		return;
	for (int i = 0; i < n; i++) {
		a->addrs[a->n++] = ip_from_v4((const uint8_t *)&t[i].ipaddr);
		if (i == 0 || (uint32_t)t[i].ttl < a->ttl)
			a->ttl = t[i].ttl < 0 ? 0 : (uint32_t)t[i].ttl;
	}
}

static void read_v6(struct lookup_answer *a, const unsigned char *msg, int len)
{
	struct ares_addr6ttl t[DNS_ANSWERS_MAX];
	int n = DNS_ANSWERS_MAX;

	if (ares_parse_aaaa_reply(msg, len, NULL, t, &n) != ARES_SUCCESS)
		return;
	for (int i = 0; i < n; i++) {
		a->addrs[a->n++] = ip_from_v6((const uint8_t *)&t[i].ip6addr);
		if (i == 0 || (uint32_t)t[i].ttl < a->ttl)
			a->ttl = t[i].ttl < 0 ? 0 : (uint32_t)t[i].ttl;
	}
}

static void on_answer(void *ctx, int status, int timeouts, unsigned char *msg, int len)
{
	struct lookup *lk = ctx;

	(void)timeouts;
	lk->answer.rcode = status == ARES_SUCCESS || status == ARES_ENODATA ? DNS_NOERROR
			   : status == ARES_ENOTFOUND			    ? DNS_NXDOMAIN
									    : DNS_SERVFAIL;
	if (status == ARES_SUCCESS && lk->type == DNS_A)
		read_v4(&lk->answer, msg, len);
	else if (status == ARES_SUCCESS)
		read_v6(&lk->answer, msg, len);
	lk->next = lk->r->done;
	lk->r->done = lk;
}

struct lookup *resolver_lookup(struct resolver *r, const char *name, enum dns_type type,
			       lookup_fn fn, void *ctx)
{
	struct lookup *lk = calloc(1, sizeof(*lk));

	if (!lk)
		return NULL;
	lk->r = r;
	lk->type = type;
	lk->fn = fn;
	lk->ctx = ctx;
	ares_query(r->channel, name, ns_c_in, type == DNS_A ? ns_t_a : ns_t_aaaa, on_answer, lk);
	rearm(r);
	return lk;
}

void lookup_cancel(struct lookup *lk)
{
	if (lk)
		lk->fn = NULL;
}
