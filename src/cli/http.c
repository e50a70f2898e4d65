/*
 * libcurl's multi interface with one transfer at a time: the wait is ours, so a signal descriptor
 * can be served while an answer streams. An answer of status >= 400 is collected as an error
 * object whatever the caller wanted; other answers go to the sink of the call. curl's default
 * proxy variables are not honoured: the key must not travel to a proxy by accident.
 *
 * A stream counts as whole only when HTTP says so (curl's own check of chunked and
 * content-length framing); whether the *content* was whole is the caller's to know.
 */
#include "cli/http.h"

#include <curl/curl.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/json.h"

#define ERROR_BODY_MAX (256u << 10)
#define JSON_BODY_MAX (64u << 20)
#define LINE_MAX_BYTES ((size_t)16 << 20)
#define CONNECT_TIMEOUT_S 10L

struct http {
	CURLM *multi;
	CURL *easy;
	char *url;
	char *key;
	long timeout_s;
	int wake_fd;
	http_wake_fn wake;
	void *wake_ctx;
	struct http_failure failure;
};

/* One transfer: where its bytes go and what stopped it. */
struct call {
	struct http *h;
	struct buf body; /* JSON answers and errors */
	size_t body_max;
	http_line_fn line; /* NDJSON */
	http_data_fn data; /* raw */
	void *ctx;
	struct err *e;
	int stopped; /* negative once a callback ended the call */
	int upload_fd;
	bool began; /* a success status came */
};

static void failure_clear(struct http *h)
{
	json_decref(h->failure.error);
	h->failure = (struct http_failure){ 0 };
}

const struct http_failure *http_failure(const struct http *h)
{
	return &h->failure;
}

void http_set_wake(struct http *h, int fd, http_wake_fn fn, void *ctx)
{
	h->wake_fd = fd;
	h->wake = fn;
	h->wake_ctx = ctx;
}

void http_set_timeout(struct http *h, long seconds)
{
	h->timeout_s = seconds;
}

int http_new(const char *url, const char *key, struct http **out, struct err *e)
{
	struct http *h = calloc(1, sizeof(*h));

	if (!h || curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
		free(h);
		return err_errno(e, ENOMEM, "start the HTTP client");
	}
	h->wake_fd = -1;
	h->url = strdup(url);
	h->key = key ? strdup(key) : NULL;
	h->easy = curl_easy_init();
	h->multi = curl_multi_init();
	if (!h->url || (key && !h->key) || !h->easy || !h->multi) {
		http_free(h);
		return err_errno(e, ENOMEM, "start the HTTP client");
	}
	for (size_t n = strlen(h->url); n && h->url[n - 1] == '/'; n--)
		h->url[n - 1] = '\0';
	*out = h;
	return 0;
}

int http_clone(const struct http *h, struct http **out, struct err *e)
{
	return http_new(h->url, h->key, out, e);
}

void http_free(struct http *h)
{
	if (!h)
		return;
	failure_clear(h);
	if (h->multi)
		curl_multi_cleanup(h->multi);
	if (h->easy)
		curl_easy_cleanup(h->easy);
	curl_global_cleanup();
	free(h->url);
	if (h->key)
		explicit_bzero(h->key, strlen(h->key));
	free(h->key);
	free(h);
}

int http_escape(struct buf *b, const char *s)
{
	static const char safe[] =
		"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";
	int ret = 0;

	for (; *s && ret == 0; s++)
		ret = strchr(safe, *s) ? buf_add(b, s, 1)
				       : buf_printf(b, "%%%02X", (unsigned char)*s);
	return ret;
}

/* An answer may hold NUL (a command's output does), so this is not json_parse(). */
static json_t *answer_json(const char *text, size_t len, struct err *e)
{
	json_error_t je;
	json_t *v = json_loadb(text, len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &je);

	if (!v)
		err_set(e, "broken", EPROTO, "line %d, column %d: %s", je.line, je.column, je.text);
	return v;
}

