/* A table of verbs: the fields each takes, checked before it runs, and what it does. */
#include "egress/verbs.h"

#include <errno.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "egress/egress.h"
#include "egress/flow.h"
#include "egress/swap.h"
#include "egress/tls.h"
#include "egress/vault.h"

#define LOG_PAGE 100 /* receipts in one answer; the largest fits a message */

struct call {
	struct egress *eg;
	const json_t *req;
	struct tenant *tenant; /* of "slot", when the verb wants an existing one */
	int *fds;
	size_t nfds;
};

json_t *verbs_error(const struct err *e, json_t *problems)
{
	json_t *o = json_pack("{s:s,s:s}", "code", e->code ? e->code : "system", "message", e->msg);

	if (o && e->fix[0])
		json_object_set_new(o, "fix", json_string(e->fix));
	if (o && problems)
		json_object_set_new(o, "problems", problems);
	else
		json_decref(problems);
	return json_pack("{s:b,s:o}", "ok", 0, "error", o);
}

static json_t *error(const char *code, const char *message)
{
	struct err e = { 0 };

	err_set(&e, code, EINVAL, "%s", message);
	return verbs_error(&e, NULL);
}

static json_t *verb_hello(struct call *c)
{
	const char *ca = c->eg->tls ? tls_ca_pem(c->eg->tls) : NULL;

	return json_pack("{s:b,s:i,s:s?}", "ok", 1, "version", EGRESS_VERSION, "ca", ca);
}

static json_t *verb_slot_add(struct call *c)
{
	const char *slot = json_get_str(c->req, "slot", "");
	struct err e = { 0 };
	struct tenant *t;

	if (tenant_find(c->eg, slot))
		return error("slot_exists", "this slot is here already");
	if (c->nfds != SLOT_SOCKETS)
		return error("bad_request", "slot_add needs the six sockets of the slot");
	if (tenant_new(c->eg, slot, c->fds, &t, &e) < 0)
		return verbs_error(&e, NULL);
	for (size_t i = 0; i < c->nfds; i++)
		c->fds[i] = -1;
	return json_pack("{s:b}", "ok", 1);
}

static json_t *verb_slot_remove(struct call *c)
{
	tenant_free(c->tenant);
	return json_pack("{s:b}", "ok", 1);
}

static json_t *verb_policy_set(struct call *c)
{
	_cleanup_json_ json_t *problems = json_array();
	struct err e = { 0 };
	struct policy *p;
	int r;

	r = policy_parse(json_object_get(c->req, "policy"), c->eg->book, &p, problems);
	if (r < 0) {
		err_set(&e, "policy_invalid", -r, "the policy has %zu problems",
			json_array_size(problems));
		return verbs_error(&e, json_incref(problems));
	}
	snprintf(c->tenant->sandbox, sizeof(c->tenant->sandbox), "%s",
		 json_get_str(c->req, "sandbox", ""));
	return json_pack("{s:b,s:i}", "ok", 1, "cut",
			 (int)tenant_set_policy(c->tenant, p,
						(uint64_t)json_get_int(c->req, "generation", 0)));
}

static json_t *verb_policy_check(struct call *c)
{
	_cleanup_json_ json_t *problems = json_array();
	_cleanup_policy_ struct policy *p = NULL;

	if (policy_parse(json_object_get(c->req, "policy"), c->eg->book, &p, problems) < 0)
		p = NULL;
	return json_pack("{s:b,s:O}", "ok", 1, "problems", problems);
}

static json_t *verb_explain(struct call *c)
{
	const char *host = json_get_str(c->req, "host", "");
	uint16_t port = (uint16_t)json_get_int(c->req, "port", 0);
	_cleanup_buf_ struct buf why = { 0 }, fix = { 0 }, target = { 0 };
	char name[HOSTNAME_LEN];
	struct verdict v;
	bool is_addr;
	struct ip a;

	is_addr = ip_parse(host, &a) == 0;
	if (!is_addr && hostname_normalise(host, strlen(host), name) < 0)
		return error("bad_request", "host: is neither a host name nor an address");
	v = is_addr ? policy_addr(c->tenant->policy, &a, port)
		    : policy_name(c->tenant->policy, name, port);
	if (buf_printf(&target, "%s:%u", is_addr ? host : name, port) < 0 ||
	    policy_explain(&v, target.data, &why) < 0 ||
	    policy_fix(&v, is_addr ? NULL : name, is_addr ? &a : NULL, &fix) < 0)
		return NULL;
	return json_pack("{s:b,s:b,s:s,s:s?,s:s,s:s?}", "ok", 1, "allowed", v.allow, "reason",
			 policy_why_code(v.why), "rule", v.rule, "message", why.data, "fix",
			 fix.len ? fix.data : NULL);
}

