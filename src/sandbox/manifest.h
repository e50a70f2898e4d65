/*
 * An image's manifest.json:
 *	{"schema":1,"name":"base","kernelVersion":"6.1.0-…","cmdline":"console=ttyS0 …",
 *	 "files":{"disk":{"name":"disk.raw","bytes":n,"sha256":hex},"kernel":{…},"initrd":{…}?}}
 * Members that are not listed are left to those who know them.
 */
#ifndef CLOCHE_SANDBOX_MANIFEST_H
#define CLOCHE_SANDBOX_MANIFEST_H

#include <stddef.h>
#include <stdint.h>

#include "base/sha256.h"
#include "store/store.h"

struct err;

#define MANIFEST_NAME "manifest.json"
#define MANIFEST_BYTES_MAX (64u << 10)
#define MANIFEST_CMDLINE_MAX 1024

enum manifest_part { MANIFEST_DISK, MANIFEST_KERNEL, MANIFEST_INITRD, MANIFEST_PARTS };

struct manifest_file {
	char name[64]; /* a plain file name; "" when the image has no such part */
	uint64_t bytes;
	char sha256[SHA256_HEX_LEN];
};

struct manifest {
	char name[STORE_IMAGE_LEN];
	char kernel_version[128];
	char cmdline[MANIFEST_CMDLINE_MAX];
	struct manifest_file files[MANIFEST_PARTS];
};

/* "image_corrupt" on failure; the message names every problem. */
int manifest_parse(const char *text, size_t n, struct manifest *out, struct err *e);

/* Image names: 1..63 of [a-z0-9._-], the first a letter or digit. */
bool manifest_name_valid(const char *name);

const char *manifest_part_name(enum manifest_part p);

#endif
