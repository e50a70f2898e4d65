/*
 * The secrets of one sandbox, and putting them where their placeholders stand. A placeholder that
 * is not to be replaced here (another host, another place, not this sandbox's, unknown) must not
 * leave: the caller refuses the request.
 */
#ifndef CLOCHE_EGRESS_SWAP_H
#define CLOCHE_EGRESS_SWAP_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "egress/http_head.h"
#include "egress/vault.h"

struct buf;
struct swaps;

enum swap_place { SWAP_HEADER = 1, SWAP_BASIC = 2, SWAP_QUERY = 4 };

/* Problems of a secret as the API takes it: {value?, hosts, in}; see proto/egress.h. */
void swap_check(const json_t *secret, json_t *problems);

/* Problems of a value alone: what can stand in a header without ending it passes. */
void swap_check_value(const char *value, json_t *problems);

/*
 * Makes the set from secrets:[{id, name, hosts, in, sealed}] for a scope; placeholders becomes
 * {id: text}. On failure -EINVAL with problems appended, or another negative errno.
 */
int swaps_parse(const json_t *list, const struct vault *v, const char *scope, struct swaps **out,
		json_t *placeholders, json_t *problems);
void swaps_free(struct swaps *s); /* NULL-safe; wipes the values */

/* Whether a secret may go to that host. s may be NULL. */
bool swaps_for_host(const struct swaps *s, const char *host, uint16_t port);

/* What a request is headed for, and what was put into it. */
struct swap_target {
	const struct swaps *swaps; /* NULL: every placeholder is one that must not leave */
	const char *host;
	uint16_t port;
	bool clear_text;     /* the connection is not encrypted: nothing is put in */
	const char *used;    /* name of the last secret put in, NULL when none */
	const char *problem; /* literal, set with -EACCES */
};

/*
 * Appends `in` to out with placeholders replaced as `place` allows. -EACCES when one must not
 * leave (t->problem says why), -ENOMEM.
 */
int swap_text(struct swap_target *t, enum swap_place place, struct slice in, struct buf *out);

/* A header's value: the "Basic" credentials inside an authorization field are looked into. */
int swap_header(struct swap_target *t, struct slice name, struct slice value, struct buf *out);

/* A request's target (path and query). */
int swap_path(struct swap_target *t, struct slice target, struct buf *out);

/* Looks for a placeholder in a stream of bytes, wherever it is cut. */
struct swap_scan {
	unsigned matched;
	char last;
};

/* True when one has been completed by p[n]. */
bool swap_scan_feed(struct swap_scan *s, const char *p, size_t n);

#endif
