/*
 * The images of this host, STATE/images/NAME/{manifest.json,disk.raw,…}, and their import from
 * folders that an image builder or an administrator fills (DIR/NAME/manifest.json, …).
 *
 * Threads: any; whoever wants an image waits while it is imported or verified.
 * Errors: "image_not_found", "image_corrupt", "capacity_disk", "system".
 */
#ifndef CLOCHE_SANDBOX_IMAGES_H
#define CLOCHE_SANDBOX_IMAGES_H

#include <jansson.h>
#include <stddef.h>

#include "sandbox/manifest.h"

struct err;
struct images;

/* Strings must outlive it. The folder state_dir/images must exist. */
int images_new(const char *state_dir, const char *const *import_dirs, size_t n, struct images **out,
	       struct err *e);
void images_free(struct images *im); /* NULL-safe */

/*
 * Imports every image of the import folders that is not here with the same digests. What cannot
 * be imported is logged and does not keep the others from it.
 */
void images_rescan(struct images *im);

struct image {
	struct manifest manifest;
	int fds[MANIFEST_PARTS]; /* open for reading; -1 where there is no such part */
};

#define IMAGE_NONE                    \
	{                             \
		.fds = { -1, -1, -1 } \
	}

/*
 * Opens an image, its digests verified once per file identity. A name that is not here is looked
 * for in the import folders first. out is to be closed with image_close() after success.
 */
int images_open(struct images *im, const char *name, struct image *out, struct err *e);
void image_close(struct image *i);

/* [{"name","kernelVersion","diskMiB","importedAt"}…], ordered by name. */
int images_list(struct images *im, json_t **out, struct err *e);

#endif
