/* Copying between this machine and a sandbox: the two directions of `cloche cp`. */
#ifndef CLOCHE_CLI_COPY_H
#define CLOCHE_CLI_COPY_H

#include <jansson.h>
#include <stdint.h>

struct err;
struct http;
struct progress;

struct copy {
	struct http *http;
	const char *sandbox;
	struct progress *progress;
	uint64_t files, skipped;
};

/* One side is here (local), one in the sandbox (remote, absolute). Folders are copied whole. */
int copy_up(struct copy *c, const char *local, const char *remote, struct err *e);
int copy_down(struct copy *c, const char *remote, const char *local, struct err *e);

/* ---- shared by both directions ---- */

/* /v1/sandboxes/{id}/files{tail}?path={path}{query}; the caller frees. NULL without memory. */
char *copy_url(const struct copy *c, const char *tail, const char *path, const char *query);

/* The stat object of a remote path, or NULL with *ret 0 when there is nothing (or *ret negative).
 */
json_t *copy_stat(struct copy *c, const char *path, int *ret, struct err *e);

/* Says on stderr that name is left out, and why. */
void copy_skip(struct copy *c, const char *name, const char *why);

#endif
