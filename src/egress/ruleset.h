/*
 * Named rule sets from the operator's file, so that a team writes its package indexes down once:
 *
 *	# comment
 *	[python]
 *	pypi.org
 *	files.pythonhosted.org:443
 *
 * A policy uses one as "@python". A set holds plain rules only, no other set.
 */
#ifndef CLOCHE_EGRESS_RULESET_H
#define CLOCHE_EGRESS_RULESET_H

#include <stddef.h>

#include "base/cleanup.h"

struct err;
struct ruleset_book;

struct ruleset {
	char *name;
	char **rules; /* as written, checked */
	size_t n;
};

/* Parses the file's text. On failure the message names the line. */
int ruleset_book_parse(const char *text, size_t len, struct ruleset_book **out, struct err *e);
void ruleset_book_free(struct ruleset_book *b); /* NULL-safe */
CLEANUP_DEFINE(struct ruleset_book *, cleanup_ruleset_book, ruleset_book_free)
#define _cleanup_ruleset_book_ _cleanup_(cleanup_ruleset_book)

/* NULL when there is no such set. */
const struct ruleset *ruleset_find(const struct ruleset_book *b, const char *name);

/* The set whose name is nearest, to suggest; NULL when none is near. */
const char *ruleset_nearest(const struct ruleset_book *b, const char *name);

#endif
