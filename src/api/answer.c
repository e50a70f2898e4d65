/*
 * What a handler answers with is kept on the request; the server sends it once the handler has
 * returned and the idempotency record is written.
 */
#include <errno.h>
#include <poll.h>
#include <string.h>

#include "api/request.h"

#define STREAM_BLOCK (64u << 10)

int request_text(struct request *r, int status, const char *type, char *text, struct err *e)
{
	if (!text)
		return err_errno(e, ENOMEM, "make the answer");
	free(r->answer);
	r->answer = text;
	r->status = status;
	return request_header(r, "Content-Type", type, e);
}

int request_json(struct request *r, int status, json_t *value, struct err *e)
{
	_cleanup_json_ json_t *owned = value;

	return request_text(r, status, "application/json",
			    owned ? json_dumps(owned, JSON_COMPACT) : NULL, e);
}

int request_header(struct request *r, const char *name, const char *value, struct err *e)
{
	char *copy = strdup(value);
	size_t i = 0;

	if (!copy)
		return err_errno(e, ENOMEM, "make the answer");
	while (i < r->n_headers && strcasecmp(r->headers[i].name, name) != 0)
		i++;
	if (i == REQUEST_HEADERS_MAX) {
		free(copy);
		return err_set(e, "internal", ENOSPC, "more than REQUEST_HEADERS_MAX headers");
	}
	if (i == r->n_headers)
		r->n_headers++;
	else
		free(r->headers[i].value);
	r->headers[i].name = name;
	r->headers[i].value = copy;
	return 0;
}

const char *request_in(const struct request *r, const char *name)
{
	return MHD_lookup_connection_value(r->conn, MHD_HEADER_KIND, name);
}

int request_bytes(struct request *r, int status, struct buf *b, struct err *e)
{
	size_t n = b->len;
	char *p = buf_steal(b);

	if (p)
		r->response = MHD_create_response_from_buffer(n, p, MHD_RESPMEM_MUST_FREE);
	if (!r->response) {
		free(p);
		return err_errno(e, ENOMEM, "make the answer");
	}
	r->status = status;
	return request_header(r, "Content-Type", "application/octet-stream", e);
}

/* ---- streams ---- */

struct stream {
	const struct stream_ops *ops;
	void *ctx;
	struct api *api;
};

static ssize_t stream_read(void *cls, uint64_t pos, char *p, size_t max)
{
	struct stream *s = cls;
	ssize_t n = s->ops->read(s->ctx, p, max);

	(void)pos;
	if (n == 0)
		return MHD_CONTENT_READER_END_OF_STREAM;
	if (n < 0)
		return MHD_CONTENT_READER_END_WITH_ERROR;
	atomic_fetch_add(&s->api->count.bytes_down, (uint64_t)n);
	return n;
}

static void stream_free(void *cls)
{
	struct stream *s = cls;

	s->ops->free(s->ctx);
	atomic_fetch_sub(&s->api->count.open_streams, 1);
	free(s);
}

int request_stream(struct request *r, int status, const char *type, uint64_t size,
		   const struct stream_ops *ops, void *ctx, struct err *e)
{
	struct stream *s = calloc(1, sizeof(*s));

	if (!s) {
		ops->free(ctx);
		return err_errno(e, ENOMEM, "make the answer");
	}
	*s = (struct stream){ .ops = ops, .ctx = ctx, .api = r->api };
	atomic_fetch_add(&r->api->count.open_streams, 1);
	r->response =
		MHD_create_response_from_callback(size, STREAM_BLOCK, stream_read, s, stream_free);
	if (!r->response) {
		stream_free(s);
		return err_errno(e, ENOMEM, "make the answer");
	}
	r->status = status;
	return request_header(r, "Content-Type", type, e);
}

/* ---- waiting ---- */

enum client_wait client_wait(const struct client *c, int fd, short events, int timeout_ms)
{
	/*
	 * A client that shuts down its sending side counts as gone: that is what a killed client
	 * looks like, and waiting to be sure would leave its command running.
	 */
	struct pollfd p[] = { { .fd = fd, .events = events },
			      { .fd = c->fd, .events = POLLRDHUP },
			      { .fd = c->api->stop_fd, .events = POLLIN } };
	int n;

	do {
		n = poll(p, ARRAY_SIZE(p), timeout_ms);
	} while (n < 0 && errno == EINTR);
	if (p[2].revents || n < 0)
		return WAIT_STOPPING;
	if (p[1].revents)
		return WAIT_GONE;
	return p[0].revents ? WAIT_READY : WAIT_TIMEOUT;
}
