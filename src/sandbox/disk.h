/* Disk files: private copies that share blocks with their source where the file system can. */
#ifndef CLOCHE_SANDBOX_DISK_H
#define CLOCHE_SANDBOX_DISK_H

#include <stdint.h>

struct err;

/*
 * Makes path (must not exist, 0600) a copy of the file src, then `bytes` long (never shorter than
 * src). A reflink, else a copy that keeps holes. Nothing is left at path on failure.
 */
int disk_copy(int src, const char *path, uint64_t bytes, struct err *e);

/* Bytes that copying src may take: what it has allocated. */
int disk_allocated(int src, uint64_t *bytes, struct err *e);

/* Bytes free for us on the file system of path. */
int disk_free_bytes(const char *path, uint64_t *bytes, struct err *e);

/* Removes a folder and the plain files in it; a missing one is success. */
int disk_remove_dir(const char *path, struct err *e);

#endif