static json_t *verb_log(struct call *c)
{
	json_t *page = receipts_json(c->tenant->log, (uint64_t)json_get_int(c->req, "after", 0),
				     (size_t)json_get_int(c->req, "limit", LOG_PAGE));

	if (page)
		json_object_set_new(page, "ok", json_true());
	return page;
}

static json_t *tenant_stats(const struct tenant *t)
{
	return json_pack("{s:s,s:s,s:I,s:i,s:I,s:I,s:I,s:I,s:I,s:I}", "slot", t->slot, "sandbox",
			 t->sandbox, "generation", (json_int_t)t->generation, "connections",
			 (int)t->n_flows, "connectionsTotal", (json_int_t)t->flows_total, "refused",
			 (json_int_t)t->flows_refused, "bytesOut", (json_int_t)t->bytes_out,
			 "bytesIn", (json_int_t)t->bytes_in, "lookups", (json_int_t)t->dns_total,
			 "lookupsRefused", (json_int_t)t->dns_refused);
}

static json_t *verb_stats(struct call *c)
{
	const char *slot = json_get_str(c->req, "slot", NULL);
	json_t *list, *o;

	if (slot) {
		struct tenant *t = tenant_find(c->eg, slot);

		if (!t)
			return error("unknown_slot", "there is no such slot");
		o = tenant_stats(t);
		if (o)
			json_object_set_new(o, "ok", json_true());
		return o;
	}
	list = json_array();
	for (struct tenant *t = c->eg->tenants; t; t = t->next)
		json_array_append_new(list, tenant_stats(t));
	return json_pack("{s:b,s:o}", "ok", 1, "slots", list);
}

static json_t *verb_secret_check(struct call *c)
{
	json_t *problems = json_array();

	swap_check(json_object_get(c->req, "secret"), problems);
	return json_pack("{s:b,s:o}", "ok", 1, "problems", problems);
}

static json_t *verb_secret_seal(struct call *c)
{
	const char *value = json_get_str(c->req, "value", "");
	_cleanup_buf_ struct buf sealed = { 0 };
	_cleanup_json_ json_t *problems = json_array();
	struct err e = { 0 };

	if (!c->eg->vault)
		return error("system", "this egress was started without a key for secrets");
	swap_check_value(value, problems);
	if (json_array_size(problems)) {
		err_set(&e, "secret_invalid", EINVAL, "the value cannot be used");
		return verbs_error(&e, json_incref(problems));
	}
	if (vault_seal(c->eg->vault, json_get_str(c->req, "id", ""), value, strlen(value), &sealed,
		       &e) < 0)
		return verbs_error(&e, NULL);
	return json_pack("{s:b,s:s}", "ok", 1, "sealed", sealed.data);
}

/*
 * Connections made before, to a host that has a secret now, pass TLS untouched: end them, so that
 * the next request of such a client is one that gets the secret.
 */
static unsigned cut_untouched(struct tenant *t)
{
	struct flow *f, *next;
	unsigned cut = 0;

	for (f = t->flows; f; f = next) {
		next = f->next;
		if (f->state == FLOW_PEEK || f->state == FLOW_LINGER || f->engine || !f->name[0] ||
		    !swaps_for_host(t->swaps, f->name, f->port))
			continue;
		flow_cut(f, "secrets_changed");
		cut++;
	}
	return cut;
}

static json_t *verb_secrets_set(struct call *c)
{
	_cleanup_json_ json_t *problems = json_array(), *placeholders = json_object();
	const json_t *list = json_object_get(c->req, "secrets");
	struct swaps *set = NULL;
	struct err e = { 0 };
	int r;

	if (!c->eg->vault || !c->eg->tls)
		return error("system", "this egress was started without a key for secrets");
	r = swaps_parse(list, c->eg->vault, json_get_str(c->req, "scope", ""), &set, placeholders,
			problems);
	if (r == -ENOMEM)
		return NULL;
	if (r < 0) {
		err_set(&e, "secret_invalid", EINVAL, "a secret cannot be used");
		return verbs_error(&e, json_incref(problems));
	}
	swaps_free(c->tenant->swaps);
	c->tenant->swaps = set;
	return json_pack("{s:b,s:O,s:i}", "ok", 1, "placeholders", placeholders, "cut",
			 (int)cut_untouched(c->tenant));
}

#define FIELD_VERB                                                                              \
	{                                                                                       \
		.name = "verb", .kind = JSON_KIND_STRING, .required = true, .min = 1, .max = 32 \
	}
#define FIELD_ID_NUMBER                                               \
	{                                                             \
		.name = "id", .kind = JSON_KIND_INT, .max = INT64_MAX \
	}
#define FIELD_SLOT                                                                    \
	{                                                                             \
		.name = "slot", .kind = JSON_KIND_STRING, .required = true, .min = 1, \
		.max = EGRESS_SLOT_MAX                                                \
	}
