/*
 * What waits may hold secrets, so it is wiped as it goes: after each write the written part is
 * cleared, and the buffer's memory is cleared before it is freed.
 */
#include "egress/chan.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

void chan_init(struct chan *c, int fd)
{
	*c = (struct chan){ .fd = fd };
}

void chan_free(struct chan *c)
{
	SSL_free(c->ssl);
	c->ssl = NULL;
	if (c->out.data)
		OPENSSL_cleanse(c->out.data, c->out.cap);
	buf_free(&c->out);
}

/* Reads an SSL function's outcome: -EAGAIN with want_* set, 0 for the end, else -EIO. */
static int ssl_outcome(struct chan *c, int r)
{
	int error = SSL_get_error(c->ssl, r);

	ERR_clear_error();
	if (error == SSL_ERROR_WANT_WRITE)
		c->want_write = true;
	else if (error == SSL_ERROR_WANT_READ)
		c->want_read = true;
	else
		return error == SSL_ERROR_ZERO_RETURN ? 0 : -EIO;
	return -EAGAIN;
}

int chan_handshake(struct chan *c)
{
	int r;

	c->want_read = c->want_write = false;
	ERR_clear_error();
	r = SSL_do_handshake(c->ssl);
	if (r == 1)
		return 1;
	r = ssl_outcome(c, r);
	return r == -EAGAIN ? 0 : -EIO;
}

ssize_t chan_read(struct chan *c, void *p, size_t n)
{
	ssize_t got;

	if (c->eof)
		return -EAGAIN;
	if (c->ssl) {
		int r;

		ERR_clear_error();
		r = SSL_read(c->ssl, p, (int)n);
		got = r > 0 ? r : ssl_outcome(c, r);
		c->want_read = false; /* reading is what this side waits for anyway */
	} else {
		got = recv(c->fd, p, n, MSG_DONTWAIT);
		if (got < 0)
			got = -errno;
	}
	if (got == 0)
		c->eof = true;
	return got;
}

/* Ends our direction: close_notify, then FIN. */
static int end(struct chan *c)
{
	if (c->ssl) {
		int r = SSL_shutdown(c->ssl);

		if (r < 0 && ssl_outcome(c, r) == -EAGAIN && c->want_write)
			return 0;
	}
	c->want_read = c->want_write = false;
	c->ended = true;
	return shutdown(c->fd, SHUT_WR) < 0 && errno != ENOTCONN ? -errno : 0;
}

static ssize_t write_some(struct chan *c, const char *p, size_t n)
{
	ssize_t r;

	if (c->ssl) {
		int w;

		ERR_clear_error();
		w = SSL_write(c->ssl, p, (int)(n > 1 << 20 ? 1 << 20 : n));
		if (w > 0)
			return w;
		r = ssl_outcome(c, w);
		return r == 0 ? -EPIPE : r;
	}
	r = send(c->fd, p, n, MSG_DONTWAIT | MSG_NOSIGNAL);
	return r < 0 ? -errno : r;
}

int chan_flush(struct chan *c)
{
	c->want_write = c->want_read = false;
	while (chan_waiting(c)) {
		ssize_t n = write_some(c, c->out.data + c->out_at, chan_waiting(c));

		if (n == -EAGAIN) {
			c->want_write |= !c->want_read;
			return 0;
		}
		if (n < 0)
			return (int)n;
		OPENSSL_cleanse(c->out.data + c->out_at, (size_t)n);
		c->out_at += (size_t)n;
	}
	buf_clear(&c->out);
	c->out_at = 0;
	return c->end && !c->ended ? end(c) : 0;
}

size_t chan_waiting(const struct chan *c)
{
	return c->out.len - c->out_at;
}

uint32_t chan_events(const struct chan *c, bool reading)
{
	return ((reading && !c->eof) || c->want_read ? EPOLLIN : 0u) |
	       (c->want_write ? EPOLLOUT : 0u);
}
