/* A line-by-line reader into an array of sets; the book is immutable after. */
#include "egress/ruleset.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/str.h"
#include "egress/rule.h"

#define SETS_MAX 256
#define SET_RULES_MAX 2048

struct ruleset_book {
	struct ruleset *sets;
	size_t n;
};

void ruleset_book_free(struct ruleset_book *b)
{
	if (!b)
		return;
	for (size_t i = 0; i < b->n; i++) {
		for (size_t j = 0; j < b->sets[i].n; j++)
			free(b->sets[i].rules[j]);
		free(b->sets[i].rules);
		free(b->sets[i].name);
	}
	free(b->sets);
	free(b);
}

const struct ruleset *ruleset_find(const struct ruleset_book *b, const char *name)
{
	for (size_t i = 0; b && i < b->n; i++)
		if (strcmp(b->sets[i].name, name) == 0)
			return &b->sets[i];
	return NULL;
}

const char *ruleset_nearest(const struct ruleset_book *b, const char *name)
{
	const char *names[SETS_MAX];

	for (size_t i = 0; b && i < b->n; i++)
		names[i] = b->sets[i].name;
	return b ? str_nearest(name, names, b->n) : NULL;
}

/* Appends a copy of s to (*list)[*n]. */
static int strings_add(char ***list, size_t *n, const char *s)
{
	char **p = reallocarray(*list, *n + 1, sizeof(*p));

	if (!p)
		return -ENOMEM;
	*list = p;
	p[*n] = strdup(s);
	if (!p[*n])
		return -ENOMEM;
	(*n)++;
	return 0;
}

static int set_begin(struct ruleset_book *b, char *line, unsigned nr, struct err *e)
{
	static const char ok[] = "abcdefghijklmnopqrstuvwxyz0123456789-_.";
	char *end = strchr(line, ']');
	struct ruleset *p;

	if (!end || end[1] || end == line + 1)
		return err_set(e, "ruleset_invalid", EINVAL, "line %u: write [name]", nr);
	*end = '\0';
	line++;
	if (line[strspn(line, ok)] || strlen(line) > 63)
		return err_set(e, "ruleset_invalid", EINVAL,
			       "line %u: a set's name is 1 to 63 of a-z 0-9 - _ .", nr);
	if (ruleset_find(b, line))
		return err_set(e, "ruleset_invalid", EINVAL, "line %u: set %s is there twice", nr,
			       line);
	if (b->n == SETS_MAX)
		return err_set(e, "ruleset_invalid", E2BIG, "line %u: more than %d sets", nr,
			       SETS_MAX);
	p = reallocarray(b->sets, b->n + 1, sizeof(*p));
	if (!p)
		return err_errno(e, ENOMEM, "rule sets");
	b->sets = p;
	p[b->n] = (struct ruleset){ .name = strdup(line) };
	if (!p[b->n].name)
		return err_errno(e, ENOMEM, "rule sets");
	b->n++;
	return 0;
}

static int rule_add(struct ruleset_book *b, const char *line, unsigned nr, struct err *e)
{
	char problem[160], hint[64];
	struct ruleset *s;
	struct rule r;

	if (b->n == 0)
		return err_set(e, "ruleset_invalid", EINVAL, "line %u: a rule before any [name]",
			       nr);
	s = &b->sets[b->n - 1];
	if (rule_parse(line, &r, problem, hint) < 0)
		return err_set(e, "ruleset_invalid", EINVAL, "line %u: %s %s%s%s", nr, line,
			       problem, hint[0] ? "; perhaps " : "", hint);
	if (s->n == SET_RULES_MAX)
		return err_set(e, "ruleset_invalid", E2BIG, "line %u: more than %d rules in set %s",
			       nr, SET_RULES_MAX, s->name);
	if (strings_add(&s->rules, &s->n, line) < 0)
		return err_errno(e, ENOMEM, "rule sets");
	return 0;
}

static char *trim(char *s)
{
	char *end;

	s[strcspn(s, "#")] = '\0';
	s += strspn(s, " \t\r");
	end = s + strlen(s);
	while (end > s && strchr(" \t\r", end[-1]))
		*--end = '\0';
	return s;
}

int ruleset_book_parse(const char *text, size_t len, struct ruleset_book **out, struct err *e)
{
	_cleanup_ruleset_book_ struct ruleset_book *b = calloc(1, sizeof(*b));
	_cleanup_free_ char *copy = strndup(text, len);
	char *next, *line = copy;

	if (!b || !copy)
		return err_errno(e, ENOMEM, "rule sets");
	if (strlen(copy) != len)
		return err_set(e, "ruleset_invalid", EINVAL, "a NUL byte in the file");
	for (unsigned nr = 1; line; nr++, line = next) {
		char *t;
		int r;

		next = strchr(line, '\n');
		if (next)
			*next++ = '\0';
		t = trim(line);
		if (!*t)
			continue;
		r = *t == '[' && !strchr(t, ':') ? set_begin(b, t, nr, e) : rule_add(b, t, nr, e);
		if (r < 0)
			return r;
	}
	*out = steal_ptr(b);
	return 0;
}
