/*
 * The real server comes first: only when its certificate is good is the sandbox's handshake
 * answered, with the protocol the server chose; so both sides always speak the same one, and
 * nothing is translated. A server that fails verification is told to the client as a 502 over a
 * session with our own leaf, because a TLS alert could not say why.
 *
 * Data moves in rounds: read one side, let the codec turn it, write the other. A side whose output
 * waits above CHAN_OUT_HIGH stops the reading of the other, so memory is bounded.
 */
#include "egress/engine.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/x509_vfy.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/loop.h"
#include "egress/flow.h"
#include "egress/h1.h"
#include "egress/h2.h"
#include "egress/swap.h"
#include "egress/tls.h"

#define READ_SIZE 16384
#define ROUNDS 32 /* in one go: others want the loop too */
#define HANDSHAKE_MS 15000

static void engine_go(struct engine *g);

bool engine_wanted(const struct flow *f)
{
	const struct tenant *t = f->t;

	if (f->protocol == FLOW_TLS)
		return t->eg->tls && f->named_by_client &&
		       swaps_for_host(t->swaps, f->name, f->port);
	if (f->protocol != FLOW_HTTP || f->silent)
		return false;
	/* Where names decide, each request's name counts; placeholders must not leave in clear. */
	return t->swaps || (!f->verdict.by_range && (policy_mode(t->policy) != POLICY_OPEN ||
						     policy_denies_names(t->policy)));
}

void engine_free(struct flow *f)
{
	struct engine *g = f->engine;

	if (!g)
		return;
	h1_free(g->h1);
	h2_free(g->h2);
	chan_free(&g->client);
	chan_free(&g->server);
	free(g);
	f->engine = NULL;
}

void engine_refused(struct engine *g, const char *reason)
{
	g->f->t->flows_refused++;
	flow_record(g->f, RECEIPT_REFUSE, reason);
}

void engine_swapped(struct engine *g, const char *name)
{
	struct flow *f = g->f;
	struct receipt r = { .event = RECEIPT_SECRET,
			     .protocol = g->h2 ? "h2" : "http",
			     .connection = f->id,
			     .has_address = true,
			     .address = f->peer,
			     .port = f->port,
			     .reason = "secret_used" };

	memcpy(r.host, f->name, sizeof(r.host));
	snprintf(r.rule, sizeof(r.rule), "%s", name);
	tenant_record(f->t, &r, NULL);
}

bool engine_host_ok(struct engine *g, const char *host, bool is_address, const char **reason,
		    struct buf *why)
{
	struct flow *f = g->f;
	struct verdict v;

	if (strcmp(host, f->name) == 0 ||
	    (!f->named_by_client && !g->tls && (is_address || !*host)))
		return true;
	*reason = "host_mismatch";
	if (g->tls || is_address || !*host) {
		(void)buf_printf(why, "the request is for %s, the connection is to %s",
				 *host ? host : "an address", f->name);
		return false;
	}
	v = policy_name(f->policy, host, f->port);
	if (v.allow)
		return true;
	*reason = policy_why_code(v.why);
	if (policy_explain(&v, host, why) == 0 && buf_str(why, ".\n") == 0)
		(void)policy_fix(&v, host, NULL, why); /* words only: fewer when memory is out */
	return false;
}

/* --- the codec, whichever it is --- */

static int client_data(struct engine *g, const char *p, size_t n)
{
	g->f->bytes_out += n;
	return g->h2 ? h2_client_data(g->h2, p, n) : h1_client_data(g->h1, p, n);
}

static int server_data(struct engine *g, const char *p, size_t n)
{
	g->f->bytes_in += n;
	return g->h2 ? h2_server_data(g->h2, p, n) : h1_server_data(g->h1, p, n);
}

static int client_end(struct engine *g)
{
	return g->h2 ? h2_client_end(g->h2) : h1_client_end(g->h1);
}

static int server_end(struct engine *g)
{
	return g->h2 ? h2_server_end(g->h2) : h1_server_end(g->h1);
}

static bool reads_client(const struct engine *g)
{
	return chan_waiting(&g->server) < CHAN_OUT_HIGH && !g->server_broken &&
	       (g->h2 || h1_wants_client(g->h1));
}

