/*
 * Placeholders have a fixed form, so finding one is a search for its prefix and a check of its
 * digits; which secret it is comes after. A value was checked when it was sealed (printable ASCII,
 * no space at the ends), so putting one in cannot end a header line or start another.
 */
#include "egress/swap.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <stdlib.h>
#include <string.h>

#include "base/base64.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "egress/policy.h"

#define HOSTS_MAX 32

struct swap {
	char *name;
	char **hosts;
	size_t n_hosts;
	unsigned places;
	char placeholder[EGRESS_PLACEHOLDER_LEN + 1];
	struct vault_value value;
};

struct swaps {
	struct swap *s;
	size_t n;
};

static const struct {
	const char *name;
	enum swap_place place;
} places[] = { { "header", SWAP_HEADER }, { "basic", SWAP_BASIC }, { "query", SWAP_QUERY } };

static void problem(json_t *problems, const char *field, const char *text)
{
	json_array_append_new(problems, json_pack("{s:s,s:s}", "field", field, "problem", text));
}

/* --- making the set --- */

static unsigned place_bit(const char *name)
{
	for (size_t i = 0; i < ARRAY_SIZE(places); i++)
		if (strcmp(name, places[i].name) == 0)
			return places[i].place;
	return 0;
}

static void check_hosts(const json_t *hosts, json_t *problems)
{
	const char *why;
	char field[32];
	json_t *v;
	size_t i;

	json_array_foreach ((json_t *)(uintptr_t)hosts, i, v) {
		if (host_pattern_check(json_string_value(v), &why) == 0)
			continue;
		snprintf(field, sizeof(field), "hosts[%zu]", i);
		problem(problems, field, why);
	}
}

static void check_places(const json_t *in, json_t *problems)
{
	char field[32];
	json_t *v;
	size_t i;

	json_array_foreach ((json_t *)(uintptr_t)in, i, v) {
		if (place_bit(json_string_value(v)))
			continue;
		snprintf(field, sizeof(field), "in[%zu]", i);
		problem(problems, field, "must be one of: header, basic, query");
	}
}

void swap_check_value(const char *value, json_t *problems)
{
	size_t n = strlen(value);

	for (size_t i = 0; i < n; i++)
		if ((unsigned char)value[i] < 0x20 || (unsigned char)value[i] > 0x7e) {
			problem(problems, "value", "must be printable ASCII without line breaks");
			return;
		}
	if (value[0] == ' ' || value[n - 1] == ' ')
		problem(problems, "value", "must not start or end with a space");
	if (strstr(value, EGRESS_PLACEHOLDER_PREFIX))
		problem(problems, "value", "must not contain a placeholder");
}

void swap_check(const json_t *secret, json_t *problems)
{
	static const struct json_field fields[] = {
		{ .name = "value", .kind = JSON_KIND_STRING, .min = 1, .max = VAULT_VALUE_MAX },
		{ .name = "hosts",
		  .kind = JSON_KIND_STRINGS,
		  .required = true,
		  .min = 1,
		  .max = HOSTS_MAX },
		{ .name = "in", .kind = JSON_KIND_STRINGS, .required = true, .min = 1, .max = 3 },
	};
	const char *value;

	if (json_check(secret, fields, ARRAY_SIZE(fields), problems) > 0)
		return;
	check_hosts(json_object_get(secret, "hosts"), problems);
	check_places(json_object_get(secret, "in"), problems);
	value = json_get_str(secret, "value", NULL);
	if (value)
		swap_check_value(value, problems);
}

static int take_hosts(struct swap *s, const json_t *hosts)
{
	json_t *v;
	size_t i;

	s->hosts = calloc(json_array_size(hosts), sizeof(*s->hosts));
	if (!s->hosts)
		return -ENOMEM;
	json_array_foreach ((json_t *)(uintptr_t)hosts, i, v) {
		s->hosts[i] = strdup(json_string_value(v));
		if (!s->hosts[i])
			return -ENOMEM;
		s->n_hosts++;
	}
	return 0;
}