#define FIELD_POLICY                                                                    \
	{                                                                               \
		.name = "policy", .kind = JSON_KIND_OBJECT, .required = true, .max = 16 \
	}

#define FIELDS_MAX 6

static const struct verb {
	const char *name;
	json_t *(*run)(struct call *c);
	bool tenant; /* "slot" must exist */
	struct json_field fields[FIELDS_MAX];
} verbs[] = {
	{ "hello", verb_hello, false, { FIELD_VERB, FIELD_ID_NUMBER } },
	{ "slot_add", verb_slot_add, false, { FIELD_VERB, FIELD_ID_NUMBER, FIELD_SLOT } },
	{ "slot_remove", verb_slot_remove, true, { FIELD_VERB, FIELD_ID_NUMBER, FIELD_SLOT } },
	{ "policy_set",
	  verb_policy_set,
	  true,
	  { FIELD_VERB,
	    FIELD_ID_NUMBER,
	    FIELD_SLOT,
	    FIELD_POLICY,
	    { .name = "sandbox",
	      .kind = JSON_KIND_STRING,
	      .required = true,
	      .min = 1,
	      .max = EGRESS_SANDBOX_MAX },
	    { .name = "generation", .kind = JSON_KIND_INT, .required = true, .max = INT64_MAX } } },
	{ "policy_check", verb_policy_check, false, { FIELD_VERB, FIELD_ID_NUMBER, FIELD_POLICY } },
	{ "explain",
	  verb_explain,
	  true,
	  { FIELD_VERB,
	    FIELD_ID_NUMBER,
	    FIELD_SLOT,
	    { .name = "host", .kind = JSON_KIND_STRING, .required = true, .min = 1, .max = 255 },
	    { .name = "port", .kind = JSON_KIND_INT, .required = true, .min = 1, .max = 65535 } } },
	{ "log",
	  verb_log,
	  true,
	  { FIELD_VERB,
	    FIELD_ID_NUMBER,
	    FIELD_SLOT,
	    { .name = "after", .kind = JSON_KIND_INT, .max = INT64_MAX },
	    { .name = "limit", .kind = JSON_KIND_INT, .min = 1, .max = LOG_PAGE } } },
	{ "stats",
	  verb_stats,
	  false,
	  { FIELD_VERB,
	    FIELD_ID_NUMBER,
	    { .name = "slot", .kind = JSON_KIND_STRING, .min = 1, .max = EGRESS_SLOT_MAX } } },
	{ "secret_check",
	  verb_secret_check,
	  false,
	  { FIELD_VERB,
	    FIELD_ID_NUMBER,
	    { .name = "secret", .kind = JSON_KIND_OBJECT, .required = true, .max = 16 } } },
	{ "secret_seal",
	  verb_secret_seal,
	  false,
	  { FIELD_VERB,
	    { .name = "id", .kind = JSON_KIND_STRING, .required = true, .min = 1, .max = 64 },
	    { .name = "value",
	      .kind = JSON_KIND_STRING,
	      .required = true,
	      .min = 1,
	      .max = VAULT_VALUE_MAX } } },
	{ "secrets_set",
	  verb_secrets_set,
	  true,
	  { FIELD_VERB,
	    FIELD_ID_NUMBER,
	    FIELD_SLOT,
	    { .name = "scope",
	      .kind = JSON_KIND_STRING,
	      .required = true,
	      .min = 1,
	      .max = EGRESS_SANDBOX_MAX },
	    { .name = "secrets",
	      .kind = JSON_KIND_ARRAY,
	      .required = true,
	      .max = EGRESS_SECRETS_MAX } } },
};

static size_t field_count(const struct verb *v)
{
	size_t n = 0;

	while (n < FIELDS_MAX && v->fields[n].name)
		n++;
	return n;
}

json_t *verbs_handle(struct egress *eg, const json_t *request, int *fds, size_t nfds)
{
	const char *name = json_get_str(request, "verb", "");
	struct call c = { .eg = eg, .req = request, .fds = fds, .nfds = nfds };
	const struct verb *v = NULL;
	struct err e = { 0 };
	json_t *problems, *answer;

	for (size_t i = 0; i < ARRAY_SIZE(verbs) && !v; i++)
		if (strcmp(name, verbs[i].name) == 0)
			v = &verbs[i];
	if (!v)
		return error("bad_request", "verb: is not one of this protocol");
	problems = json_array();
	if (json_check(request, v->fields, field_count(v), problems) > 0) {
		err_set(&e, "bad_request", EINVAL, "%s: %zu fields are wrong", name,
			json_array_size(problems));
		return verbs_error(&e, problems);
	}
	json_decref(problems);
	if (v->tenant && !(c.tenant = tenant_find(eg, json_get_str(request, "slot", ""))))
		return error("unknown_slot", "there is no such slot");
	answer = v->run(&c);
	return answer;
}
