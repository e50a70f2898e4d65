/*
 * Line by line over a head that is already whole in memory; the end of the head is looked for
 * first, so the parser proper never meets a half line. No state.
 */
#include "egress/http_head.h"

#include <errno.h>
#include <string.h>
#include <strings.h>

#include "egress/ip.h"

static const char token_chars[] = "!#$%&'*+-.^_`|~0123456789"
				  "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

static bool is_token_char(char c)
{
	return c && strchr(token_chars, c);
}

static bool is_token(struct slice s)
{
	for (size_t i = 0; i < s.n; i++)
		if (!is_token_char(s.p[i]))
			return false;
	return s.n > 0;
}

bool slice_is(struct slice s, const char *text)
{
	return s.n == strlen(text) && memcmp(s.p, text, s.n) == 0;
}

bool slice_is_nocase(struct slice s, const char *low)
{
	return s.n == strlen(low) && strncasecmp(s.p, low, s.n) == 0;
}

const struct http_field *http_field(const struct http_head *h, const char *low)
{
	for (size_t i = 0; i < h->n_fields; i++)
		if (slice_is_nocase(h->fields[i].name, low))
			return &h->fields[i];
	return NULL;
}

bool http_looks_like_request(const char *p, size_t n)
{
	size_t i = 0;

	while (i < n && i < 24 && p[i] >= 'A' && p[i] <= 'Z')
		i++;
	return i == n ? n < 24 : i >= 3 && p[i] == ' ';
}

static long fail(const char **problem, const char *why)
{
	*problem = why;
	return -EPROTO;
}

/* Length of the head with its blank line, 0 when it has not ended yet. */
static long head_length(const char *p, size_t n, const char **problem)
{
	size_t look = n < HTTP_HEAD_MAX ? n : HTTP_HEAD_MAX;

	for (size_t i = 0; i < look; i++) {
		if (p[i] == '\0')
			return fail(problem, "a NUL byte in the head");
		if (p[i] == '\r' && i + 1 < look && p[i + 1] != '\n')
			return fail(problem, "a bare CR");
		if (p[i] != '\n')
			continue;
		if (i == 0 || p[i - 1] != '\r')
			return fail(problem, "a line that ends with a bare LF");
		if (i >= 3 && p[i - 2] == '\n')
			return (long)i + 1;
		if (i == 1)
			return fail(problem, "an empty line where a head starts");
	}
	if (n >= HTTP_HEAD_MAX) {
		*problem = "a head of more than 64 KiB";
		return -EMSGSIZE;
	}
	return 0;
}

static struct slice trim(struct slice s)
{
	while (s.n && (s.p[0] == ' ' || s.p[0] == '\t')) {
		s.p++;
		s.n--;
	}
	while (s.n && (s.p[s.n - 1] == ' ' || s.p[s.n - 1] == '\t'))
		s.n--;
	return s;
}

static int parse_field(struct slice line, struct http_field *f, const char **problem)
{
	const char *colon = memchr(line.p, ':', line.n);

	if (line.p[0] == ' ' || line.p[0] == '\t')
		return (int)fail(problem, "a folded header line");
	if (!colon)
		return (int)fail(problem, "a header line without a colon");
	f->name = (struct slice){ line.p, (size_t)(colon - line.p) };
	f->value = trim((struct slice){ colon + 1, line.n - f->name.n - 1 });
	if (!is_token(f->name))
		return (int)fail(problem, "a header name that is no token (space before a colon?)");
	for (size_t i = 0; i < f->value.n; i++) {
		unsigned char c = (unsigned char)f->value.p[i];

		if ((c < 0x20 && c != '\t') || c == 0x7f)
			return (int)fail(problem, "a control character in a header value");
	}
	return 0;
}

/* Fields from `at` to the blank line; the head is known to be whole. */
static int parse_fields(const char *p, size_t at, size_t end, struct http_head *h,
			const char **problem)
{
	h->n_fields = 0;
	while (at + 2 < end) {
		const char *cr = memchr(p + at, '\r', end - at);
		struct slice line = { p + at, (size_t)(cr - (p + at)) };

		if (h->n_fields == HTTP_FIELDS_MAX) {
			*problem = "more than 128 header fields";
			return -EMSGSIZE;
		}
		if (parse_field(line, &h->fields[h->n_fields], problem) < 0)
			return -EPROTO;
		h->n_fields++;
		at += line.n + 2;
	}
	return 0;
}

