/*
 * One side of a connection whose content is read: a non-blocking socket, with TLS on it or not,
 * and what waits to be written to it.
 */
#ifndef CLOCHE_EGRESS_CHAN_H
#define CLOCHE_EGRESS_CHAN_H

#include <openssl/ssl.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/buf.h"

/* A side that has this much to write is not given more: its peer is not read meanwhile. */
#define CHAN_OUT_HIGH (256u << 10)

struct chan {
	int fd;
	SSL *ssl;	/* NULL: plain */
	struct buf out; /* waits from out_at on */
	size_t out_at;
	bool eof;	 /* the peer has said its last byte */
	bool end;	 /* end our direction once `out` is written */
	bool ended;	 /* …which has happened */
	bool want_write; /* TLS cannot go on before it may write */
	bool want_read;	 /* …read, although it was asked to write */
};

void chan_init(struct chan *c, int fd);
void chan_free(struct chan *c); /* wipes what was not written; the socket stays open */

/* Goes on with a TLS handshake: 1 done, 0 not yet, negative failed. */
int chan_handshake(struct chan *c);

/* Bytes read, 0 at the end, -EAGAIN, or another negative errno. */
ssize_t chan_read(struct chan *c, void *p, size_t n);

/* Writes what waits, and the end after it. 0, also when some must wait; negative on failure. */
int chan_flush(struct chan *c);

size_t chan_waiting(const struct chan *c);

/* The epoll events to wait for; reading: whether more is wanted from this side. */
uint32_t chan_events(const struct chan *c, bool reading);

#endif
