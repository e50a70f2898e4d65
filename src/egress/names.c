/*
 * A ring in the order of answers; a repeated answer moves to the front by being written again and
 * its old place emptied. Looking is a walk over at most NAMES_MAX entries, newest first.
 */
#include "egress/names.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

struct names {
	struct name_answer *ring[NAMES_MAX]; /* NULL: empty */
	size_t next;			     /* where the next answer goes */
};

static uint32_t hash_of(const char *name)
{
	uint32_t h = 2166136261u;

	for (; *name; name++)
		h = (h ^ (uint8_t)*name) * 16777619u;
	return h;
}

int names_new(struct names **out)
{
	*out = calloc(1, sizeof(**out));
	return *out ? 0 : -ENOMEM;
}

void names_free(struct names *m)
{
	if (!m)
		return;
	for (size_t i = 0; i < NAMES_MAX; i++)
		free(m->ring[i]);
	free(m);
}

/* The i-th newest entry's place. */
static size_t place(const struct names *m, size_t i)
{
	return (m->next + NAMES_MAX - 1 - i) % NAMES_MAX;
}

static struct name_answer **find(const struct names *m, const char *name, enum dns_type type)
{
	uint32_t h = hash_of(name);

	for (size_t i = 0; i < NAMES_MAX; i++) {
		struct name_answer *const *slot = &m->ring[place(m, i)];

		if (*slot && (*slot)->hash == h && (*slot)->type == type &&
		    strcmp((*slot)->name, name) == 0)
			return (struct name_answer **)(uintptr_t)slot;
	}
	return NULL;
}

int names_put(struct names *m, const char *name, enum dns_type type, const struct ip *addrs,
	      size_t n, uint32_t ttl, uint64_t now)
{
	struct name_answer **old = find(m, name, type), *a = old ? *old : calloc(1, sizeof(*a));
	uint64_t keep = ttl < NAMES_KEEP_MIN_S	 ? NAMES_KEEP_MIN_S
			: ttl > NAMES_KEEP_MAX_S ? NAMES_KEEP_MAX_S
						 : ttl;

	if (!a)
		return -ENOMEM;
	if (old)
		*old = NULL;
	a->hash = hash_of(name);
	a->type = type;
	memcpy(a->name, name, strlen(name) + 1);
	a->n = n < DNS_ANSWERS_MAX ? n : DNS_ANSWERS_MAX;
	memcpy(a->addrs, addrs, a->n * sizeof(*addrs));
	a->fresh_until = now + (ttl < keep ? ttl : keep) * NSEC_PER_SEC;
	a->keep_until = now + keep * NSEC_PER_SEC;
	free(m->ring[m->next]);
	m->ring[m->next] = a;
	m->next = (m->next + 1) % NAMES_MAX;
	return 0;
}

const struct name_answer *names_fresh(const struct names *m, const char *name, enum dns_type type,
				      uint64_t now)
{
	struct name_answer **a = find(m, name, type);

	return a && now < (*a)->fresh_until ? *a : NULL;
}

static bool leads_to(const struct name_answer *a, const struct ip *ip, uint64_t now)
{
	if (!a || now >= a->keep_until)
		return false;
	for (size_t i = 0; i < a->n; i++)
		if (ip_equal(&a->addrs[i], ip))
			return true;
	return false;
}

const char *names_of(const struct names *m, const struct ip *a, uint64_t now, size_t *it)
{
	while (*it < NAMES_MAX) {
		const struct name_answer *e = m->ring[place(m, (*it)++)];

		if (leads_to(e, a, now))
			return e->name;
	}
	return NULL;
}

bool names_has(const struct names *m, const char *name, const struct ip *a, uint64_t now)
{
	size_t it = 0;
	const char *n;

	while ((n = names_of(m, a, now, &it)))
		if (strcmp(n, name) == 0)
			return true;
	return false;
}
