/*
 * The API client: JSON calls, NDJSON streams, file bodies. One client is one keep-alive connection
 * and is used by one thread. Paths begin with "/"; their variable parts must already be escaped
 * (http_escape()).
 *
 * Failures fill e with the API's own message and fix; http_failure() has the rest. Code
 * "unreachable" means that no answer came at all, "api_error" that the API refused, "broken" that
 * an answer began and did not end, "interrupted" that the wake function stopped it.
 */
#ifndef CLOCHE_CLI_HTTP_H
#define CLOCHE_CLI_HTTP_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct buf;
struct err;
struct http;

struct http_failure {
	long status;	     /* 0: no answer */
	char code[64];	     /* the API's error code, "" when none */
	char request_id[64]; /* "" when none */
	json_t *error;	     /* the API's error object or NULL; the client's */
};

int http_new(const char *url, const char *key, struct http **out, struct err *e);
void http_free(struct http *h); /* NULL-safe */

/* A second client of the same daemon, with its own connection and no wake function. */
int http_clone(const struct http *h, struct http **out, struct err *e);

const struct http_failure *http_failure(const struct http *h);

/* While a call waits, fn runs when fd is readable; a negative result ends the call. fd -1: off. */
typedef int (*http_wake_fn)(void *ctx);
void http_set_wake(struct http *h, int fd, http_wake_fn fn, void *ctx);

/* The most seconds a call may take in all; 0 (the default) means no limit. */
void http_set_timeout(struct http *h, long seconds);

/* One JSON call. body may be NULL; *out (may be NULL) is the caller's, JSON null for no body. */
int http_json(struct http *h, const char *method, const char *path, const json_t *body,
	      json_t **out, struct err *e);

/* Each line of an NDJSON answer; a negative result ends the call and is its result. */
typedef int (*http_line_fn)(void *ctx, const json_t *line, struct err *e);
int http_stream(struct http *h, const char *method, const char *path, const json_t *body,
		http_line_fn fn, void *ctx, struct err *e);

/* GET of raw bytes; a negative result of fn ends the call. */
typedef int (*http_data_fn)(void *ctx, const void *p, size_t n, struct err *e);
int http_download(struct http *h, const char *path, http_data_fn fn, void *ctx, struct err *e);

/* POST of n raw bytes. */
int http_post_bytes(struct http *h, const char *path, const void *p, size_t n, struct err *e);

/* PUT of fd from its current position, size bytes (-1: until its end, chunked). */
int http_upload(struct http *h, const char *path, int fd, off_t size, json_t **out, struct err *e);

/* Appends s percent-encoded as one path segment or query value. */
int http_escape(struct buf *b, const char *s);

#endif
