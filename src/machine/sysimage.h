/*
 * The machine's system image: STATE/system/{system.raw,vmlinux,initrd,digest}, made by mmdebstrap
 * of the host's own Debian release from the recipe "machine". It holds no state and none of our
 * programs, so it is made once and again only when the recipe or the package sources change.
 */
#ifndef CLOCHE_MACHINE_SYSIMAGE_H
#define CLOCHE_MACHINE_SYSIMAGE_H

#include <stdbool.h>

#include "base/sha256.h"

struct err;

struct sysimage_spec {
	const char *state_dir;
	const char *recipes_dir; /* NULL: found beside the program */
	const char *mirror;	 /* NULL: the host's apt sources */
	const char *security_mirror;
	void (*on_step)(void *ctx, const char *text);
	void *ctx;
};

/* Makes the image if it is missing or out of date. *built, if not NULL, tells which. */
int sysimage_ensure(const struct sysimage_spec *s, bool *built, struct err *e);

/*
 * The digest of everything that decides what the image holds: the recipe's files under
 * recipes_dir, the release, and the text of the package sources.
 */
int sysimage_digest(const char *recipes_dir, const char *release, const char *sources,
		    char hex[SHA256_HEX_LEN], struct err *e);

#endif
