/*
 * The compression function as the standard writes it, with a rolling 16-word message schedule.
 * Whole blocks are taken straight from the caller's bytes; only the ends pass through s->block.
 */
#include "base/sha256.h"

#include <string.h>

static const uint32_t K[64] = {
	0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4,
	0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe,
	0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f,
	0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7,
	0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc,
	0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
	0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116,
	0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
	0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
	0xc67178f2,
};

static uint32_t ror(uint32_t x, int n)
{
	return x >> n | x << (32 - n);
}

static uint32_t load_be(const uint8_t *p)
{
	return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

/* Word t of the schedule, for t >= 16 computed in place over the oldest of the sixteen. */
static uint32_t schedule(uint32_t w[16], int t)
{
	uint32_t a = w[(t + 1) & 15], b = w[(t + 14) & 15];

	w[t & 15] += (ror(a, 7) ^ ror(a, 18) ^ a >> 3) + w[(t + 9) & 15] +
		     (ror(b, 17) ^ ror(b, 19) ^ b >> 10);
	return w[t & 15];
}

static void compress(uint32_t h[8], const uint8_t *p)
{
	uint32_t w[16], v[8];

	for (int i = 0; i < 16; i++)
		w[i] = load_be(p + 4 * i);
	memcpy(v, h, sizeof(v));
	for (int t = 0; t < 64; t++) {
		uint32_t a = v[0], e = v[4], t1, t2;

		t1 = v[7] + (ror(e, 6) ^ ror(e, 11) ^ ror(e, 25)) + ((e & v[5]) ^ (~e & v[6])) +
		     K[t] + (t < 16 ? w[t] : schedule(w, t));
		t2 = (ror(a, 2) ^ ror(a, 13) ^ ror(a, 22)) +
		     ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));
		memmove(v + 1, v, 7 * sizeof(v[0]));
		v[4] += t1;
		v[0] = t1 + t2;
	}
	for (int i = 0; i < 8; i++)
		h[i] += v[i];
}

void sha256_init(struct sha256 *s)
{
	static const uint32_t start[8] = { 0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
					   0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19 };

	memcpy(s->h, start, sizeof(start));
	s->bytes = 0;
}

void sha256_add(struct sha256 *s, const void *data, size_t n)
{
	const uint8_t *p = data;
	size_t have = s->bytes % 64;

	s->bytes += n;
	if (have) {
		size_t take = n < 64 - have ? n : 64 - have;

		memcpy(s->block + have, p, take);
		p += take;
		n -= take;
		if (have + take < 64)
			return;
		compress(s->h, s->block);
	}
	for (; n >= 64; p += 64, n -= 64)
		compress(s->h, p);
	if (n)
		memcpy(s->block, p, n);
}

void sha256_end(struct sha256 *s, uint8_t out[SHA256_LEN])
{
	static const uint8_t pad[64] = { 0x80 };
	uint64_t bits = s->bytes * 8;
	size_t have = s->bytes % 64;
	uint8_t len[8];

	for (int i = 0; i < 8; i++)
		len[i] = (uint8_t)(bits >> (56 - 8 * i));
	sha256_add(s, pad, have < 56 ? 56 - have : 120 - have);
	sha256_add(s, len, sizeof(len));
	for (int i = 0; i < 32; i++)
		out[i] = (uint8_t)(s->h[i / 4] >> (24 - 8 * (i % 4)));
}

void sha256_end_hex(struct sha256 *s, char out[SHA256_HEX_LEN])
{
	static const char digits[] = "0123456789abcdef";
	uint8_t d[SHA256_LEN];

	sha256_end(s, d);
	for (int i = 0; i < SHA256_LEN; i++) {
		out[2 * i] = digits[d[i] >> 4];
		out[2 * i + 1] = digits[d[i] & 15];
	}
	out[64] = '\0';
}
