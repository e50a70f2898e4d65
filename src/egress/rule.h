/* One rule of a policy: its parser and its matcher. See policy.h for the grammar. */
#ifndef CLOCHE_EGRESS_RULE_H
#define CLOCHE_EGRESS_RULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "egress/hostname.h"
#include "egress/ip.h"

#define RULE_TEXT_MAX 300

enum rule_kind { RULE_NAME, RULE_BELOW, RULE_RANGE, RULE_ANY };

struct rule {
	enum rule_kind kind;
	uint16_t port; /* 0: every port */
	struct ip_range range;
	char name[HOSTNAME_LEN]; /* RULE_NAME; RULE_BELOW: without "*." */
};

/*
 * Parses text. On failure -EINVAL, `problem` says what is wrong and `hint` (maybe "") what was
 * probably meant.
 */
int rule_parse(const char *text, struct rule *out, char problem[160], char hint[64]);

/* Port 0 in the question fits every rule. Ranges never match a name, names never an address. */
bool rule_match_name(const struct rule *r, const char *name, uint16_t port);
bool rule_match_addr(const struct rule *r, const struct ip *a, uint16_t port);

#endif