static int take_secret(struct swap *s, const json_t *o, const struct vault *v, const char *scope,
		       json_t *placeholders, json_t *problems)
{
	const char *id = json_get_str(o, "id", "");
	struct err e = { 0 };
	json_t *place;
	size_t i;
	int r;

	check_hosts(json_object_get(o, "hosts"), problems);
	check_places(json_object_get(o, "in"), problems);
	if (json_array_size(problems))
		return -EINVAL;
	json_array_foreach (json_object_get(o, "in"), i, place)
		s->places |= place_bit(json_string_value(place));
	s->name = strdup(json_get_str(o, "name", ""));
	if (!s->name || take_hosts(s, json_object_get(o, "hosts")) < 0)
		return -ENOMEM;
	r = vault_unseal(v, id, json_get_str(o, "sealed", ""), &s->value, &e);
	if (r == 0)
		r = vault_placeholder(v, scope, id, s->placeholder, &e);
	if (r < 0) {
		problem(problems, "sealed", e.msg);
		return -EINVAL;
	}
	return json_object_set_new(placeholders, id, json_string(s->placeholder)) < 0 ? -ENOMEM : 0;
}

int swaps_parse(const json_t *list, const struct vault *v, const char *scope, struct swaps **out,
		json_t *placeholders, json_t *problems)
{
	static const struct json_field fields[] = {
		{ .name = "id", .kind = JSON_KIND_STRING, .required = true, .min = 1, .max = 64 },
		{ .name = "name",
		  .kind = JSON_KIND_STRING,
		  .required = true,
		  .min = 1,
		  .max = 128 },
		{ .name = "hosts",
		  .kind = JSON_KIND_STRINGS,
		  .required = true,
		  .min = 1,
		  .max = HOSTS_MAX },
		{ .name = "in", .kind = JSON_KIND_STRINGS, .required = true, .min = 1, .max = 3 },
		{ .name = "sealed",
		  .kind = JSON_KIND_STRING,
		  .required = true,
		  .min = 1,
		  .max = 4 * VAULT_VALUE_MAX },
	};
	struct swaps *set = calloc(1, sizeof(*set));
	json_t *o;
	size_t i;
	int r = set ? 0 : -ENOMEM;

	if (set)
		set->s = calloc(json_array_size(list) + 1, sizeof(*set->s));
	if (!set || !set->s)
		r = -ENOMEM;
	json_array_foreach ((json_t *)(uintptr_t)list, i, o) {
		if (r < 0)
			break;
		if (json_check(o, fields, ARRAY_SIZE(fields), problems) > 0) {
			r = -EINVAL;
			break;
		}
		set->n++;
		r = take_secret(&set->s[i], o, v, scope, placeholders, problems);
	}
	if (r < 0) {
		swaps_free(set);
		return r;
	}
	*out = set;
	return 0;
}

void swaps_free(struct swaps *s)
{
	if (!s)
		return;
	for (size_t i = 0; i < s->n; i++) {
		struct swap *w = &s->s[i];

		for (size_t k = 0; k < w->n_hosts; k++)
			free(w->hosts[k]);
		free(w->hosts);
		free(w->name);
		vault_value_free(&w->value);
	}
	free(s->s);
	free(s);
}

/* --- using it --- */

static bool swap_has_host(const struct swap *s, const char *host, uint16_t port)
{
	for (size_t i = 0; i < s->n_hosts; i++)
		if (host_pattern_match(s->hosts[i], host, port))
			return true;
	return false;
}

bool swaps_for_host(const struct swaps *s, const char *host, uint16_t port)
{
	for (size_t i = 0; s && i < s->n; i++)
		if (swap_has_host(&s->s[i], host, port))
			return true;
	return false;
}

static bool is_hex(char c)
{
	return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
}

/* The first placeholder in p[n], or NULL. */
static const char *find_placeholder(const char *p, size_t n)
{
	static const char prefix[] = EGRESS_PLACEHOLDER_PREFIX;
	const char *end = p + n, *at = p;

	while ((at = memmem(at, (size_t)(end - at), prefix, sizeof(prefix) - 1))) {
		size_t digits = 0;

		at += sizeof(prefix) - 1;
		while (digits < EGRESS_PLACEHOLDER_HEX && at + digits < end && is_hex(at[digits]))
			digits++;
		if (digits == EGRESS_PLACEHOLDER_HEX)
			return at - (sizeof(prefix) - 1);
	}
	return NULL;
}

static int add_query_escaped(struct buf *out, const char *p, size_t n)
{
	static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
				    "0123456789-._~";
	int r = 0;

	for (size_t i = 0; i < n && r == 0; i++)
		r = strchr(plain, p[i]) ? buf_add(out, &p[i], 1)
					: buf_printf(out, "%%%02X", (unsigned char)p[i]);
	return r;
}

static int refuse(struct swap_target *t, const char *why)
{
	t->problem = why;
	return -EACCES;
}

