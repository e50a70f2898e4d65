/* One file of an image: its digest, its verified copy, and the memory of having verified it. */
#ifndef CLOCHE_SANDBOX_IMAGE_FILE_H
#define CLOCHE_SANDBOX_IMAGE_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include "sandbox/manifest.h"

struct err;

/* What tells that a file is still the one that was verified. */
struct image_identity {
	uint64_t bytes, inode;
	int64_t mtime_ns;
};

int image_identity_get(int fd, struct image_identity *out, struct err *e);

/* Whether fd has the size and digest of the manifest: "image_corrupt" when not. */
int image_file_verify(int fd, const struct manifest_file *f, struct err *e);

/*
 * Copies from_dir/NAME to to_dir/NAME, which must not exist, without its zero blocks, verifying
 * on the way; id is the copy's. "image_corrupt", "capacity_disk" or "system".
 */
int image_file_import(const struct manifest_file *f, const char *from_dir, const char *to_dir,
		      struct image_identity *id, struct err *e);

/*
 * The record of a verification: whether path says that files of these identities had the digests
 * of m; and writing one. ids is an array of MANIFEST_PARTS, zero where m has no such part.
 */
bool image_verified_read(const char *path, const struct manifest *m,
			 const struct image_identity *ids);
int image_verified_write(const char *path, const struct manifest *m,
			 const struct image_identity *ids, struct err *e);

#endif
