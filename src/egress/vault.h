/*
 * Secrets at rest and in memory. The key lives in a file of its own (0600), outside the store that
 * keeps what it seals; values in clear live in locked memory that is left out of core files and
 * wiped when freed (OpenSSL's secure heap).
 */
#ifndef CLOCHE_EGRESS_VAULT_H
#define CLOCHE_EGRESS_VAULT_H

#include <stddef.h>

#include "base/cleanup.h"
#include "proto/egress.h"

struct buf;
struct err;
struct vault;

#define VAULT_VALUE_MAX 8192

struct vault_value {
	char *p; /* NUL-terminated, in the secure heap */
	size_t n;
};

/* Opens the key file, or makes it with a new key. */
int vault_open(const char *key_path, struct vault **out, struct err *e);
void vault_free(struct vault *v); /* NULL-safe */

/*
 * Appends the sealed form (AES-256-GCM, base64) of value[n] to out. It opens only under the same
 * id, so one secret's sealed form cannot be passed off as another's.
 */
int vault_seal(const struct vault *v, const char *id, const char *value, size_t n, struct buf *out,
	       struct err *e);
int vault_unseal(const struct vault *v, const char *id, const char *sealed, struct vault_value *out,
		 struct err *e);
void vault_value_free(struct vault_value *val);

/* What stands for secret `id` in `scope` (a sandbox's id): the same after every restart. */
int vault_placeholder(const struct vault *v, const char *scope, const char *id,
		      char out[EGRESS_PLACEHOLDER_LEN + 1], struct err *e);

#endif
