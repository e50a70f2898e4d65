/*
 * SHA-256 (FIPS 180-4), for programs that link nothing else: the agent in the guest. A context is
 * plain data and needs no release.
 */
#ifndef CLOCHE_BASE_SHA256_H
#define CLOCHE_BASE_SHA256_H

#include <stddef.h>
#include <stdint.h>

#define SHA256_LEN 32
#define SHA256_HEX_LEN 65 /* 64 lower-case digits and NUL */

struct sha256 {
	uint32_t h[8];
	uint64_t bytes;	   /* taken so far */
	uint8_t block[64]; /* the bytes of an unfinished block */
};

void sha256_init(struct sha256 *s);
void sha256_add(struct sha256 *s, const void *p, size_t n);

/* Finishes: s needs sha256_init() before it is used again. */
void sha256_end(struct sha256 *s, uint8_t out[SHA256_LEN]);
void sha256_end_hex(struct sha256 *s, char out[SHA256_HEX_LEN]);

#endif
