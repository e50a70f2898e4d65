/*
 * The codecs of the credential proxy between a hostile client and a hostile server. First byte: 0
 * for HTTP/1, else HTTP/2; then runs of (side and length byte, bytes). Output is thrown away as if
 * it had been written. With HTTP/1, what reaches the server must parse again: our own head may not
 * be one that a strict parser refuses.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/loop.h"
#include "egress/engine.h"
#include "egress/flow.h"
#include "egress/h1.h"
#include "egress/h2.h"
#include "egress/http_head.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static struct egress eg;
static struct tenant *tenant;

static void setup(void)
{
	int fds[SLOT_SOCKETS];
	struct err e;

	if (tenant)
		return;
	if (loop_new(&eg.loop, &e) < 0 || timers_new(eg.loop, &eg.timers, &e) < 0)
		abort();
	for (int i = 0; i < SLOT_SOCKETS; i++)
		fds[i] = eventfd(0, EFD_CLOEXEC);
	if (tenant_new(&eg, "fuzz", fds, &tenant, &e) < 0)
		abort();
}

static void check_request(const struct buf *out, bool first)
{
	static struct http_head h;
	const char *problem = NULL;

	if (first && out->len && http_request_parse(out->data, out->len, &h, &problem) < 0)
		abort();
}

/* Lets one side say p[n]; negative when the connection is over. */
static int say(struct engine *g, bool client, const char *p, size_t n)
{
	if (g->h2)
		return client ? h2_client_data(g->h2, p, n) : h2_server_data(g->h2, p, n);
	if (client && !h1_wants_client(g->h1))
		return 0;
	return client ? h1_client_data(g->h1, p, n) : h1_server_data(g->h1, p, n);
}

static void converse(struct engine *g, const uint8_t *data, size_t n)
{
	bool first = !g->h2;

	while (n > 1) {
		bool client = data[0] & 0x80;
		size_t len = (size_t)(data[0] & 0x7f) * 4 + 1;
		int r;

		data++;
		n--;
		if (len > n)
			len = n;
		r = say(g, client, (const char *)data, len);
		data += len;
		n -= len;
		if (r < 0)
			return;
		check_request(&g->server.out, first);
		first &= g->server.out.len == 0;
		buf_clear(&g->server.out);
		buf_clear(&g->client.out);
		if (g->h2 && h2_speak(g->h2) < 0)
			return;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct engine g = { .tls = true };
	struct flow f = { .client = -1, .server = -1, .port = 443, .named_by_client = true };

	setup();
	if (n < 2)
		return 0;
	memcpy(f.name, "a.test", 7);
	f.t = tenant;
	f.engine = &g;
	f.policy = tenant->policy;
	g.f = &f;
	chan_init(&g.client, -1);
	chan_init(&g.server, -1);
	if ((data[0] ? h2_new(&g, &g.h2) : h1_new(&g, &g.h1)) < 0)
		abort();
	converse(&g, data + 1, n - 1);
	h1_free(g.h1);
	h2_free(g.h2);
	chan_free(&g.client);
	chan_free(&g.server);
	return 0;
}
