/*
 * What a sandbox may reach. A policy is {mode: "none"|"open"|"allow", allow: [rule…],
 * deny: [rule…]}. A rule is
 *
 *	example.com          that name            10.0.0.0/8      a range (or one address)
 *	*.example.com        every name below it  2001:db8::/32   the same for IPv6
 *	*                    every public host    [2001:db8::1]:443
 *	any of these with :PORT                   @name           the rules of that set
 *
 * deny wins over allow. A closed range (ip_closed()) stays closed in every mode unless an allow
 * rule that is a range covers the address. Names never open a closed range: a name that resolves
 * into one is refused for that address.
 *
 * Pure: no I/O, no clock. A policy is immutable once made and may be read by any thread.
 */
#ifndef CLOCHE_EGRESS_POLICY_H
#define CLOCHE_EGRESS_POLICY_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "egress/hostname.h"
#include "egress/ip.h"

struct buf;
struct policy;
struct ruleset_book;

#define POLICY_RULES_MAX 2048 /* after sets are expanded, each list */

enum policy_mode { POLICY_NONE, POLICY_OPEN, POLICY_ALLOW };

enum policy_why {
	WHY_MODE_NONE,	  /* the policy closes everything */
	WHY_MODE_OPEN,	  /* open, and nothing denies it */
	WHY_ALLOW_RULE,	  /* rule names it */
	WHY_DENY_RULE,	  /* rule names it */
	WHY_CLOSED_RANGE, /* closed names the kind of range */
	WHY_NOT_ALLOWED,  /* mode allow, and no rule names it */
};

struct verdict {
	bool allow;
	bool by_range; /* allowed because a range rule covers the address itself */
	enum policy_why why;
	const char *rule;   /* the deciding rule as written, or NULL; lives as long as the policy */
	const char *closed; /* WHY_CLOSED_RANGE: a literal; else NULL */
};

/*
 * Checks and compiles. Every problem is appended to problems as {"field":"allow[3]","problem":…,
 * "hint"?:…}; with any, returns -EINVAL and *out is untouched. book may be NULL (no sets).
 */
int policy_parse(const json_t *obj, const struct ruleset_book *book, struct policy **out,
		 json_t *problems);
struct policy *policy_ref(struct policy *p);
void policy_unref(struct policy *p); /* NULL-safe */
CLEANUP_DEFINE(struct policy *, cleanup_policy, policy_unref)
#define _cleanup_policy_ _cleanup_(cleanup_policy)

enum policy_mode policy_mode(const struct policy *p);

/* Whether any deny rule is about names: then a name must be known before anything passes. */
bool policy_denies_names(const struct policy *p);

/*
 * The three questions. name is normalised; port 0 asks "on any port?".
 *	policy_name   may this name be looked up or asked for (its address is not known yet)?
 *	policy_addr   may this address be reached, no name being known?
 *	policy_both   may this address be reached under this name?
 */
struct verdict policy_name(const struct policy *p, const char *name, uint16_t port);
struct verdict policy_addr(const struct policy *p, const struct ip *a, uint16_t port);
struct verdict policy_both(const struct policy *p, const char *name, const struct ip *a,
			   uint16_t port);

/* Stable identifier of the reason ("deny_rule", "not_allowed", …). */
const char *policy_why_code(enum policy_why why);

/* Appends one sentence that says why `target` ("example.com:443") got v. 0 or -ENOMEM. */
int policy_explain(const struct verdict *v, const char *target, struct buf *out);

/*
 * Appends what to change so that it would pass, for the given name (or NULL) and address (or
 * NULL). 0 or -ENOMEM.
 */
int policy_fix(const struct verdict *v, const char *name, const struct ip *a, struct buf *out);

/*
 * One host pattern ("api.example.com", "*.example.com", with :PORT or not), as secrets use it.
 * host_pattern_check returns 0 or -EINVAL and then sets *problem to a literal.
 */
int host_pattern_check(const char *text, const char **problem);
bool host_pattern_match(const char *text, const char *name, uint16_t port);

#endif
