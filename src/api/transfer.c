/*
 * The bytes of files, in both directions without ever holding a whole file.
 *
 * The digest of what was read is known only at its end. A small file is read before it is
 * answered and has the digest in a header; a larger one is sent in chunks with the digest in the
 * trailer. Either way a transfer that breaks in the middle cannot look complete.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "api/check.h"
#include "api/handlers.h"
#include "api/range.h"
#include "api/request.h"
#include "base/log.h"
#include "base/str.h"
#include "sandbox/agent_conn.h"

#define STEP_MS 60000	   /* for the sandbox to give or take a piece */
#define SMALL (256u << 10) /* bytes that are read before they are answered */
#define DIGEST "X-Content-Sha256"

/* ---- down ---- */

struct download {
	struct agent_conn *agent;
	struct buf head;	       /* what was read before the answer began */
	struct MHD_Response *response; /* for the trailer; libmicrohttpd's while it reads */
	const char *piece;	       /* what the agent gave and was not yet sent */
	size_t n;
	char request_id[ID_LEN];
};

static ssize_t download_read(void *ctx, char *p, size_t max)
{
	struct download *d = ctx;
	struct err e = { 0 };
	const void *data;
	int rc = 0;

	if (d->n == 0) {
		rc = agent_read(d->agent, &data, &d->n, STEP_MS, &e);
		d->piece = data;
	}
	if (rc < 0) {
		log_event(LOG_WARN, "a download broke off", "code", e.code, "message", e.msg,
			  "requestId", d->request_id, NULL);
		return -1;
	}
	if (d->n == 0)
		MHD_add_response_footer(d->response, DIGEST, agent_read_sha256(d->agent));
	if (max > d->n)
		max = d->n;
	if (max)
		memcpy(p, d->piece, max);
	d->piece += max;
	d->n -= max;
	return (ssize_t)max;
}

static void download_free(void *ctx)
{
	struct download *d = ctx;

	agent_free(d->agent);
	buf_free(&d->head);
	free(d);
}

static const struct stream_ops download_ops = { download_read, download_free };

/* c is taken over, and what was read of it already. */
static int answer_stream(struct request *r, int status, struct agent_conn *c, struct buf *head,
			 struct err *e)
{
	struct download *d = calloc(1, sizeof(*d));
	int rc;

	if (!d) {
		agent_free(c);
		return err_errno(e, ENOMEM, "send a file");
	}
	d->agent = c;
	d->head = *head;
	*head = (struct buf){ 0 };
	d->piece = d->head.data;
	d->n = d->head.len;
	memcpy(d->request_id, r->id, sizeof(d->request_id));
	rc = request_stream(r, status, "application/octet-stream", MHD_SIZE_UNKNOWN, &download_ops,
			    d, e);
	if (rc)
		return rc;
	d->response = r->response;
	return request_header(r, "Trailer", DIGEST, e);
}

/* c is taken over. A file may be longer than its size said, such as one of /proc. */
static int answer_file(struct request *r, int status, struct agent_conn *c, uint64_t announced,
		       struct err *e)
{
	_cleanup_agent_conn_ struct agent_conn *owned = c;
	_cleanup_buf_ struct buf head = { 0 };
	const void *data;
	size_t n = announced > SMALL ? 0 : 1;

	while (n && head.len <= SMALL) {
		int rc = agent_read(c, &data, &n, STEP_MS, e);

		if (rc < 0)
			return rc;
		if (buf_add(&head, data, n))
			return err_errno(e, ENOMEM, "read a file");
	}
	if (announced > SMALL || n)
		return answer_stream(r, status, steal_ptr(owned), &head, e);
	return request_bytes(r, status, &head, e)
		       ?: request_header(r, DIGEST, agent_read_sha256(c), e);
}

static json_t *read_arguments(struct request *r)
{
	json_t *o = json_pack("{s:s}", "path", json_get_str(r->query, "path", ""));
	const char *user = json_get_str(r->query, "user", NULL);

	if (user)
		json_object_set_new(o, "user", json_string(user));
	return o;
}

