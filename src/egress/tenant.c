/*
 * A slot as egress knows it: its sockets in the loop, its policy, its memory of names, its
 * receipts and its connections. A tenant starts closed and is judged anew, connection by
 * connection, when its policy changes.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/json.h"
#include "base/loop.h"
#include "egress/dns_server.h"
#include "egress/egress.h"
#include "egress/flow.h"
#include "egress/names.h"
#include "egress/swap.h"

static const loop_fd_fn handlers[SLOT_SOCKETS] = {
	[SLOT_TCP4] = flow_accept,	     [SLOT_TCP6] = flow_accept,
	[SLOT_DNS_UDP4] = dns_server_udp,    [SLOT_DNS_UDP6] = dns_server_udp,
	[SLOT_DNS_TCP4] = dns_server_accept, [SLOT_DNS_TCP6] = dns_server_accept,
};

static struct policy *closed_policy(void)
{
	_cleanup_json_ json_t *o = json_pack("{s:s}", "mode", "none");
	_cleanup_json_ json_t *problems = json_array();
	struct policy *p = NULL;

	return o && problems && policy_parse(o, NULL, &p, problems) == 0 ? p : NULL;
}

/* Frees what tenant_new() had made so far, without the sockets. */
static void tenant_release(struct tenant *t)
{
	for (int i = 0; i < SLOT_SOCKETS; i++)
		loop_remove(t->sources[i]);
	timer_cancel(t->eg->timers, &t->accept_pause);
	policy_unref(t->policy);
	names_free(t->names);
	receipts_free(t->log);
	swaps_free(t->swaps);
	free(t);
}

int tenant_new(struct egress *eg, const char *slot, const int fds[SLOT_SOCKETS],
	       struct tenant **out, struct err *e)
{
	struct tenant *t = calloc(1, sizeof(*t));
	int r = 0;

	if (!t)
		return err_errno(e, ENOMEM, "slot");
	t->eg = eg;
	snprintf(t->slot, sizeof(t->slot), "%s", slot);
	memcpy(t->fds, fds, sizeof(t->fds));
	t->policy = closed_policy();
	if (!t->policy || names_new(&t->names) < 0 || receipts_new(&t->log) < 0)
		r = err_errno(e, ENOMEM, "slot");
	for (int i = 0; i < SLOT_SOCKETS && r == 0; i++)
		r = loop_add_fd(eg->loop, fds[i], EPOLLIN, handlers[i], t, &t->sources[i], e);
	if (r < 0) {
		tenant_release(t);
		return r;
	}
	t->next = eg->tenants;
	eg->tenants = t;
	*out = t;
	return 0;
}

void tenant_free(struct tenant *t)
{
	struct tenant **p = &t->eg->tenants;

	while (*p != t)
		p = &(*p)->next;
	*p = t->next;
	while (t->flows)
		flow_cut(t->flows, "slot_removed");
	dns_server_stop(t);
	for (int i = 0; i < SLOT_SOCKETS; i++)
		close_fd(&t->fds[i]);
	tenant_release(t);
}

struct tenant *tenant_find(struct egress *eg, const char *slot)
{
	for (struct tenant *t = eg->tenants; t; t = t->next)
		if (strcmp(t->slot, slot) == 0)
			return t;
	return NULL;
}

unsigned tenant_set_policy(struct tenant *t, struct policy *p, uint64_t generation)
{
	struct flow *f, *next;
	unsigned cut = 0;

	policy_unref(t->policy);
	t->policy = p;
	t->generation = generation;
	for (f = t->flows; f; f = next) {
		next = f->next;
		cut += flow_recheck(f);
	}
	return cut;
}

void tenant_record(struct tenant *t, struct receipt *r, const struct verdict *v)
{
	if (v && v->rule)
		snprintf(r->rule, sizeof(r->rule), "%s", v->rule);
	receipts_add(t->log, r);
}
