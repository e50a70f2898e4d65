/*
 * Paths of `cloche cp`. Names that come from a sandbox are hostile: they may try to lead out of the
 * folder that is being written.
 */
#ifndef CLOCHE_CLI_PATH_H
#define CLOCHE_CLI_PATH_H

#include <stdbool.h>
#include <sys/types.h>

struct buf;
struct err;

/* One side of a copy. */
struct place {
	char *sandbox; /* NULL: on this machine */
	char *path;
};

/*
 * "ID:/path" is in a sandbox (a relative path there is below /workspace); anything else, "./a:b"
 * and "-" included, is here. Release with place_free().
 */
int place_parse(const char *arg, struct place *out, struct err *e);
void place_free(struct place *p);

/*
 * Whether rel, a path below some folder, stays below it by its words alone: not empty, not
 * absolute, no empty, "." or ".." component, no component beyond 255 bytes.
 */
bool path_is_inside(const char *rel);

/* The last component of path ("/a/b/" gives "b"); NULL when it has none ("/", "", "a/.."). */
const char *path_last(const char *path, size_t *len);

/* Appends dir, "/" unless there is one, and name. */
int path_join(struct buf *b, const char *dir, const char *name);

/*
 * Opens rel below the folder dirfd without ever following a symbolic link or leaving the folder,
 * whatever has been planted there meanwhile (openat2). flags as open(2), O_CLOEXEC is added.
 * Returns the descriptor or a negative errno.
 */
int path_open_inside(int dirfd, const char *rel, int flags, mode_t mode);

#endif
