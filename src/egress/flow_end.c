/*
 * How a flow ends: receipts, refusals in the client's own protocol, resets. A refusal is written
 * at once (it fits any socket buffer), then the client's bytes are taken and thrown away for a
 * moment, because closing with unread bytes would send a reset that overtakes the answer.
 */
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/loop.h"
#include "egress/engine.h"
#include "egress/flow.h"

#define LINGER_MS 1000

/* TLS alerts in a record: fatal access_denied(49), and internal_error(80) for what we cannot do. */
static const char alert_denied[7] = { 21, 3, 3, 0, 2, 2, 49 };
static const char alert_error[7] = { 21, 3, 3, 0, 2, 2, 80 };

static const char *const protocol_names[] = {
	[FLOW_TCP] = "tcp", [FLOW_TLS] = "tls", [FLOW_HTTP] = "http"
};

void flow_record(struct flow *f, enum receipt_event event, const char *reason)
{
	struct receipt r = { .event = event,
			     .protocol = protocol_names[f->protocol],
			     .connection = f->id,
			     .has_address = true,
			     .address = f->n_addrs && f->next_addr ? f->peer : f->dst,
			     .port = f->port,
			     .reason = reason,
			     .bytes_out = f->bytes_out + f->relay.up.bytes,
			     .bytes_in = f->bytes_in + f->relay.down.bytes,
			     .duration_ms = (clock_mono_ns() - f->started) / NSEC_PER_MSEC };

	memcpy(r.host, f->name, sizeof(r.host));
	tenant_record(f->t, &r, f->verdict.rule ? &f->verdict : NULL);
}

static void close_side(int *fd, bool reset)
{
	struct linger l = { .l_onoff = 1 };

	if (*fd < 0)
		return;
	if (reset)
		setsockopt(*fd, SOL_SOCKET, SO_LINGER, &l, sizeof(l));
	close(*fd);
	*fd = -1;
}

void flow_end(struct flow *f, enum receipt_event event, const char *reason, bool reset)
{
	struct tenant *t = f->t;

	if (f->state != FLOW_LINGER) /* a refusal was recorded when it was made */
		flow_record(f, event, reason);
	t->bytes_out += f->bytes_out + f->relay.up.bytes;
	t->bytes_in += f->bytes_in + f->relay.down.bytes;
	timer_cancel(t->eg->timers, &f->timer);
	lookup_cancel(f->lookups[0]);
	lookup_cancel(f->lookups[1]);
	engine_free(f);
	relay_end(&f->relay);
	close_side(&f->client, reset);
	close_side(&f->server, reset);
	loop_remove_closed(f->client_source);
	loop_remove_closed(f->server_source);
	*f->link = f->next;
	if (f->next)
		f->next->link = f->link;
	t->n_flows--;
	policy_unref(f->policy);
	free(f);
}

void flow_cut(struct flow *f, const char *reason)
{
	flow_end(f, RECEIPT_CUT, reason, true);
}

static void on_linger_timeout(void *ctx)
{
	flow_end(ctx, RECEIPT_CLOSE, "refused", true);
}

void flow_linger(struct flow *f)
{
	char scrap[16384];

	for (int i = 0; i < 16; i++) {
		ssize_t n = recv(f->client, scrap, sizeof(scrap), MSG_DONTWAIT);

		if (n < 0 && errno == EAGAIN)
			return;
		if (n <= 0) {
			flow_end(f, RECEIPT_CLOSE, "refused", false);
			return;
		}
	}
}

void flow_linger_start(struct flow *f)
{
	int low = 1;

	f->state = FLOW_LINGER;
	setsockopt(f->client, SOL_SOCKET, SO_RCVLOWAT, &low, sizeof(low));
	loop_remove(f->server_source);
	f->server_source = NULL;
	close_side(&f->server, true);
	if (flow_timer(f, LINGER_MS, on_linger_timeout) == 0)
		flow_watch(f, EPOLLIN, 0);
}

/* Sends the last words and lets the client read them. */
static void say_and_linger(struct flow *f, const char *p, size_t n)
{
	if (send(f->client, p, n, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)n &&
	    shutdown(f->client, SHUT_WR) == 0) {
		flow_linger_start(f);
		return;
	}
	f->state = FLOW_LINGER;
	flow_end(f, RECEIPT_CLOSE, "refused", true);
}

/* "name:port", or the address with brackets where needed. */
static int target_text(const struct flow *f, struct buf *b)
{
	char text[IP_TEXT_LEN];

	if (f->name[0])
		return buf_printf(b, "%s:%u", f->name, f->port);
	ip_format(&f->dst, text);
	return buf_printf(b, ip_is_v4(&f->dst) ? "%s:%u" : "[%s]:%u", text, f->port);
}

static void answer_http(struct flow *f, const char *status, const char *reason, const char *text)
{
	_cleanup_buf_ struct buf b = { 0 };

	if (buf_printf(
		    &b,
		    "HTTP/1.1 %s\r\nContent-Type: text/plain; charset=utf-8\r\n"
		    "Content-Length: %zu\r\nConnection: close\r\nX-Cloche-Reason: %s\r\n\r\n%s\n",
		    status, strlen(text) + 1, reason, text) < 0)
		flow_end(f, RECEIPT_REFUSE, reason, true);
	else
		say_and_linger(f, b.data, b.len);
}

/* The words of a refusal: why, and what to change. */
static int refusal_text(const struct flow *f, const struct verdict *v, const char *text,
			struct buf *b)
{
	_cleanup_buf_ struct buf target = { 0 };
	int r = target_text(f, &target);

	if (r < 0)
		return r;
	if (!v)
		return buf_printf(b, "%s is refused: %s", target.data, text ? text : "not allowed");
	if ((r = policy_explain(v, target.data, b)) < 0 || (r = buf_str(b, ".\n")) < 0)
		return r;
	return policy_fix(v, f->name[0] ? f->name : NULL, f->n_addrs ? &f->addrs[0] : &f->dst, b);
}

void flow_refuse(struct flow *f, const struct verdict *v, const char *reason, const char *text)
{
	_cleanup_buf_ struct buf words = { 0 };

	f->t->flows_refused++;
	if (v)
		f->verdict = *v;
	flow_record(f, RECEIPT_REFUSE, reason);
	if (f->silent || f->protocol == FLOW_TCP || refusal_text(f, v, text, &words) < 0) {
		f->state = FLOW_LINGER;
		flow_end(f, RECEIPT_REFUSE, reason, true);
	} else if (f->protocol == FLOW_TLS) {
		say_and_linger(f, alert_denied, sizeof(alert_denied));
	} else {
		answer_http(f, v ? "403 Forbidden" : "400 Bad Request", reason, words.data);
	}
}

void flow_unreachable(struct flow *f, const char *reason, const char *text)
{
	_cleanup_buf_ struct buf words = { 0 };

	flow_record(f, RECEIPT_FAIL, reason);
	if (f->silent || f->protocol == FLOW_TCP ||
	    (target_text(f, &words) < 0 || buf_printf(&words, ": %s", text) < 0)) {
		f->state = FLOW_LINGER;
		flow_end(f, RECEIPT_FAIL, reason, true);
	} else if (f->protocol == FLOW_TLS) {
		say_and_linger(f, alert_error, sizeof(alert_error));
	} else {
		answer_http(f, "502 Bad Gateway", reason, words.data);
	}
}
