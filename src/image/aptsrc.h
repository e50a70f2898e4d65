/*
 * Where packages come from: the host's own apt configuration, or a mirror that the user names.
 * Nothing here knows the address of any archive.
 */
#ifndef CLOCHE_IMAGE_APTSRC_H
#define CLOCHE_IMAGE_APTSRC_H

#include <stddef.h>

struct buf;
struct err;

/*
 * Reads apt source files and writes deb822 stanzas for another release of the same distribution.
 *
 *	text, deb822   one file's content, and whether it is of the ".sources" kind
 *	host, want     code names: entries whose suite is host, host-updates or host-security (and
 *	               the like) are taken, with host replaced by want; backports and proposed
 *	               suites are not
 *	components     words; those that an entry has of them are kept ("main")
 *
 * Disabled, deb-src and foreign entries (other suites, no such component) are passed over. Options
 * that say which key to trust are kept. Appends to out; returns the number of entries taken or a
 * negative errno.
 */
int aptsrc_convert(const char *text, int deb822, const char *host, const char *want,
		   const char *components, struct buf *out);

/*
 * All source files under etc ("/etc/apt"). Fails with "no_mirror" when nothing there serves the
 * release.
 */
int aptsrc_host(const char *etc, const char *host, const char *want, const char *components,
		struct buf *out, struct err *e);

/* Stanzas for a mirror URL; security_url may be NULL (no security suite then). */
int aptsrc_mirror(const char *url, const char *security_url, const char *want,
		  const char *components, struct buf *out, struct err *e);

/* The value of key in an os-release text, without quotes, or NULL; the caller frees it. */
char *aptsrc_os_release(const char *text, const char *key);

#endif