/* Puts the value of the placeholder at p in, if it may go there. place 0: nowhere. */
static int put_value(struct swap_target *t, unsigned place, const char *p, struct buf *out)
{
	const struct swap *s = NULL;

	for (size_t i = 0; t->swaps && i < t->swaps->n && !s; i++)
		if (memcmp(t->swaps->s[i].placeholder, p, EGRESS_PLACEHOLDER_LEN) == 0)
			s = &t->swaps->s[i];
	if (!s)
		return refuse(t, "it holds a placeholder that is none of this sandbox's");
	if (t->clear_text)
		return refuse(t, "it holds a placeholder, and the connection is not encrypted");
	if (!swap_has_host(s, t->host, t->port))
		return refuse(t, "it holds a placeholder whose secret may not go to this host");
	if (!(s->places & place))
		return refuse(t, "it holds a placeholder in a place where its secret may not be");
	t->used = s->name;
	return place == SWAP_QUERY ? add_query_escaped(out, s->value.p, s->value.n)
				   : buf_add(out, s->value.p, s->value.n);
}

static int swap_in(struct swap_target *t, unsigned place, struct slice in, struct buf *out)
{
	const char *at;
	int r;

	while ((at = find_placeholder(in.p, in.n))) {
		size_t before = (size_t)(at - in.p);

		if ((r = buf_add(out, in.p, before)) < 0 || (r = put_value(t, place, at, out)) < 0)
			return r;
		in.p += before + EGRESS_PLACEHOLDER_LEN;
		in.n -= before + EGRESS_PLACEHOLDER_LEN;
	}
	return buf_add(out, in.p, in.n);
}

int swap_text(struct swap_target *t, enum swap_place place, struct slice in, struct buf *out)
{
	return swap_in(t, place, in, out);
}

static void wipe(struct buf *b)
{
	if (b->data)
		OPENSSL_cleanse(b->data, b->cap);
	buf_free(b);
}

/* "Basic BASE64": the decoded "user:password" is what is looked into. */
static int swap_basic(struct swap_target *t, struct slice value, struct buf *out)
{
	struct slice b64 = { value.p + 6, value.n - 6 };
	struct buf plain = { 0 }, swapped = { 0 };
	int r;

	while (b64.n && *b64.p == ' ') {
		b64.p++;
		b64.n--;
	}
	r = base64_decode(&plain, b64.p, b64.n);
	if (r == -EINVAL || (r == 0 && !find_placeholder(plain.data, plain.len))) {
		wipe(&plain);
		return swap_in(t, SWAP_HEADER, value, out);
	}
	if (r == 0)
		r = swap_in(t, SWAP_BASIC, (struct slice){ plain.data, plain.len }, &swapped);
	if (r == 0 && (r = buf_str(out, "Basic ")) == 0)
		r = base64_encode(out, swapped.data, swapped.len);
	wipe(&plain);
	wipe(&swapped);
	return r;
}

int swap_header(struct swap_target *t, struct slice name, struct slice value, struct buf *out)
{
	struct slice scheme = { value.p, value.n < 6 ? value.n : 6 };

	if ((slice_is_nocase(name, "authorization") ||
	     slice_is_nocase(name, "proxy-authorization")) &&
	    slice_is_nocase(scheme, "basic "))
		return swap_basic(t, value, out);
	return swap_in(t, SWAP_HEADER, value, out);
}

int swap_path(struct swap_target *t, struct slice target, struct buf *out)
{
	const char *q = memchr(target.p, '?', target.n);
	struct slice path = { target.p, q ? (size_t)(q - target.p) : target.n };
	int r = swap_in(t, 0, path, out);

	if (r < 0 || !q)
		return r;
	return swap_in(t, SWAP_QUERY, (struct slice){ q, target.n - path.n }, out);
}

bool swap_scan_feed(struct swap_scan *s, const char *p, size_t n)
{
	static const char prefix[] = EGRESS_PLACEHOLDER_PREFIX;

	for (size_t i = 0; i < n; i++) {
		/* Nothing begun: skip to the next first letter at memchr's speed. */
		if (s->matched == 0) {
			const char *c = memchr(p + i, prefix[0], n - i);

			if (!c)
				return false;
			i = (size_t)(c - p);
		}
		if (s->matched < sizeof(prefix) - 1 ? p[i] == prefix[s->matched] : is_hex(p[i]))
			s->matched++;
		else /* the prefix repeats nothing of itself but its first letter */
			s->matched = s->last == prefix[0] && p[i] == prefix[1] ? 2
				     : p[i] == prefix[0]		       ? 1
									       : 0;
		s->last = p[i];
		if (s->matched == EGRESS_PLACEHOLDER_LEN)
			return true;
	}
	return false;
}
