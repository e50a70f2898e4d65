/*
 * First the handshake message is gathered out of its records, then read with a cursor whose every
 * length is checked against what encloses it. No state.
 */
#include "egress/client_hello.h"

#include <errno.h>
#include <string.h>

#define RECORD_HANDSHAKE 22
#define RECORD_MAX 16384
#define HANDSHAKE_CLIENT_HELLO 1
#define EXT_SERVER_NAME 0
#define EXT_ALPN 16
#define EXT_ECH 0xfe0d

struct span {
	const uint8_t *p;
	size_t n;
};

/* Takes a big-endian number of `width` bytes. */
static int take(struct span *s, unsigned width, size_t *v)
{
	size_t x = 0;

	if (s->n < width)
		return -EPROTO;
	for (unsigned i = 0; i < width; i++)
		x = x << 8 | s->p[i];
	s->p += width;
	s->n -= width;
	*v = x;
	return 0;
}

/* Takes a vector whose length has `width` bytes. */
static int take_vector(struct span *s, unsigned width, struct span *out)
{
	size_t len;

	if (take(s, width, &len) < 0 || s->n < len)
		return -EPROTO;
	*out = (struct span){ s->p, len };
	s->p += len;
	s->n -= len;
	return 0;
}

static int take_skip(struct span *s, size_t n)
{
	if (s->n < n)
		return -EPROTO;
	s->p += n;
	s->n -= n;
	return 0;
}

static int read_sni(struct span ext, struct client_hello *out)
{
	struct span list, name;
	size_t type;

	if (out->sni[0] || take_vector(&ext, 2, &list) < 0 || ext.n)
		return -EPROTO;
	if (take(&list, 1, &type) < 0 || type != 0 || take_vector(&list, 2, &name) < 0 || list.n)
		return -EPROTO;
	return hostname_normalise((const char *)name.p, name.n, out->sni) < 0 ? -EPROTO : 0;
}

static int read_alpn(struct span ext, struct client_hello *out)
{
	struct span list, name;

	if (out->alpn || take_vector(&ext, 2, &list) < 0 || ext.n)
		return -EPROTO;
	out->alpn = true;
	while (list.n) {
		if (take_vector(&list, 1, &name) < 0 || name.n == 0)
			return -EPROTO;
		out->alpn_h2 |= name.n == 2 && memcmp(name.p, "h2", 2) == 0;
		out->alpn_http1 |= name.n == 8 && memcmp(name.p, "http/1.1", 8) == 0;
	}
	return 0;
}

static int read_hello(struct span s, struct client_hello *out)
{
	struct span v, exts, ext;
	size_t type;
	int r = 0;

	/* version, random; session id, cipher suites, compression */
	if (take_skip(&s, 2 + 32) < 0 || take_vector(&s, 1, &v) < 0 || take_vector(&s, 2, &v) < 0 ||
	    take_vector(&s, 1, &v) < 0)
		return -EPROTO;
	if (s.n == 0)
		return 0; /* no extensions: an old client without SNI */
	if (take_vector(&s, 2, &exts) < 0 || s.n)
		return -EPROTO;
	while (exts.n && r == 0) {
		if (take(&exts, 2, &type) < 0 || take_vector(&exts, 2, &ext) < 0)
			return -EPROTO;
		if (type == EXT_SERVER_NAME)
			r = read_sni(ext, out);
		else if (type == EXT_ALPN)
			r = read_alpn(ext, out);
		else if (type == EXT_ECH)
			out->ech = true;
	}
	return r;
}

/* Whether a record header's three fixed bytes can be right so far. */
static bool record_plausible(const uint8_t *p, size_t n)
{
	return p[0] == RECORD_HANDSHAKE && (n < 2 || p[1] == 3) && (n < 3 || p[2] <= 4);
}

int client_hello_parse(const uint8_t *p, size_t n, struct client_hello *out)
{
	uint8_t msg[4 + CLIENT_HELLO_MAX];
	size_t have = 0, want = 4, at = 0, declared = 0;

	memset(out, 0, sizeof(*out));
	while (have < want) {
		size_t len, part;

		if (at >= n)
			return 0;
		if (!record_plausible(p + at, n - at))
			return -EPROTO;
		if (n - at < 5)
			return 0;
		len = (size_t)p[at + 3] << 8 | p[at + 4];
		if (len == 0 || len > RECORD_MAX)
			return -EPROTO;
		at += 5;
		declared += len;
		part = len < n - at ? len : n - at;
		if (part > sizeof(msg) - have)
			part = sizeof(msg) - have;
		memcpy(msg + have, p + at, part);
		have += part;
		at += len;
		if (have >= 4) {
			if (msg[0] != HANDSHAKE_CLIENT_HELLO)
				return -EPROTO;
			want = 4 + ((size_t)msg[1] << 16 | (size_t)msg[2] << 8 | msg[3]);
			if (want > sizeof(msg))
				return -EPROTO;
		}
	}
	/* A hello is alone in its records, whether the rest has come yet or not. */
	if (declared != want)
		return -EPROTO;
	return read_hello((struct span){ msg + 4, want - 4 }, out) < 0 ? -EPROTO : 1;
}