static bool reads_server(const struct engine *g)
{
	return chan_waiting(&g->client) < CHAN_OUT_HIGH;
}

/* --- moving data --- */

/* Reads one side once. 1: something happened, 0: nothing, negative: a codec's verdict. */
static int read_side(struct engine *g, bool client)
{
	struct chan *c = client ? &g->client : &g->server;
	char data[READ_SIZE];
	ssize_t n = chan_read(c, data, sizeof(data));
	int r;

	if (n == -EAGAIN)
		return 0;
	if (n < 0 && client)
		return -EPROTO;
	c->eof |= n <= 0; /* a server that resets after its last word has said it all the same */
	if (n <= 0)
		r = client ? client_end(g) : server_end(g);
	else
		r = client ? client_data(g, data, (size_t)n) : server_data(g, data, (size_t)n);
	OPENSSL_cleanse(data, n > 0 ? (size_t)n : 0);
	return r < 0 ? r : 1;
}

/* A server that stops taking a request may still be answering it: read on, send nothing more. */
static int flush_both(struct engine *g)
{
	if (!g->server_broken && chan_flush(&g->server) < 0) {
		g->server_broken = true;
		OPENSSL_cleanse(g->server.out.data, g->server.out.len);
		buf_clear(&g->server.out);
		g->server.out_at = 0;
	}
	return chan_flush(&g->client);
}

static int pump(struct engine *g, bool *more)
{
	int r = 0, moved = 1;

	for (int i = 0; i < ROUNDS && moved && r >= 0; i++) {
		moved = 0;
		if (reads_client(g)) {
			r = read_side(g, true);
			moved |= r > 0;
		}
		if (r >= 0 && reads_server(g)) {
			r = read_side(g, false);
			moved |= r > 0;
		}
		if (r >= 0 && g->h2) {
			r = h2_speak(g->h2);
			moved |= r > 0;
		}
		if (r >= 0 || r == -ECONNABORTED) {
			int w = flush_both(g);

			r = w < 0 ? w : r;
		}
	}
	*more = moved;
	return r;
}

/* Whether everything that could be said has been. */
static bool finished(const struct engine *g)
{
	if (g->client.ended && g->server.eof)
		return true;
	return g->server.eof && g->client.eof && !chan_waiting(&g->client);
}

static void watch(struct engine *g)
{
	flow_watch(g->f, chan_events(&g->client, g->phase == ENGINE_RUN && reads_client(g)),
		   chan_events(&g->server, g->phase == ENGINE_RUN && reads_server(g)));
}

static void on_timeout(void *ctx)
{
	flow_end(ctx, RECEIPT_FAIL, "timeout", true);
}

static void on_more(void *ctx)
{
	struct flow *f = ctx;

	engine_go(f->engine);
}

/* Only what waits for the client is left to do; the server is left at once. */
static void last_words(struct engine *g)
{
	struct flow *f = g->f;
	int r;

	if (g->phase != ENGINE_LAST_WORDS) {
		g->phase = ENGINE_LAST_WORDS;
		loop_remove(f->server_source);
		f->server_source = NULL;
		SSL_free(g->server.ssl);
		g->server.ssl = NULL;
		g->client.end = true;
		if (flow_timer(f, HANDSHAKE_MS, on_timeout) < 0)
			return;
	}
	r = chan_flush(&g->client);
	if (r < 0) {
		flow_end(f, RECEIPT_CLOSE, "reset", true);
	} else if (g->client.ended) {
		flow_record(f, RECEIPT_CLOSE, "done");
		flow_linger_start(f);
	} else {
		flow_watch(f, chan_events(&g->client, false), 0);
	}
}

static void run(struct engine *g)
{
	bool more;
	int r = pump(g, &more);

	if (r == -ECONNABORTED) {
		last_words(g);
	} else if (r < 0) {
		flow_end(g->f, RECEIPT_CLOSE, "reset", true);
	} else if (finished(g)) {
		flow_record(g->f, RECEIPT_CLOSE, "done");
		flow_linger_start(g->f);
	} else {
		if (more && flow_timer(g->f, 0, on_more) < 0)
			return;
		watch(g);
	}
}

/* --- handshakes --- */

