/*
 * Programs that come as npm packages (Node.js, npm, Bun), fetched straight from the registry that
 * the host's npm uses: no npm is needed on the host. Nothing here knows a registry's address.
 */
#ifndef CLOCHE_IMAGE_NPM_H
#define CLOCHE_IMAGE_NPM_H

#include <jansson.h>
#include <stddef.h>

struct buf;
struct err;

/*
 * The registry: override if not NULL, else what the host's npm is set to (`npm config get
 * registry`, or registry= in an npmrc file where npm is missing). Appends a URL without a slash at
 * its end. "no_registry" when there is none.
 */
int npm_registry(const char *override, struct buf *url, struct err *e);

/*
 * Picks the newest release of a package whose major version is `major` (0: any) from the
 * registry's document; pre-releases are passed over. *tarball and *integrity are borrowed from
 * doc. "no_npm_version" when nothing fits.
 */
int npm_pick(const json_t *doc, int major, const char **version, const char **tarball,
	     const char **integrity, struct err *e);

/* Whether data of n bytes has the digest in an integrity field ("sha512-BASE64", one of several).
 */
int npm_verify(const void *data, size_t n, const char *integrity);

/*
 * Fetches, checks and unpacks every package that a recipe's "npm" array names under root, which is
 * an existing folder; makes its links and writes the registry into usr/local/etc/npmrc. scratch is
 * a folder for the archives. on_step hears what is being fetched.
 */
int npm_install(const json_t *packages, const char *registry, const char *root, const char *scratch,
		void (*on_step)(void *ctx, const char *text), void *ctx, struct err *e);

#endif