/* Takes the next element of a comma-separated list. */
static bool list_next(struct slice *list, struct slice *item)
{
	const char *comma;

	if (!list->n)
		return false;
	comma = memchr(list->p, ',', list->n);
	item->p = list->p;
	item->n = comma ? (size_t)(comma - list->p) : list->n;
	list->p += item->n + (comma ? 1 : 0);
	list->n -= item->n + (comma ? 1 : 0);
	*item = trim(*item);
	return true;
}

static bool list_has(struct slice list, const char *low)
{
	struct slice item;

	while (list_next(&list, &item))
		if (slice_is_nocase(item, low))
			return true;
	return false;
}

static int parse_length(struct slice v, uint64_t *out)
{
	uint64_t n = 0;

	if (v.n == 0 || v.n > 18)
		return -EPROTO;
	for (size_t i = 0; i < v.n; i++) {
		if (v.p[i] < '0' || v.p[i] > '9')
			return -EPROTO;
		n = n * 10 + (uint64_t)(v.p[i] - '0');
	}
	*out = n;
	return 0;
}

/* Content-Length and Transfer-Encoding: at most one of them, once, in the one plain form. */
static int parse_framing(struct http_head *h, const char **problem)
{
	bool length = false, chunked = false, conn_upgrade = false, upgrade = false;
	bool keep_alive = false;

	for (size_t i = 0; i < h->n_fields; i++) {
		const struct http_field *f = &h->fields[i];

		if (slice_is_nocase(f->name, "content-length")) {
			if (length)
				return (int)fail(problem, "two Content-Length fields");
			if (parse_length(f->value, &h->length) < 0)
				return (int)fail(problem, "a Content-Length that is no number");
			length = true;
		} else if (slice_is_nocase(f->name, "transfer-encoding")) {
			if (chunked || !slice_is_nocase(f->value, "chunked"))
				return (int)fail(problem,
						 "a Transfer-Encoding other than one \"chunked\"");
			chunked = true;
		} else if (slice_is_nocase(f->name, "connection")) {
			h->close |= list_has(f->value, "close");
			keep_alive |= list_has(f->value, "keep-alive");
			conn_upgrade |= list_has(f->value, "upgrade");
		} else if (slice_is_nocase(f->name, "upgrade")) {
			upgrade = true;
		} else if (slice_is_nocase(f->name, "expect")) {
			h->expect |= slice_is_nocase(f->value, "100-continue");
		}
	}
	if (length && chunked)
		return (int)fail(problem, "both Content-Length and Transfer-Encoding");
	if (chunked && h->minor == 0)
		return (int)fail(problem, "Transfer-Encoding in HTTP/1.0");
	h->close |= h->minor == 0 && !keep_alive;
	h->upgrade = upgrade && conn_upgrade;
	h->framing = chunked		   ? HTTP_BODY_CHUNKED
		     : length && h->length ? HTTP_BODY_LENGTH
		     : length		   ? HTTP_BODY_NONE
					   : HTTP_BODY_UNTIL_CLOSE;
	return 0;
}

/* authority = host [":" port]; fills h->host or h->host_is_address. */
static int parse_authority(struct slice a, struct http_head *h)
{
	const char *colon;
	char text[IP_TEXT_LEN];
	struct slice host = a, port = { 0 };
	struct ip ip;

	if (a.n && a.p[0] == '[') {
		const char *end = memchr(a.p, ']', a.n);

		if (!end)
			return -EPROTO;
		host = (struct slice){ a.p + 1, (size_t)(end - a.p) - 1 };
		port = (struct slice){ end + 1, a.n - host.n - 2 };
	} else if ((colon = memchr(a.p, ':', a.n))) {
		host.n = (size_t)(colon - a.p);
		port = (struct slice){ colon, a.n - host.n };
	}
	if (port.n && (port.p[0] != ':' || port.n > 6))
		return -EPROTO;
	for (size_t i = 1; i < port.n; i++)
		if (port.p[i] < '0' || port.p[i] > '9')
			return -EPROTO;
	if (host.n < sizeof(text)) {
		memcpy(text, host.p, host.n);
		text[host.n] = '\0';
		if (ip_parse(text, &ip) == 0) {
			h->host_is_address = true;
			return 0;
		}
	}
	return hostname_normalise(host.p, host.n, h->host) < 0 ? -EPROTO : 0;
}

