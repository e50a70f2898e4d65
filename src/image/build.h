/*
 * Builds an image by recipe: packages to a root folder, the folder to a disk, the kernel unpacked,
 * an initramfs of the modules that the boot needs, a manifest. Nothing is visible under the image's
 * name until all of it is there; a rebuild replaces the image at once.
 */
#ifndef CLOCHE_IMAGE_BUILD_H
#define CLOCHE_IMAGE_BUILD_H

#include "image/manifest.h"

struct err;
struct recipe;
struct buf;

struct image_build {
	const char *recipe;	     /* "base" */
	const char *recipes_dir;     /* NULL: recipe_find_dir() */
	const char *images_dir;	     /* where images lie; made if needed */
	const char *name;	     /* NULL: the recipe's name */
	const char *mirror;	     /* NULL: the host's apt sources */
	const char *security_mirror; /* with mirror only; NULL: no security suite */
	const char *npm_registry;    /* NULL: the host's */
	void (*on_step)(void *ctx, const char *text); /* one line of progress; not NULL */
	void *ctx;
};

/* Minutes of work. On success *m is the new manifest. */
int image_build(const struct image_build *b, struct image_manifest *m, struct err *e);

/*
 * The deb822 sources for a recipe: from the host's /etc/apt, or the mirrors where one is given.
 * Shared with the machine image.
 */
int image_sources(const struct recipe *r, const char *mirror, const char *security_mirror,
		  struct buf *out, struct err *e);

#endif
