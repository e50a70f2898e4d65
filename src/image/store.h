/*
 * The folder of images: one folder a name, each with a manifest.
 */
#ifndef CLOCHE_IMAGE_STORE_H
#define CLOCHE_IMAGE_STORE_H

#include "image/manifest.h"

struct err;

/* Loads images/name. */
int image_load(const char *images, const char *name, struct image_manifest *m, struct err *e);

/*
 * Calls fn for every whole image, in the order of names; damaged ones are passed over. Returns
 * their number, or what fn returned when that was negative. A missing folder holds no image.
 */
int image_list(const char *images, int (*fn)(void *ctx, const struct image_manifest *m), void *ctx,
	       struct err *e);

/*
 * Copies the image in folder `from` to images/name (NULL: its own name), checks every digest of
 * the copy, then puts it in place at once. An image of that name is replaced.
 */
int image_import(const char *from, const char *images, const char *name, struct err *e);

/* Removes an image; sandboxes that run from it keep their open files. */
int image_remove(const char *images, const char *name, struct err *e);

#endif