static int parse_host(struct http_head *h, const char **problem)
{
	const struct http_field *host = NULL;
	struct http_head other = { 0 };

	for (size_t i = 0; i < h->n_fields; i++) {
		if (!slice_is_nocase(h->fields[i].name, "host"))
			continue;
		if (host)
			return (int)fail(problem, "two Host fields");
		host = &h->fields[i];
	}
	if (!host && h->minor >= 1)
		return (int)fail(problem, "no Host field");
	if (host && parse_authority(host->value, h) < 0)
		return (int)fail(problem, "a Host that is neither a host name nor an address");
	if (h->target.n > 7 && strncasecmp(h->target.p, "http://", 7) == 0) {
		struct slice a = { h->target.p + 7, h->target.n - 7 };
		const char *slash = memchr(a.p, '/', a.n);

		if (slash)
			a.n = (size_t)(slash - a.p);
		if (parse_authority(a, &other) < 0 || strcmp(other.host, h->host) != 0)
			return (int)fail(problem, "a target and a Host that disagree");
	} else if (h->target.p[0] != '/' && !slice_is(h->target, "*")) {
		return (int)fail(problem, "a target that is no path");
	}
	return 0;
}

/* "METHOD SP target SP HTTP/1.x" */
static int parse_request_line(struct slice line, struct http_head *h, const char **problem)
{
	const char *sp1 = memchr(line.p, ' ', line.n), *sp2, *end = line.p + line.n;

	sp2 = sp1 ? memchr(sp1 + 1, ' ', (size_t)(end - sp1 - 1)) : NULL;
	if (!sp2)
		return (int)fail(problem, "a malformed request line");
	h->method = (struct slice){ line.p, (size_t)(sp1 - line.p) };
	h->target = (struct slice){ sp1 + 1, (size_t)(sp2 - sp1) - 1 };
	if (end - sp2 - 1 != 8 || memcmp(sp2 + 1, "HTTP/1.", 7) != 0 ||
	    (sp2[8] != '0' && sp2[8] != '1'))
		return (int)fail(problem, "a version other than HTTP/1.0 and HTTP/1.1");
	h->minor = (unsigned)(sp2[8] - '0');
	if (!is_token(h->method) || h->target.n == 0)
		return (int)fail(problem, "a malformed request line");
	for (size_t i = 0; i < h->target.n; i++)
		if ((unsigned char)h->target.p[i] <= 0x20 || h->target.p[i] == 0x7f)
			return (int)fail(problem, "a control character in the request line");
	return 0;
}

long http_request_parse(const char *p, size_t n, struct http_head *out, const char **problem)
{
	long len = head_length(p, n, problem);
	struct slice line;
	int r;

	memset(out, 0, sizeof(*out));
	if (len <= 0)
		return len;
	line = (struct slice){ p, (size_t)((const char *)memchr(p, '\r', (size_t)len) - p) };
	if (parse_request_line(line, out, problem) < 0)
		return -EPROTO;
	r = parse_fields(p, line.n + 2, (size_t)len, out, problem);
	if (r < 0)
		return r;
	if (slice_is(out->method, "CONNECT"))
		return fail(problem, "CONNECT: this is a transparent path, not a proxy");
	if (parse_framing(out, problem) < 0 || parse_host(out, problem) < 0)
		return -EPROTO;
	if (out->framing == HTTP_BODY_UNTIL_CLOSE)
		out->framing = HTTP_BODY_NONE;
	return len;
}

/* "HTTP/1.x SP 3digits [SP reason]" */
static int parse_status_line(struct slice line, struct http_head *h, const char **problem)
{
	if (line.n < 12 || memcmp(line.p, "HTTP/1.", 7) != 0 ||
	    (line.p[7] != '0' && line.p[7] != '1') || line.p[8] != ' ' ||
	    (line.n > 12 && line.p[12] != ' '))
		return (int)fail(problem, "a malformed status line");
	h->minor = (unsigned)(line.p[7] - '0');
	for (size_t i = 9; i < 12; i++) {
		if (line.p[i] < '0' || line.p[i] > '9')
			return (int)fail(problem, "a malformed status line");
		h->status = h->status * 10 + (unsigned)(line.p[i] - '0');
	}
	if (h->status < 100)
		return (int)fail(problem, "a malformed status line");
	return 0;
}

