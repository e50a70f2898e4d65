/*
 * Two flat lists of compiled rules, asked in order: mode none, deny list, closed ranges, allow
 * list, mode. A set's rules are copied in, each keeping the text "@set: rule", so that an
 * explanation names the line. Immutable after policy_parse() but for the reference count, which
 * belongs to the one thread that owns the policies.
 */
#include "egress/policy.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/json.h"
#include "egress/rule.h"
#include "egress/ruleset.h"

struct entry {
	struct rule rule;
	char *text;
};

struct list {
	struct entry *e;
	size_t n;
};

struct policy {
	unsigned refs;
	enum policy_mode mode;
	struct list allow, deny;
};

static const char *const mode_names[] = {
	[POLICY_NONE] = "none", [POLICY_OPEN] = "open", [POLICY_ALLOW] = "allow", NULL
};

static void list_free(struct list *l)
{
	for (size_t i = 0; i < l->n; i++)
		free(l->e[i].text);
	free(l->e);
}

struct policy *policy_ref(struct policy *p)
{
	p->refs++;
	return p;
}

void policy_unref(struct policy *p)
{
	if (!p || --p->refs)
		return;
	list_free(&p->allow);
	list_free(&p->deny);
	free(p);
}

static void problem_add(json_t *problems, const char *field, size_t i, const char *hint,
			const char *fmt, ...) __attribute__((format(printf, 5, 6)));

static void problem_add(json_t *problems, const char *field, size_t i, const char *hint,
			const char *fmt, ...)
{
	char text[RULE_TEXT_MAX + 256], where[32];
	va_list ap;
	json_t *o;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	snprintf(where, sizeof(where), "%s[%zu]", field, i);
	o = json_pack("{s:s,s:s}", "field", where, "problem", text);
	if (!o) /* a cut multi-byte character: say it without the rule's own text */
		o = json_pack("{s:s,s:s}", "field", where, "problem", "is not a rule");
	if (hint && *hint)
		json_object_set_new(o, "hint", json_string(hint));
	json_array_append_new(problems, o);
}

static int list_add(struct list *l, const struct rule *r, const char *set, const char *text)
{
	_cleanup_buf_ struct buf b = { 0 };
	struct entry *p;

	if ((set ? buf_printf(&b, "@%s: %s", set, text) : buf_str(&b, text)) < 0)
		return -ENOMEM;
	p = reallocarray(l->e, l->n + 1, sizeof(*p));
	if (!p)
		return -ENOMEM;
	l->e = p;
	p[l->n] = (struct entry){ .rule = *r, .text = buf_steal(&b) };
	l->n++;
	return 0;
}

static int list_add_set(struct list *l, const char *name, const struct ruleset_book *book)
{
	const struct ruleset *s = ruleset_find(book, name);
	char problem[160], hint[64];
	struct rule r;

	if (!s)
		return -ENOENT;
	for (size_t i = 0; i < s->n; i++) {
		if (rule_parse(s->rules[i], &r, problem, hint) < 0)
			return -EINVAL; /* cannot be: the book holds only rules that parse */
		if (list_add(l, &r, name, s->rules[i]) < 0)
			return -ENOMEM;
	}
	return 0;
}

static void parse_rule(struct list *l, const char *field, size_t i, const char *text,
		       const struct ruleset_book *book, json_t *problems)
{
	char problem[160], hint[64] = "";
	struct rule r;
	int ret;

	if (text[0] == '@') {
		ret = list_add_set(l, text + 1, book);
		if (ret == -ENOENT)
			problem_add(problems, field, i, ruleset_nearest(book, text + 1),
				    "there is no rule set %.64s", text);
	} else if (rule_parse(text, &r, problem, hint) < 0) {
		problem_add(problems, field, i, hint, "%.80s %s", *text ? text : "\"\"", problem);
		return;
	} else {
		ret = list_add(l, &r, NULL, text);
	}
	if (ret == -ENOMEM)
		problem_add(problems, field, i, NULL, "out of memory");
}