/* Hands every whole line of the buffer to the caller. */
static int lines_take(struct call *c)
{
	char *nl;

	while (c->body.len && (nl = memchr(c->body.data, '\n', c->body.len))) {
		size_t len = (size_t)(nl - c->body.data);
		_cleanup_json_ json_t *v = NULL;
		int ret;

		if (len) {
			v = answer_json(c->body.data, len, c->e);
			if (!v)
				return err_wrap(c->e, "the answer is not NDJSON");
			ret = c->line(c->ctx, v, c->e);
			if (ret < 0)
				return ret;
		}
		buf_consume(&c->body, len + 1);
	}
	if (c->body.len > LINE_MAX_BYTES)
		return err_set(c->e, "broken", EPROTO, "the answer has a line beyond %zu bytes",
			       LINE_MAX_BYTES);
	return 0;
}

static size_t on_data(char *p, size_t size, size_t n, void *ctx)
{
	struct call *c = ctx;
	long status = 0;

	n *= size;
	if (c->stopped)
		return 0;
	curl_easy_getinfo(c->h->easy, CURLINFO_RESPONSE_CODE, &status);
	c->began = status >= 200 && status < 300;
	if (c->began && c->data) {
		c->stopped = c->data(c->ctx, p, n, c->e);
		return c->stopped ? 0 : n;
	}
	if (c->body.len + n > (c->began ? c->body_max : ERROR_BODY_MAX)) {
		c->stopped = err_set(c->e, "broken", EFBIG, "the answer is too large");
		return 0;
	}
	c->stopped = buf_add(&c->body, p, n);
	if (c->stopped == 0 && c->began && c->line)
		c->stopped = lines_take(c);
	return c->stopped ? 0 : n;
}

static size_t on_header(char *p, size_t size, size_t n, void *ctx)
{
	static const char name[] = "x-request-id:";
	struct call *c = ctx;
	size_t len = size * n;

	if (len > sizeof(name) && strncasecmp(p, name, sizeof(name) - 1) == 0) {
		size_t from = sizeof(name) - 1;

		while (from < len && (p[from] == ' ' || p[from] == '\t'))
			from++;
		while (len > from && (unsigned char)p[len - 1] <= ' ')
			len--;
		snprintf(c->h->failure.request_id, sizeof(c->h->failure.request_id), "%.*s",
			 (int)(len - from), p + from);
	}
	return size * n;
}

static size_t on_upload(char *p, size_t size, size_t n, void *ctx)
{
	struct call *c = ctx;
	ssize_t got;

	do
		got = read(c->upload_fd, p, size * n);
	while (got < 0 && errno == EINTR);
	if (got >= 0)
		return (size_t)got;
	c->stopped = err_errno(c->e, errno, "read the file to upload");
	return CURL_READFUNC_ABORT;
}

/* Waits for the transfer's end. Returns curl's verdict in *code, or -EINTR when woken to stop. */
static int transfer(struct call *c, CURLcode *code)
{
	struct http *h = c->h;
	int running = 1, left, ret = 0;
	CURLMsg *msg;

	if (curl_multi_add_handle(h->multi, h->easy) != CURLM_OK)
		return err_errno(c->e, ENOMEM, "start the request");
	for (;;) {
		struct curl_waitfd w = { .fd = h->wake_fd, .events = CURL_WAIT_POLLIN };

		if (curl_multi_perform(h->multi, &running) != CURLM_OK) {
			ret = err_set(c->e, "broken", EIO, "the request failed inside libcurl");
			break;
		}
		if (!running)
			break;
		curl_multi_poll(h->multi, &w, h->wake_fd >= 0, 1000, NULL);
		if (h->wake_fd >= 0 && w.revents && (ret = h->wake(h->wake_ctx)) < 0) {
			err_set(c->e, "interrupted", EINTR, "interrupted");
			break;
		}
	}
	*code = CURLE_ABORTED_BY_CALLBACK;
	while ((msg = curl_multi_info_read(h->multi, &left)))
		if (msg->msg == CURLMSG_DONE)
			*code = msg->data.result;
	curl_multi_remove_handle(h->multi, h->easy);
	return ret;
}