long http_response_parse(const char *p, size_t n, struct slice method, struct http_head *out,
			 const char **problem)
{
	long len = head_length(p, n, problem);
	struct slice line;
	int r;

	memset(out, 0, sizeof(*out));
	if (len <= 0)
		return len;
	line = (struct slice){ p, (size_t)((const char *)memchr(p, '\r', (size_t)len) - p) };
	if (parse_status_line(line, out, problem) < 0)
		return -EPROTO;
	r = parse_fields(p, line.n + 2, (size_t)len, out, problem);
	if (r < 0)
		return r;
	if (parse_framing(out, problem) < 0)
		return -EPROTO;
	if (slice_is(method, "HEAD") || out->status < 200 || out->status == 204 ||
	    out->status == 304)
		out->framing = HTTP_BODY_NONE;
	return len;
}

/* Chunked bodies: where in "SIZE CRLF data CRLF … 0 CRLF [trailer CRLF]… CRLF" we are. */
enum {
	CH_SIZE,
	CH_SIZE_LF,
	CH_DATA,
	CH_DATA_CR,
	CH_DATA_LF,
	CH_TRAILER_START, /* at the first byte of a trailer line */
	CH_TRAILER,	  /* inside one */
	CH_TRAILER_LF,
	CH_END_LF,
};

#define TRAILER_MAX 8192

void http_body_init(struct http_body *b, const struct http_head *h)
{
	*b = (struct http_body){ .framing = h->framing };
	b->left = h->framing == HTTP_BODY_LENGTH ? h->length : 0;
	b->state = CH_SIZE;
	b->done = h->framing == HTTP_BODY_NONE;
}

static int hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static int chunk_size_byte(struct http_body *b, char c)
{
	int d = hex_digit(c);

	if (d >= 0) {
		if (++b->digits > 15)
			return -EPROTO;
		b->left = b->left << 4 | (uint64_t)d;
		return 0;
	}
	if (c != '\r' || b->digits == 0)
		return -EPROTO; /* an extension, a space, a sign: nobody needs them */
	b->state = CH_SIZE_LF;
	return 0;
}

static int trailer_byte(struct http_body *b, char c)
{
	if (++b->trailer > TRAILER_MAX || c == '\0')
		return -EPROTO;
	if (b->state == CH_TRAILER_START) {
		if (c == '\r')
			b->state = CH_END_LF;
		else if (!is_token_char(c))
			return -EPROTO;
		else
			b->state = CH_TRAILER;
		return 0;
	}
	if (c == '\n')
		return -EPROTO;
	if (c == '\r')
		b->state = CH_TRAILER_LF;
	return 0;
}

/* One byte of chunk framing (not of content). */
static int chunk_byte(struct http_body *b, char c)
{
	switch (b->state) {
	case CH_SIZE:
		return chunk_size_byte(b, c);
	case CH_SIZE_LF:
		b->digits = 0;
		b->state = b->left ? CH_DATA : CH_TRAILER_START;
		return c == '\n' ? 0 : -EPROTO;
	case CH_DATA_CR:
		b->state = CH_DATA_LF;
		return c == '\r' ? 0 : -EPROTO;
	case CH_DATA_LF:
		b->state = CH_SIZE;
		return c == '\n' ? 0 : -EPROTO;
	case CH_TRAILER_START:
	case CH_TRAILER:
		return trailer_byte(b, c);
	case CH_TRAILER_LF:
		b->state = CH_TRAILER_START;
		return c == '\n' ? 0 : -EPROTO;
	case CH_END_LF:
		b->done = true;
		return c == '\n' ? 0 : -EPROTO;
	default:
		return -EPROTO;
	}
}

/* Takes content that is there; returns the bytes. */
static size_t take_content(struct http_body *b, const char *p, size_t n, http_data_fn fn, void *ctx)
{
	size_t part = b->framing == HTTP_BODY_UNTIL_CLOSE || b->left > n ? n : (size_t)b->left;

	if (fn && part)
		fn(ctx, p, part);
	if (b->framing != HTTP_BODY_UNTIL_CLOSE)
		b->left -= part;
	return part;
}

long http_body_feed(struct http_body *b, const char *p, size_t n, http_data_fn fn, void *ctx)
{
	size_t at = 0;

	if (b->done)
		return 0;
	if (b->framing != HTTP_BODY_CHUNKED) {
		at = take_content(b, p, n, fn, ctx);
		b->done = b->framing == HTTP_BODY_LENGTH && b->left == 0;
		return (long)at;
	}
	while (at < n && !b->done) {
		if (b->state == CH_DATA) {
			at += take_content(b, p + at, n - at, fn, ctx);
			if (b->left == 0)
				b->state = CH_DATA_CR;
		} else if (chunk_byte(b, p[at++]) < 0) {
			return -EPROTO;
		}
	}
	return (long)at;
}