static void parse_list(struct list *l, const json_t *obj, const char *field,
		       const struct ruleset_book *book, json_t *problems)
{
	json_t *list = json_object_get(obj, field), *v;
	size_t i;

	json_array_foreach (list, i, v) {
		parse_rule(l, field, i, json_string_value(v), book, problems);
		if (l->n > POLICY_RULES_MAX) {
			problem_add(problems, field, i, NULL,
				    "is rule %zu; the most is %d, sets "
				    "counted by their rules",
				    l->n, POLICY_RULES_MAX);
			return;
		}
	}
}

int policy_parse(const json_t *obj, const struct ruleset_book *book, struct policy **out,
		 json_t *problems)
{
	static const struct json_field fields[] = {
		{ .name = "mode",
		  .kind = JSON_KIND_STRING,
		  .required = true,
		  .choices = mode_names },
		{ .name = "allow", .kind = JSON_KIND_STRINGS, .max = POLICY_RULES_MAX },
		{ .name = "deny", .kind = JSON_KIND_STRINGS, .max = POLICY_RULES_MAX },
	};
	_cleanup_policy_ struct policy *p = NULL;
	size_t before = json_array_size(problems);
	const char *mode;

	if (json_check(obj, fields, ARRAY_SIZE(fields), problems) > 0)
		return -EINVAL;
	p = calloc(1, sizeof(*p));
	if (!p)
		return -ENOMEM;
	p->refs = 1;
	mode = json_get_str(obj, "mode", "");
	for (unsigned i = 0; mode_names[i]; i++)
		if (strcmp(mode, mode_names[i]) == 0)
			p->mode = (enum policy_mode)i;
	parse_list(&p->allow, obj, "allow", book, problems);
	parse_list(&p->deny, obj, "deny", book, problems);
	if (json_array_size(problems) > before)
		return -EINVAL;
	*out = steal_ptr(p);
	return 0;
}

enum policy_mode policy_mode(const struct policy *p)
{
	return p->mode;
}

bool policy_denies_names(const struct policy *p)
{
	for (size_t i = 0; i < p->deny.n; i++)
		if (p->deny.e[i].rule.kind == RULE_NAME || p->deny.e[i].rule.kind == RULE_BELOW)
			return true;
	return false;
}

static const struct entry *find_name(const struct list *l, const char *name, uint16_t port,
				     bool exact_port)
{
	for (size_t i = 0; i < l->n; i++) {
		/* "Denied on any port?" must not be answered by a rule about one port. */
		if (exact_port && port == 0 && l->e[i].rule.port != 0)
			continue;
		if (rule_match_name(&l->e[i].rule, name, port))
			return &l->e[i];
	}
	return NULL;
}

/* ranges_only: RULE_ANY does not count, since only a range opens a closed range. */
static const struct entry *find_addr(const struct list *l, const struct ip *a, uint16_t port,
				     bool ranges_only)
{
	for (size_t i = 0; i < l->n; i++) {
		if (ranges_only && l->e[i].rule.kind != RULE_RANGE)
			continue;
		if (rule_match_addr(&l->e[i].rule, a, port))
			return &l->e[i];
	}
	return NULL;
}

static struct verdict verdict(bool allow, enum policy_why why, const struct entry *e)
{
	return (struct verdict){ .allow = allow,
				 .by_range = allow && e && e->rule.kind == RULE_RANGE,
				 .why = why,
				 .rule = e ? e->text : NULL };
}

struct verdict policy_name(const struct policy *p, const char *name, uint16_t port)
{
	const struct entry *e;

	if (p->mode == POLICY_NONE)
		return verdict(false, WHY_MODE_NONE, NULL);
	e = find_name(&p->deny, name, port, true);
	if (e)
		return verdict(false, WHY_DENY_RULE, e);
	e = find_name(&p->allow, name, port, false);
	if (e)
		return verdict(true, WHY_ALLOW_RULE, e);
	if (p->mode == POLICY_OPEN)
		return verdict(true, WHY_MODE_OPEN, NULL);
	return verdict(false, WHY_NOT_ALLOWED, NULL);
}

/* The part that both questions about an address share. True when v is final. */
static bool addr_gate(const struct policy *p, const struct ip *a, uint16_t port, struct verdict *v)
{
	const struct entry *range;
	const struct entry *e;

	if (p->mode == POLICY_NONE) {
		*v = verdict(false, WHY_MODE_NONE, NULL);
		return true;
	}
	e = find_addr(&p->deny, a, port, false);
	if (e) {
		*v = verdict(false, WHY_DENY_RULE, e);
		return true;
	}
	range = find_addr(&p->allow, a, port, true);
	if (range) {
		*v = verdict(true, WHY_ALLOW_RULE, range);
		return true;
	}
	*v = verdict(false, WHY_CLOSED_RANGE, NULL);
	v->closed = ip_closed(a);
	return v->closed != NULL;
}

