/*
 * Folders that appear whole or not at all: filled under a hidden name beside their place, then
 * swapped in.
 */
#ifndef CLOCHE_IMAGE_TREE_H
#define CLOCHE_IMAGE_TREE_H

#include <limits.h>

struct err;

/* Formats a path. One that does not fit becomes "", which every system call refuses. */
void path_printf(char out[PATH_MAX], const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Makes parent/.tag-XXXXXX and writes its path. Parents are made. */
int tree_scratch(const char *parent, const char *tag, char path[PATH_MAX], struct err *e);

/*
 * Removes what earlier calls of tree_scratch(parent, tag) left behind when their process was
 * killed. Only under the lock that those calls were made under.
 */
void tree_sweep(const char *parent, const char *tag);

/* Flushes path and puts it in place of target, which, if it was there, is removed. */
int tree_commit(const char *path, const char *target, struct err *e);

/* Removes a folder with all in it, following no link and leaving mounts alone. Best effort. */
void tree_remove(const char *path);

/* Makes a folder and those above it, mode 0755. */
int tree_mkdirs(const char *path, struct err *e);

/* Copies a file, keeping holes and sharing blocks where the file system can. */
int tree_copy_file(const char *from, const char *to, struct err *e);

/*
 * Takes an exclusive lock on path (made if needed) and returns its descriptor; "busy" at once when
 * another process holds it. Closing it unlocks.
 */
int tree_lock(const char *path, const char *what, struct err *e);

#endif