static int codec_start(struct engine *g, bool h2)
{
	return h2 ? h2_new(g, &g->h2) : h1_new(g, &g->h1);
}

static void client_secured(struct engine *g)
{
	if (g->trouble) {
		(void)h1_answer(g, "502 Bad Gateway", "server_untrusted", g->trouble);
		last_words(g);
		return;
	}
	timer_cancel(g->f->t->eg->timers, &g->f->timer);
	if (codec_start(g, tls_is_h2(g->server.ssl)) < 0) {
		flow_end(g->f, RECEIPT_FAIL, "out_of_memory", true);
		return;
	}
	g->phase = ENGINE_RUN;
	run(g);
}

/* Goes on with the sandbox's side: h2 when the server chose it. */
static void client_tls(struct engine *g, bool h2)
{
	struct flow *f = g->f;
	struct err e;

	if (tls_downstream(f->t->eg->tls, f->client, f->name, h2, &g->client.ssl, &e) < 0) {
		log_err(LOG_ERROR, &e, "TLS to a sandbox");
		flow_end(f, RECEIPT_FAIL, "tls_failed", true);
		return;
	}
	g->phase = ENGINE_CLIENT_TLS;
	engine_go(g);
}

static void server_untrusted(struct engine *g)
{
	long why = SSL_get_verify_result(g->server.ssl);

	g->trouble = why != X509_V_OK ? X509_verify_cert_error_string(why)
				      : "the TLS handshake with the server failed";
	flow_record(g->f, RECEIPT_FAIL, "server_untrusted");
	client_tls(g, false);
}

static void handshake(struct engine *g)
{
	bool upstream = g->phase == ENGINE_UPSTREAM_TLS;
	int r = chan_handshake(upstream ? &g->server : &g->client);

	if (r == 0)
		flow_watch(g->f, upstream ? 0 : chan_events(&g->client, true),
			   upstream ? chan_events(&g->server, true) : 0);
	else if (upstream && r > 0)
		client_tls(g, tls_is_h2(g->server.ssl));
	else if (upstream)
		server_untrusted(g);
	else if (r > 0)
		client_secured(g);
	else
		flow_end(g->f, RECEIPT_FAIL, "client_tls_failed", true);
}

static void engine_go(struct engine *g)
{
	switch (g->phase) {
	case ENGINE_UPSTREAM_TLS:
	case ENGINE_CLIENT_TLS:
		handshake(g);
		break;
	case ENGINE_RUN:
		run(g);
		break;
	case ENGINE_LAST_WORDS:
		last_words(g);
		break;
	}
}

void engine_event(struct flow *f, bool client, uint32_t events)
{
	struct loop_source **s = client ? &f->client_source : &f->server_source;
	uint32_t *wanted = client ? &f->client_events : &f->server_events;

	if (client && (events & EPOLLERR)) {
		flow_end(f, RECEIPT_CLOSE, "reset", true);
		return;
	}
	/* The end of a side that is not being read would be reported for ever. */
	if ((events & (EPOLLHUP | EPOLLERR)) && !(events & *wanted)) {
		loop_remove(*s);
		*s = NULL;
		*wanted = 0;
		return;
	}
	engine_go(f->engine);
}

void engine_start(struct flow *f)
{
	struct engine *g = calloc(1, sizeof(*g));
	struct err e;

	f->engine = g;
	if (!g) {
		flow_end(f, RECEIPT_FAIL, "out_of_memory", true);
		return;
	}
	g->f = f;
	g->tls = f->protocol == FLOW_TLS;
	chan_init(&g->client, f->client);
	chan_init(&g->server, f->server);
	if (!g->tls) {
		g->phase = ENGINE_RUN;
		if (codec_start(g, false) < 0)
			flow_end(f, RECEIPT_FAIL, "out_of_memory", true);
		else
			run(g);
		return;
	}
	if (tls_upstream(f->t->eg->tls, f->server, f->name, &f->hello, &g->server.ssl, &e) < 0) {
		log_err(LOG_ERROR, &e, "TLS to a server");
		flow_end(f, RECEIPT_FAIL, "tls_failed", true);
		return;
	}
	if (flow_timer(f, HANDSHAKE_MS, on_timeout) == 0)
		engine_go(g);
}
