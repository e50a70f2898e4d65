/*
 * HTTP/1 heads and bodies, read strictly: what two parsers could read in two ways is refused
 * (bare LF or CR, folded lines, space before a colon, two lengths, length with chunking, two
 * hosts, odd chunk sizes). Slices point into the caller's bytes.
 */
#ifndef CLOCHE_EGRESS_HTTP_HEAD_H
#define CLOCHE_EGRESS_HTTP_HEAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "egress/hostname.h"

#define HTTP_HEAD_MAX 65536
#define HTTP_FIELDS_MAX 128

struct slice {
	const char *p;
	size_t n;
};

struct http_field {
	struct slice name, value; /* value without surrounding space */
};

enum http_framing { HTTP_BODY_NONE, HTTP_BODY_LENGTH, HTTP_BODY_CHUNKED, HTTP_BODY_UNTIL_CLOSE };

struct http_head {
	struct slice method, target; /* requests */
	unsigned status;	     /* responses */
	unsigned minor;		     /* HTTP/1.minor */
	struct http_field fields[HTTP_FIELDS_MAX];
	size_t n_fields;
	char host[HOSTNAME_LEN]; /* requests: normalised, without port; "" when none */
	bool host_is_address;	 /* the Host was an IP address: host is "" then */
	enum http_framing framing;
	uint64_t length; /* HTTP_BODY_LENGTH */
	bool close;	 /* the sender ends the connection after this message */
	bool upgrade;	 /* Upgrade together with Connection: upgrade */
	bool expect;	 /* Expect: 100-continue */
};

/* Whether p[n] (n >= 1) can be the start of an HTTP/1 request. */
bool http_looks_like_request(const char *p, size_t n);

/*
 * Parses the head at the start of p[n]. Returns its length, blank line included; 0 when more bytes
 * are needed; -EPROTO or -EMSGSIZE (more than HTTP_HEAD_MAX or too many fields), and then *problem
 * is a literal. A response's framing depends on the method it answers.
 */
long http_request_parse(const char *p, size_t n, struct http_head *out, const char **problem);
long http_response_parse(const char *p, size_t n, struct slice method, struct http_head *out,
			 const char **problem);

bool slice_is(struct slice s, const char *text);       /* exact */
bool slice_is_nocase(struct slice s, const char *low); /* `low` in lower case */

/* The first field of that (lower-case) name, or NULL. */
const struct http_field *http_field(const struct http_head *h, const char *low);

/* Follows a body through the bytes of a connection. */
struct http_body {
	enum http_framing framing;
	uint64_t left; /* of the length, or of the chunk */
	unsigned state;
	unsigned digits;
	size_t trailer; /* bytes of trailer so far */
	bool done;
};

typedef void (*http_data_fn)(void *ctx, const char *p, size_t n);

void http_body_init(struct http_body *b, const struct http_head *h);

/*
 * Takes what belongs to the body from p[n] and returns how many bytes that is (sets b->done at its
 * end); calls fn (may be NULL) with each run of content. -EPROTO on bad chunking.
 */
long http_body_feed(struct http_body *b, const char *p, size_t n, http_data_fn fn, void *ctx);

#endif