struct verdict policy_addr(const struct policy *p, const struct ip *a, uint16_t port)
{
	const struct entry *e;
	struct verdict v;

	if (addr_gate(p, a, port, &v))
		return v;
	e = find_addr(&p->allow, a, port, false);
	if (e)
		return verdict(true, WHY_ALLOW_RULE, e);
	if (p->mode == POLICY_OPEN)
		return verdict(true, WHY_MODE_OPEN, NULL);
	return verdict(false, WHY_NOT_ALLOWED, NULL);
}

struct verdict policy_both(const struct policy *p, const char *name, const struct ip *a,
			   uint16_t port)
{
	struct verdict by_name = policy_name(p, name, port), v;

	if (by_name.why == WHY_MODE_NONE || by_name.why == WHY_DENY_RULE)
		return by_name;
	return addr_gate(p, a, port, &v) ? v : by_name;
}

const char *policy_why_code(enum policy_why why)
{
	static const char *const codes[] = {
		[WHY_MODE_NONE] = "mode_none",	     [WHY_MODE_OPEN] = "mode_open",
		[WHY_ALLOW_RULE] = "allow_rule",     [WHY_DENY_RULE] = "deny_rule",
		[WHY_CLOSED_RANGE] = "closed_range", [WHY_NOT_ALLOWED] = "not_allowed",
	};

	return codes[why];
}

int policy_explain(const struct verdict *v, const char *target, struct buf *out)
{
	switch (v->why) {
	case WHY_MODE_NONE:
		return buf_printf(out, "%s is refused: this sandbox has no network (mode none)",
				  target);
	case WHY_MODE_OPEN:
		return buf_printf(out, "%s is allowed: mode open, and no rule denies it", target);
	case WHY_ALLOW_RULE:
		return buf_printf(out, "%s is allowed by rule %s", target, v->rule);
	case WHY_DENY_RULE:
		return buf_printf(out, "%s is refused by deny rule %s", target, v->rule);
	case WHY_CLOSED_RANGE:
		return buf_printf(out,
				  "%s is refused: its address is %s, closed unless a range "
				  "rule opens it",
				  target, v->closed);
	case WHY_NOT_ALLOWED:
		return buf_printf(out, "%s is refused: no allow rule names it", target);
	}
	return 0;
}

int policy_fix(const struct verdict *v, const char *name, const struct ip *a, struct buf *out)
{
	char text[IP_TEXT_LEN] = "";

	if (a)
		ip_format(a, text);
	switch (v->why) {
	case WHY_MODE_NONE:
		return buf_printf(out,
				  "Set network.mode to \"allow\" and add \"%s\" to "
				  "network.allow.",
				  name ? name : text);
	case WHY_DENY_RULE:
		return buf_printf(out, "Remove \"%s\" from network.deny.", v->rule);
	case WHY_CLOSED_RANGE:
		return buf_printf(out, "Add \"%s\" to network.allow.", text);
	case WHY_NOT_ALLOWED:
		return buf_printf(out, "Add \"%s\" to network.allow.", name ? name : text);
	case WHY_MODE_OPEN:
	case WHY_ALLOW_RULE:
		return 0;
	}
	return 0;
}

int host_pattern_check(const char *text, const char **problem)
{
	char why[160], hint[64];
	struct rule r;

	if (rule_parse(text, &r, why, hint) < 0)
		*problem = "is not a host name";
	else if (r.kind == RULE_RANGE)
		*problem = "must be a name: a server is verified by its name";
	else if (r.kind == RULE_ANY)
		*problem = "must name the hosts; * would send the secret anywhere";
	else
		return 0;
	return -EINVAL;
}

bool host_pattern_match(const char *text, const char *name, uint16_t port)
{
	char why[160], hint[64];
	struct rule r;

	return rule_parse(text, &r, why, hint) == 0 && rule_match_name(&r, name, port);
}
