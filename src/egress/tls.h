/*
 * TLS towards both sides of a connection whose content is read: as the server that the sandbox
 * asked for, with a leaf of our CA, and as a client that verifies the real server.
 */
#ifndef CLOCHE_EGRESS_TLS_H
#define CLOCHE_EGRESS_TLS_H

#include <openssl/ssl.h>
#include <stdbool.h>

struct client_hello;
struct err;
struct tls;

/*
 * state_dir holds the CA. trust_file: more authorities (PEM) to trust for real servers beside the
 * system's, or NULL.
 */
int tls_new(const char *state_dir, const char *trust_file, struct tls **out, struct err *e);
void tls_free(struct tls *t); /* NULL-safe */

const char *tls_ca_pem(const struct tls *t);

/* A client session on fd to host, offering what the sandbox's client offered. */
int tls_upstream(struct tls *t, int fd, const char *host, const struct client_hello *offered,
		 SSL **out, struct err *e);

/* A server session on fd for host, speaking h2 or HTTP/1.1 as the real server chose. */
int tls_downstream(struct tls *t, int fd, const char *host, bool h2, SSL **out, struct err *e);

/* Whether the finished handshake of an upstream session chose HTTP/2. */
bool tls_is_h2(SSL *ssl);

#endif
