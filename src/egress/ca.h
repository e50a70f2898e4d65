/*
 * The deployment's certificate authority: made once, kept in two files, and trusted by sandboxes.
 * It signs short-lived leaves for hosts that have a secret, and nothing else.
 */
#ifndef CLOCHE_EGRESS_CA_H
#define CLOCHE_EGRESS_CA_H

#include <openssl/x509.h>

struct ca;
struct err;

/* Opens DIR/ca.pem and DIR/ca.key, or makes both. */
int ca_open(const char *dir, struct ca **out, struct err *e);
void ca_free(struct ca *ca); /* NULL-safe */

const char *ca_pem(const struct ca *ca);
X509 *ca_cert(const struct ca *ca);
EVP_PKEY *ca_leaf_key(const struct ca *ca);

/* The leaf for host, from the cache when it is there; borrowed until the next call. */
int ca_leaf(struct ca *ca, const char *host, X509 **out, struct err *e);

#endif
