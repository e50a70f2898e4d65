/* seq s lives at ring[s % RECEIPTS_MAX]; numbers start at 1. */
#include "egress/receipt.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"

struct receipts {
	uint64_t last;
	struct receipt ring[RECEIPTS_MAX];
};

static const char *const event_names[] = {
	[RECEIPT_ALLOW] = "allow", [RECEIPT_REFUSE] = "refuse", [RECEIPT_FAIL] = "fail",
	[RECEIPT_CLOSE] = "close", [RECEIPT_CUT] = "cut",	[RECEIPT_SECRET] = "secret",
};

int receipts_new(struct receipts **out)
{
	*out = calloc(1, sizeof(**out));
	return *out ? 0 : -ENOMEM;
}

void receipts_free(struct receipts *l)
{
	free(l);
}

static bool same_lookup(const struct receipt *a, const struct receipt *b)
{
	return a->connection == 0 && b->connection == 0 && a->event == b->event &&
	       a->protocol == b->protocol && a->port == b->port && strcmp(a->host, b->host) == 0 &&
	       strcmp(a->rule, b->rule) == 0;
}

void receipts_add(struct receipts *l, const struct receipt *r)
{
	struct receipt *last = &l->ring[l->last % RECEIPTS_MAX], *slot;
	uint32_t count = 1;

	if (l->last && same_lookup(last, r)) {
		count = last->count + 1;
		last->seq = 0; /* the newer one speaks for it, under a number no reader has seen */
	}
	l->last++;
	slot = &l->ring[l->last % RECEIPTS_MAX];
	*slot = *r;
	slot->seq = l->last;
	slot->wall_ms = clock_wall_ms();
	slot->count = count;
}

static json_t *receipt_json(const struct receipt *r)
{
	char time[CLOCK_RFC3339_LEN], address[IP_TEXT_LEN] = "";

	clock_rfc3339(r->wall_ms, time);
	if (r->has_address)
		ip_format(&r->address, address);
	return json_pack("{s:I,s:s,s:s,s:s,s:I,s:s?,s:s?,s:i,s:s?,s:s,s:I,s:I,s:I,s:I}", "seq",
			 (json_int_t)r->seq, "time", time, "event", event_names[r->event],
			 "protocol", r->protocol, "connection", (json_int_t)r->connection, "host",
			 r->host[0] ? r->host : NULL, "address", address[0] ? address : NULL,
			 "port", (int)r->port, "rule", r->rule[0] ? r->rule : NULL, "reason",
			 r->reason ? r->reason : "", "bytesOut", (json_int_t)r->bytes_out,
			 "bytesIn", (json_int_t)r->bytes_in, "durationMs",
			 (json_int_t)r->duration_ms, "count", (json_int_t)r->count);
}

json_t *receipts_json(const struct receipts *l, uint64_t after, size_t limit)
{
	uint64_t first = l->last > RECEIPTS_MAX ? l->last - RECEIPTS_MAX + 1 : 1;
	_cleanup_json_ json_t *list = json_array();
	uint64_t next = after;

	if (after >= first)
		first = after + 1;
	for (uint64_t s = first; s <= l->last && json_array_size(list) < limit; s++) {
		const struct receipt *r = &l->ring[s % RECEIPTS_MAX];

		next = s;
		if (r->seq == s && json_array_append_new(list, receipt_json(r)) < 0)
			return NULL;
	}
	return json_pack("{s:O,s:I}", "records", list, "next", (json_int_t)next);
}