/* The API's error object in the collected body, or what can be said without one. */
static int refusal(struct call *c, long status)
{
	struct http_failure *f = &c->h->failure;
	_cleanup_json_ json_t *v = NULL;
	json_t *err;

	f->status = status;
	if (c->body.len)
		v = answer_json(c->body.data, c->body.len, NULL);
	err = json_object_get(v, "error");
	if (!json_get_str(err, "message", NULL)) {
		err_set(c->e, "api_error", EIO, "HTTP status %ld without an error object", status);
		err_fix(c->e, "Is %s really a Cloche daemon?", c->h->url);
		return -EIO;
	}
	f->error = json_incref(err);
	snprintf(f->code, sizeof(f->code), "%s", json_get_str(err, "code", ""));
	snprintf(f->request_id, sizeof(f->request_id), "%s",
		 json_get_str(err, "requestId", f->request_id));
	err_set(c->e, "api_error", EIO, "%s", json_get_str(err, "message", ""));
	err_fix(c->e, "%s", json_get_str(err, "fix", ""));
	return -EIO;
}

/* curl's failure as ours. */
static int transport_error(struct call *c, CURLcode code)
{
	const struct http *h = c->h;

	if (c->stopped)
		return c->stopped;
	if (code == CURLE_COULDNT_CONNECT || code == CURLE_COULDNT_RESOLVE_HOST) {
		err_set(c->e, "unreachable", ECONNREFUSED, "cannot reach %s: %s", h->url,
			curl_easy_strerror(code));
		err_fix(c->e, "Start the daemon with 'cloche up', or name another with --url.");
		return -ECONNREFUSED;
	}
	if (code == CURLE_URL_MALFORMAT || code == CURLE_UNSUPPORTED_PROTOCOL)
		return err_set(c->e, "unreachable", EINVAL, "%s is not an HTTP address", h->url);
	if (code == CURLE_OPERATION_TIMEDOUT)
		return err_set(c->e, c->began ? "broken" : "unreachable", ETIMEDOUT,
			       "%s did not answer in time", h->url);
	return err_set(c->e, "broken", EIO, "the connection to %s broke: %s", h->url,
		       curl_easy_strerror(code));
}

static int perform(struct call *c)
{
	CURLcode code;
	long status = 0;
	int ret = transfer(c, &code);

	if (ret < 0)
		return ret;
	if (code != CURLE_OK)
		return transport_error(c, code);
	curl_easy_getinfo(c->h->easy, CURLINFO_RESPONSE_CODE, &status);
	if (status < 200 || status >= 300)
		return refusal(c, status);
	return 0;
}

/* Options every call shares. *headers and *url are the caller's to free after the call. */
static int prepare(struct call *c, const char *method, const char *path, const char *accept,
		   const char *type, struct curl_slist **headers)
{
	struct http *h = c->h;
	_cleanup_buf_ struct buf url = { 0 }, line = { 0 };
	struct curl_slist *l = NULL;
	int ret;

	failure_clear(h);
	curl_easy_reset(h->easy);
	ret = buf_printf(&url, "%s%s", h->url, path);
	ret = ret ?: buf_printf(&line, "Accept: %s", accept);
	l = ret ? NULL : curl_slist_append(NULL, line.data);
	if (h->key && l) {
		buf_clear(&line);
		ret = buf_printf(&line, "Authorization: Bearer %s", h->key);
		curl_slist_append(l, ret ? "" : line.data);
		explicit_bzero(line.data, line.len);
	}
	if (!l || ret)
		return err_errno(c->e, ENOMEM, "prepare the request");
	buf_clear(&line);
	if (type && buf_printf(&line, "Content-Type: %s", type) == 0)
		curl_slist_append(l, line.data);
	curl_slist_append(l, "Expect:");
	*headers = l;
	curl_easy_setopt(h->easy, CURLOPT_URL, url.data);
	curl_easy_setopt(h->easy, CURLOPT_PROTOCOLS_STR, "http,https");
	curl_easy_setopt(h->easy, CURLOPT_PROXY, "");
	curl_easy_setopt(h->easy, CURLOPT_CUSTOMREQUEST, method);
	curl_easy_setopt(h->easy, CURLOPT_HTTPHEADER, l);
	curl_easy_setopt(h->easy, CURLOPT_NOSIGNAL, 1L);
	curl_easy_setopt(h->easy, CURLOPT_CONNECTTIMEOUT, CONNECT_TIMEOUT_S);
	curl_easy_setopt(h->easy, CURLOPT_TIMEOUT, h->timeout_s);
	curl_easy_setopt(h->easy, CURLOPT_TCP_KEEPALIVE, 1L);
	curl_easy_setopt(h->easy, CURLOPT_USERAGENT, "cloche/" CLOCHE_VERSION);
	curl_easy_setopt(h->easy, CURLOPT_WRITEFUNCTION, on_data);
	curl_easy_setopt(h->easy, CURLOPT_WRITEDATA, c);
	curl_easy_setopt(h->easy, CURLOPT_HEADERFUNCTION, on_header);
	curl_easy_setopt(h->easy, CURLOPT_HEADERDATA, c);
	return 0;
}

