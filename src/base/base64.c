/* Table driven, three bytes to four characters. Decoding is strict: one text for each value. */
#include "base/base64.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>

#include "base/buf.h"

static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

int base64_encode(struct buf *b, const void *p, size_t n)
{
	const uint8_t *s = p;

	if (n > SIZE_MAX / 2 || buf_reserve(b, n / 3 * 4 + 4) < 0)
		return -ENOMEM;
	for (size_t i = 0; i < n; i += 3) {
		size_t left = n - i;
		uint32_t v = (uint32_t)s[i] << 16 | (uint32_t)(left > 1 ? s[i + 1] : 0) << 8 |
			     (left > 2 ? s[i + 2] : 0);
		char q[4] = { alphabet[v >> 18], alphabet[v >> 12 & 63],
			      left > 1 ? alphabet[v >> 6 & 63] : '=',
			      left > 2 ? alphabet[v & 63] : '=' };

		buf_add(b, q, 4); /* cannot fail: reserved */
	}
	return 0;
}

static int digit(char c)
{
	const char *at = c ? strchr(alphabet, c) : NULL;

	return at ? (int)(at - alphabet) : -1;
}

int base64_decode(struct buf *b, const char *text, size_t n)
{
	size_t before = b->len, pad = 0;

	if (n % 4)
		return -EINVAL;
	if (n && text[n - 1] == '=')
		pad = text[n - 2] == '=' ? 2 : 1;
	if (buf_reserve(b, n / 4 * 3) < 0)
		return -ENOMEM;
	for (size_t i = 0; i < n; i += 4) {
		size_t chars = i + 4 == n ? 4 - pad : 4;
		uint32_t v = 0;
		char out[3];

		for (size_t k = 0; k < 4; k++) {
			int d = k < chars ? digit(text[i + k]) : 0;

			if (d < 0)
				goto bad;
			v = v << 6 | (uint32_t)d;
		}
		if ((chars == 2 && v & 0xffff) || (chars == 3 && v & 0xff))
			goto bad; /* bits that no byte uses */
		out[0] = (char)(v >> 16);
		out[1] = (char)(v >> 8);
		out[2] = (char)v;
		buf_add(b, out, chars - 1);
	}
	return 0;
bad:
	b->len = before;
	if (b->data)
		b->data[before] = '\0';
	return -EINVAL;
}
