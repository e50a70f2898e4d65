/*
 * Reading the first bytes of a TLS connection without taking them: which server is asked for and
 * which protocols are offered. Bounded: a hello larger than CLIENT_HELLO_MAX is refused.
 */
#ifndef CLOCHE_EGRESS_CLIENT_HELLO_H
#define CLOCHE_EGRESS_CLIENT_HELLO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "egress/hostname.h"

#define CLIENT_HELLO_MAX 16384				/* of the handshake message */
#define CLIENT_HELLO_WIRE_MAX (CLIENT_HELLO_MAX + 4096) /* with record headers */

struct client_hello {
	char sni[HOSTNAME_LEN]; /* normalised; "" when none was sent */
	bool ech;		/* carries an encrypted inner hello, or a grease one */
	bool alpn;		/* sent a list of protocols… */
	bool alpn_h2;		/* …with h2… */
	bool alpn_http1;	/* …with http/1.1 in it */
};

/*
 * Returns 1 when p[n] starts with a whole ClientHello, 0 when more bytes are needed, -EPROTO when
 * it is not one, is malformed, names more than one server or something that is no host name.
 */
int client_hello_parse(const uint8_t *p, size_t n, struct client_hello *out);

#endif