/* A call whose body, if any, is JSON. */
static int call_json(struct call *c, const char *method, const char *path, const char *accept,
		     const json_t *body)
{
	_cleanup_free_ char *text = body ? json_dumps(body, JSON_COMPACT) : NULL;
	struct curl_slist *headers = NULL;
	int ret;

	if (body && !text)
		return err_errno(c->e, ENOMEM, "write the request");
	ret = prepare(c, method, path, accept, text ? "application/json" : NULL, &headers);
	if (ret == 0) {
		if (text || strcmp(method, "POST") == 0) {
			curl_easy_setopt(c->h->easy, CURLOPT_POSTFIELDS, text ? text : "");
			curl_easy_setopt(c->h->easy, CURLOPT_POSTFIELDSIZE_LARGE,
					 (curl_off_t)(text ? strlen(text) : 0));
		}
		ret = perform(c);
	}
	curl_slist_free_all(headers);
	return ret;
}

static int answer_parse(struct call *c, json_t **out)
{
	json_t *v = c->body.len ? answer_json(c->body.data, c->body.len, c->e) : json_null();

	if (!v)
		return err_wrap(c->e, "the answer is not JSON");
	if (out)
		*out = v;
	else
		json_decref(v);
	return 0;
}

int http_json(struct http *h, const char *method, const char *path, const json_t *body,
	      json_t **out, struct err *e)
{
	struct call c = { .h = h, .body_max = JSON_BODY_MAX, .e = e };
	int ret = call_json(&c, method, path, "application/json", body);

	if (ret == 0)
		ret = answer_parse(&c, out);
	buf_free(&c.body);
	return ret;
}

int http_stream(struct http *h, const char *method, const char *path, const json_t *body,
		http_line_fn fn, void *ctx, struct err *e)
{
	struct call c = { .h = h, .body_max = 2 * LINE_MAX_BYTES, .line = fn, .ctx = ctx, .e = e };
	int ret = call_json(&c, method, path, "application/x-ndjson", body);

	buf_free(&c.body);
	return ret;
}

int http_download(struct http *h, const char *path, http_data_fn fn, void *ctx, struct err *e)
{
	struct call c = { .h = h, .data = fn, .ctx = ctx, .e = e };
	int ret = call_json(&c, "GET", path, "application/octet-stream", NULL);

	buf_free(&c.body);
	return ret;
}

int http_post_bytes(struct http *h, const char *path, const void *p, size_t n, struct err *e)
{
	struct call c = { .h = h, .body_max = JSON_BODY_MAX, .e = e };
	struct curl_slist *headers = NULL;
	int ret =
		prepare(&c, "POST", path, "application/json", "application/octet-stream", &headers);

	if (ret == 0) {
		curl_easy_setopt(h->easy, CURLOPT_POSTFIELDS, p);
		curl_easy_setopt(h->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)n);
		ret = perform(&c);
	}
	curl_slist_free_all(headers);
	buf_free(&c.body);
	return ret;
}

int http_upload(struct http *h, const char *path, int fd, off_t size, json_t **out, struct err *e)
{
	struct call c = { .h = h, .body_max = JSON_BODY_MAX, .e = e, .upload_fd = fd };
	struct curl_slist *headers = NULL;
	int ret =
		prepare(&c, "PUT", path, "application/json", "application/octet-stream", &headers);

	if (ret == 0) {
		curl_easy_setopt(h->easy, CURLOPT_UPLOAD, 1L);
		curl_easy_setopt(h->easy, CURLOPT_READFUNCTION, on_upload);
		curl_easy_setopt(h->easy, CURLOPT_READDATA, &c);
		curl_easy_setopt(h->easy, CURLOPT_INFILESIZE_LARGE, (curl_off_t)size);
		ret = perform(&c);
	}
	if (ret == 0)
		ret = answer_parse(&c, out);
	curl_slist_free_all(headers);
	buf_free(&c.body);
	return ret;
}
