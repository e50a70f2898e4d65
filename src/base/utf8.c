/*
 * One character at a time by the table of RFC 3629: the lead byte gives the length and the range
 * of the second byte, which is what excludes overlong forms and surrogates.
 */
#include "base/utf8.h"

#include "base/buf.h"

struct lead {
	unsigned char from, to;	 /* lead bytes */
	unsigned char low, high; /* second byte */
	unsigned char following; /* bytes after the lead */
};

static const struct lead leads[] = {
	{ 0xc2, 0xdf, 0x80, 0xbf, 1 }, { 0xe0, 0xe0, 0xa0, 0xbf, 2 }, { 0xe1, 0xec, 0x80, 0xbf, 2 },
	{ 0xed, 0xed, 0x80, 0x9f, 2 }, { 0xee, 0xef, 0x80, 0xbf, 2 }, { 0xf0, 0xf0, 0x90, 0xbf, 3 },
	{ 0xf1, 0xf3, 0x80, 0xbf, 3 }, { 0xf4, 0xf4, 0x80, 0x8f, 3 },
};

/* Length of the character at p[n], 0 when wrong, -1 when its rest is missing. */
static int character(const unsigned char *p, size_t n)
{
	if (p[0] < 0x80)
		return 1;
	for (size_t i = 0; i < sizeof(leads) / sizeof(leads[0]); i++) {
		const struct lead *l = &leads[i];

		if (p[0] < l->from || p[0] > l->to)
			continue;
		for (size_t k = 1; k <= l->following; k++) {
			if (k == n)
				return -1;
			if (p[k] < (k == 1 ? l->low : 0x80) || p[k] > (k == 1 ? l->high : 0xbf))
				return 0;
		}
		return l->following + 1;
	}
	return 0;
}

size_t utf8_prefix(const void *p, size_t n, bool *cut)
{
	const unsigned char *s = p;
	size_t at = 0;
	int c = 0;

	while (at < n && (c = character(s + at, n - at)) > 0)
		at += (size_t)c;
	if (cut)
		*cut = at < n && c < 0;
	return at;
}

bool utf8_valid(const void *p, size_t n)
{
	return utf8_prefix(p, n, NULL) == n;
}

int utf8_repair(struct buf *out, const void *p, size_t n)
{
	const char *s = p;
	int r = 0;

	while (r == 0 && n) {
		size_t good = utf8_prefix(s, n, NULL);

		r = buf_add(out, s, good);
		if (r == 0 && good < n) {
			r = buf_add(out, "\xef\xbf\xbd", 3);
			good++;
		}
		s += good;
		n -= good;
	}
	return r;
}
