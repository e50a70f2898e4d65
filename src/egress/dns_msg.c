/*
 * A cursor over the message that never moves past its end; compression pointers are refused in a
 * question, where no honest client uses them, so names cannot loop. No state.
 */
#include "egress/dns_msg.h"

#include <errno.h>
#include <string.h>

#define HEADER 12
#define CLASS_IN 1
#define TYPE_OPT 41
#define FLAG_QR 0x8000
#define FLAG_TC 0x0200
#define FLAG_RD 0x0100
#define FLAG_RA 0x0080
#define OPCODE_MASK 0x7800
#define EDE_OPTION 15
#define EDE_PROHIBITED 18
#define REASON_MAX 200

struct cursor {
	const uint8_t *p;
	size_t n, at;
};

static int take16(struct cursor *c, uint16_t *v)
{
	if (c->n - c->at < 2)
		return -EBADMSG;
	*v = (uint16_t)(c->p[c->at] << 8 | c->p[c->at + 1]);
	c->at += 2;
	return 0;
}

static int skip(struct cursor *c, size_t n)
{
	if (c->n - c->at < n)
		return -EBADMSG;
	c->at += n;
	return 0;
}

/* Reads an uncompressed name as dotted text. A label with a dot or NUL inside gives "" as name. */
static int take_name(struct cursor *c, char out[HOSTNAME_LEN])
{
	size_t len = 0, wire = 1;
	char text[256];
	bool odd = false;

	for (;;) {
		size_t label;

		if (c->at >= c->n)
			return -EBADMSG;
		label = c->p[c->at++];
		if (label == 0)
			break;
		wire += label + 1;
		if (label > 63 || wire > 255 || c->n - c->at < label)
			return -EBADMSG;
		odd |= memchr(c->p + c->at, '.', label) || memchr(c->p + c->at, 0, label);
		if (len)
			text[len++] = '.';
		memcpy(text + len, c->p + c->at, label);
		len += label;
		c->at += label;
	}
	if (odd || hostname_normalise(text, len, out) < 0)
		out[0] = '\0';
	return 0;
}

/* The additional section of a query: OPT alone is understood, anything else is passed over. */
static int take_additional(struct cursor *c, unsigned count, struct dns_query *q)
{
	for (unsigned i = 0; i < count; i++) {
		char name[HOSTNAME_LEN];
		uint16_t type, class, len;

		if (take_name(c, name) < 0 || take16(c, &type) < 0 || take16(c, &class) < 0 ||
		    skip(c, 4) < 0 || take16(c, &len) < 0 || skip(c, len) < 0)
			return -EBADMSG;
		if (type != TYPE_OPT)
			continue;
		if (q->edns)
			return -EBADMSG; /* RFC 6891: more than one is an error */
		q->edns = true;
		q->udp_max = class < 512 ? 512 : class > DNS_UDP_MAX ? DNS_UDP_MAX : class;
	}
	return 0;
}

int dns_query_parse(const uint8_t *msg, size_t n, struct dns_query *q)
{
	uint16_t flags, questions, answers, authority, additional, class;
	struct cursor c = { msg, n, 0 };

	memset(q, 0, sizeof(*q));
	q->udp_max = 512;
	if (take16(&c, &q->id) < 0 || take16(&c, &flags) < 0 || take16(&c, &questions) < 0 ||
	    take16(&c, &answers) < 0 || take16(&c, &authority) < 0 || take16(&c, &additional) < 0)
		return -EBADMSG;
	if (flags & FLAG_QR)
		return -EBADMSG;
	q->recursion = flags & FLAG_RD;
	if (flags & OPCODE_MASK)
		return DNS_NOTIMP;
	if (questions != 1 || answers || authority || (flags & FLAG_TC))
		return DNS_FORMERR;
	if (take_name(&c, q->name) < 0 || take16(&c, &q->type) < 0 || take16(&c, &class) < 0)
		return DNS_FORMERR;
	q->question_len = c.at - HEADER;
	memcpy(q->question, msg + HEADER, q->question_len);
	if (class != CLASS_IN)
		return DNS_NOTIMP;
	return take_additional(&c, additional, q) < 0 ? DNS_FORMERR : DNS_NOERROR;
}

struct writer {
	uint8_t *p;
	size_t n, max;
};

static void put16(struct writer *w, unsigned v)
{
	w->p[w->n++] = (uint8_t)(v >> 8);
	w->p[w->n++] = (uint8_t)v;
}

static void put_bytes(struct writer *w, const void *p, size_t n)
{
	memcpy(w->p + w->n, p, n);
	w->n += n;
}

static void put_header(struct writer *w, const struct dns_query *q, const struct dns_answer *a,
		       bool truncated, size_t answers, bool opt)
{
	unsigned flags = FLAG_QR | FLAG_RA | (unsigned)a->rcode;

	w->n = 0;
	put16(w, q->id);
	put16(w, flags | (q->recursion ? FLAG_RD : 0) | (truncated ? FLAG_TC : 0));
	put16(w, q->question_len ? 1 : 0);
	put16(w, (unsigned)answers);
	put16(w, 0);
	put16(w, opt ? 1 : 0);
	put_bytes(w, q->question, q->question_len);
}

static void put_record(struct writer *w, const struct dns_query *q, const struct dns_answer *a,
		       const struct ip *addr)
{
	size_t len = q->type == DNS_A ? 4 : 16;

	put16(w, 0xc000 | HEADER); /* the question's name */
	put16(w, q->type);
	put16(w, CLASS_IN);
	put16(w, a->ttl >> 16);
	put16(w, a->ttl & 0xffff);
	put16(w, (unsigned)len);
	put_bytes(w, addr->b + 16 - len, len);
}

static void put_opt(struct writer *w, size_t reason_len, const char *reason)
{
	w->p[w->n++] = 0;
	put16(w, TYPE_OPT);
	put16(w, DNS_UDP_MAX);
	put16(w, 0);
	put16(w, 0);
	put16(w, reason ? (unsigned)(6 + reason_len) : 0);
	if (!reason)
		return;
	put16(w, EDE_OPTION);
	put16(w, (unsigned)(2 + reason_len));
	put16(w, EDE_PROHIBITED);
	put_bytes(w, reason, reason_len);
}

size_t dns_answer_write(const struct dns_query *q, const struct dns_answer *a, uint8_t *out,
			size_t max)
{
	size_t record = 12 + (q->type == DNS_A ? 4 : 16), n = a->n, base, opt = 0;
	size_t reason_len = a->reason ? strnlen(a->reason, REASON_MAX) : 0;
	bool records = q->type == DNS_A || q->type == DNS_AAAA, truncated;
	struct writer w = { out, 0, max };

	if (!records)
		n = 0;
	if (n > DNS_ANSWERS_MAX)
		n = DNS_ANSWERS_MAX;
	base = HEADER + q->question_len;
	if (q->edns)
		opt = 11 + (a->reason ? 6 + reason_len : 0);
	truncated = base + n * record + opt > max;
	if (truncated)
		n = 0;
	put_header(&w, q, a, truncated, n, q->edns);
	for (size_t i = 0; i < n; i++)
		put_record(&w, q, a, &a->addrs[i]);
	if (q->edns)
		put_opt(&w, reason_len, a->reason);
	return w.n;
}
