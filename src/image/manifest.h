/*
 * The manifest of an image: IMAGES/NAME/manifest.json. It is written last, so a folder with a valid
 * manifest is a whole image.
 */
#ifndef CLOCHE_IMAGE_MANIFEST_H
#define CLOCHE_IMAGE_MANIFEST_H

#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/sha256.h"

struct err;

#define IMAGE_NAME_MAX 63

enum image_part { IMAGE_DISK, IMAGE_KERNEL, IMAGE_INITRD, IMAGE_PARTS };

struct image_file {
	char name[64]; /* file name inside the image's folder */
	uint64_t bytes;
	char sha256[SHA256_HEX_LEN];
};

struct image_manifest {
	char name[IMAGE_NAME_MAX + 1];
	char created_at[CLOCK_RFC3339_LEN];
	char recipe[64], distribution[33], release[33];
	char kernel_version[128];
	char cmdline[512]; /* extra kernel words, "" when none */
	struct image_file files[IMAGE_PARTS];
};

/* 1 to 63 characters of [a-z0-9._-], the first a letter or digit. */
bool image_name_valid(const char *name);

/*
 * Reads dir/manifest.json and checks that every file is there with its size. "image_not_found"
 * when there is no manifest, "image_damaged" when it or a file is wrong.
 */
int manifest_load(const char *dir, struct image_manifest *m, struct err *e);

/* Reads every file and compares its digest; "image_damaged" names the first that differs. */
int manifest_verify(const char *dir, const struct image_manifest *m, struct err *e);

/* Fills bytes and sha256 of each file from what lies in dir; names must be set. */
int manifest_measure(const char *dir, struct image_manifest *m, struct err *e);

/* Writes dir/manifest.json atomically. */
int manifest_save(const char *dir, const struct image_manifest *m, struct err *e);

/* A new reference, or NULL when out of memory. */
json_t *manifest_to_json(const struct image_manifest *m);

#endif