/* Turns a Range header into offset and length: 206 or 200, or negative. */
static int take_range(struct request *r, json_t *arguments, uint64_t size, struct err *e)
{
	uint64_t offset = 0, length = 0;
	char text[96];

	switch (range_parse(request_in(r, "Range"), size, &offset, &length)) {
	case RANGE_WHOLE:
		return 200;
	case RANGE_IMPOSSIBLE:
		snprintf(text, sizeof(text), "bytes */%llu", (unsigned long long)size);
		r->details = json_pack("{s:I}", "size", (json_int_t)size);
		if (request_header(r, "Content-Range", text, e))
			return -ENOMEM;
		return err_set(e, "range_not_satisfiable", EINVAL, "the file has %llu bytes",
			       (unsigned long long)size);
	default:
		break;
	}
	snprintf(text, sizeof(text), "bytes %llu-%llu/%llu", (unsigned long long)offset,
		 (unsigned long long)(offset + length - 1), (unsigned long long)size);
	json_object_set_new(arguments, "offset", json_integer((json_int_t)offset));
	json_object_set_new(arguments, "length", json_integer((json_int_t)length));
	return request_header(r, "Content-Range", text, e) ? -ENOMEM : 206;
}

/* The size a Range is about; the file is looked at first, since the agent wants numbers. */
static int stat_size(struct request *r, const json_t *arguments, uint64_t *size, struct err *e)
{
	_cleanup_json_ json_t *reply = NULL;
	int rc = sandbox_agent_call(r, "file.stat", arguments, &reply, e);

	*size = (uint64_t)json_get_int(reply, "size", 0);
	return rc;
}

int file_get(struct request *r, struct err *e)
{
	_cleanup_json_ json_t *arguments = NULL, *reply = NULL;
	_cleanup_agent_conn_ struct agent_conn *c = NULL;
	int status = 200, rc;
	uint64_t size = 0;
	char text[24];

	check_path(r, "path", json_get_str(r->query, "path", NULL));
	if (request_check_problems(r, e))
		return -EINVAL;
	arguments = read_arguments(r);
	if (request_in(r, "Range")) {
		rc = stat_size(r, arguments, &size, e);
		status = rc < 0 ? rc : take_range(r, arguments, size, e);
		if (status < 0)
			return status;
	}
	rc = sandbox_agent(r, "file.read", arguments, &c, e);
	if (rc == 0)
		rc = agent_reply(c, &reply, AGENT_ANSWER_MS, e);
	if (rc < 0)
		return rc;
	size = (uint64_t)json_get_int(reply, "size", 0);
	snprintf(text, sizeof(text), "%llu", (unsigned long long)size);
	if (request_header(r, "X-File-Size", text, e) ||
	    request_header(r, "Accept-Ranges", "bytes", e))
		return -ENOMEM;
	return answer_file(r, status, steal_ptr(c),
			   (uint64_t)json_get_int(arguments, "length", (int64_t)size), e);
}

/* ---- up ---- */

static void upload_free(void *upload)
{
	agent_free(upload);
}

static int want_digest(struct request *r, const char **digest, struct err *e)
{
	*digest = request_in(r, DIGEST);
	if (*digest && (strlen(*digest) != 64 || strspn(*digest, "0123456789abcdefABCDEF") != 64))
		return err_set(e, "header_invalid", EINVAL, DIGEST " must be 64 hex digits");
	return 0;
}

static int put_begin(struct request *r, struct err *e)
{
	const char *length = request_in(r, "Content-Length"), *digest;
	_cleanup_json_ json_t *arguments = read_arguments(r);
	struct agent_conn *c = NULL;
	int64_t n;
	int mode, rc;

	check_path(r, "path", json_get_str(r->query, "path", NULL));
	mode = check_mode(r, "mode", json_get_str(r->query, "mode", NULL));
	if (request_check_problems(r, e) || want_digest(r, &digest, e))
		return -EINVAL;
	if (mode >= 0)
		json_object_set_new(arguments, "mode", json_integer(mode));
	if (length && str_to_int(length, 0, INT64_MAX, &n) == 0)
		json_object_set_new(arguments, "size", json_integer(n));
	if (json_get_bool(r->query, "makeParents", false))
		json_object_set_new(arguments, "makeParents", json_true());
	rc = sandbox_agent(r, "file.write", arguments, &c, e);
	r->upload = c;
	r->upload_free = upload_free;
	return rc;
}

static int put_data(struct request *r, const void *p, size_t n, struct err *e)
{
	return agent_write(r->upload, p, n, STEP_MS, e);
}

const struct upload_ops file_upload = { put_begin, put_data };

int file_put(struct request *r, struct err *e)
{
	_cleanup_json_ json_t *reply = NULL;
	const char *digest;
	int rc = want_digest(r, &digest, e);

	if (rc == 0)
		rc = agent_write_end(r->upload, digest, &reply, STEP_MS, e);
	if (rc < 0)
		return rc;
	return request_json(r, 200, file_stat_json(reply), e)
		       ?: request_header(r, DIGEST, agent_read_sha256(r->upload), e);
}
