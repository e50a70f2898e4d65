/*
 * Two formats (sources.list(5)). One line: `deb [options] URI suite component…`. deb822: stanzas of
 * `Key: value` with continuation lines, several words per value. Both are brought to one struct
 * entry, filtered by suite and component, and written as deb822. A suite is the code name, alone or
 * followed by "-updates", "-security" or "/updates".
 */
#include "image/aptsrc.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "image/tree.h"

#define FILE_MAX (1UL << 20)

struct entry {
	bool deb, enabled;
	struct buf uris, suites, components;
	struct buf signed_by, extra; /* extra: whole "Key: value" lines to keep */
};

static void entry_reset(struct entry *t)
{
	t->deb = false;
	t->enabled = true;
	buf_clear(&t->uris);
	buf_clear(&t->suites);
	buf_clear(&t->components);
	buf_clear(&t->signed_by);
	buf_clear(&t->extra);
}

static void entry_free(struct entry *t)
{
	buf_free(&t->uris);
	buf_free(&t->suites);
	buf_free(&t->components);
	buf_free(&t->signed_by);
	buf_free(&t->extra);
}

static const char *text_of(const struct buf *b)
{
	return b->len ? b->data : "";
}

/* The next word at *p (blanks skipped, *p moved behind it); its length, 0 at the end. */
static size_t next_word(const char **p, const char **word)
{
	size_t n = 0;

	while (isspace((unsigned char)**p))
		(*p)++;
	*word = *p;
	while (**p && !isspace((unsigned char)**p)) {
		(*p)++;
		n++;
	}
	return n;
}

static bool has_word(const char *text, const char *want)
{
	const char *w;
	size_t n;

	while ((n = next_word(&text, &w)) > 0)
		if (n == strlen(want) && memcmp(w, want, n) == 0)
			return true;
	return false;
}

/* Appends the wanted form of each suite that belongs to the host's release. */
static int map_suites(const char *suites, const char *host, const char *want, struct buf *out)
{
	static const char *const kept[] = { "", "-updates", "-security", "/updates" };
	size_t hl = strlen(host), n;
	const char *w;

	while ((n = next_word(&suites, &w)) > 0) {
		if (n < hl || memcmp(w, host, hl) != 0)
			continue;
		for (size_t i = 0; i < ARRAY_SIZE(kept); i++)
			if (n - hl == strlen(kept[i]) && memcmp(w + hl, kept[i], n - hl) == 0 &&
			    buf_printf(out, "%s%s%s", out->len ? " " : "", want, kept[i]) < 0)
				return -ENOMEM;
	}
	return 0;
}

/* Appends the words of `have` that are also in `want`. */
static int common_words(const char *have, const char *want, struct buf *out)
{
	const char *w;
	size_t n;

	while ((n = next_word(&have, &w)) > 0) {
		_cleanup_free_ char *word = strndup(w, n);

		if (!word)
			return -ENOMEM;
		if (has_word(want, word) && buf_printf(out, "%s%s", out->len ? " " : "", word) < 0)
			return -ENOMEM;
	}
	return 0;
}

/* Writes the entry if it serves the release; 1, 0 when passed over, or negative. */
static int entry_emit(const struct entry *t, const char *host, const char *want,
		      const char *components, struct buf *out)
{
	_cleanup_buf_ struct buf suites = { 0 }, parts = { 0 };
	int ret;

	if (!t->deb || !t->enabled || !t->uris.len)
		return 0;
	ret = map_suites(text_of(&t->suites), host, want, &suites);
	if (ret == 0)
		ret = common_words(text_of(&t->components), components, &parts);
	if (ret < 0 || !suites.len || !parts.len)
		return ret;
	ret = buf_printf(out, "Types: deb\nURIs: %s\nSuites: %s\nComponents: %s\n", t->uris.data,
			 suites.data, parts.data);
	if (ret == 0 && t->signed_by.len)
		ret = buf_printf(out, "Signed-By:%s\n", t->signed_by.data);
	if (ret == 0)
		ret = buf_printf(out, "%s\n", text_of(&t->extra));
	return ret < 0 ? ret : 1;
}

/* `[signed-by=/x trusted=yes arch=amd64]`: p is behind the '['. */
static int line_options(struct entry *t, const char *p, size_t len)
{
	_cleanup_buf_ struct buf copy = { 0 };
	const char *q, *w;
	size_t n;

	if (buf_add(&copy, p, len) < 0)
		return -ENOMEM;
	for (q = text_of(&copy); (n = next_word(&q, &w)) > 0;) {
		int ret = 0;

		if (n > 10 && strncasecmp(w, "signed-by=", 10) == 0)
			ret = buf_printf(&t->signed_by, " %.*s", (int)(n - 10), w + 10);
		else if (n > 8 && strncasecmp(w, "trusted=", 8) == 0)
			ret = buf_printf(&t->extra, "Trusted: %.*s\n", (int)(n - 8), w + 8);
		else if (n > 18 && strncasecmp(w, "check-valid-until=", 18) == 0)
			ret = buf_printf(&t->extra, "Check-Valid-Until: %.*s\n", (int)(n - 18),
					 w + 18);
		if (ret < 0)
			return ret;
	}
	return 0;
}

static int parse_line(struct entry *t, const char *line)
{
	const char *p = line, *w, *end;
	size_t n = next_word(&p, &w);
	int ret = 0;

	t->deb = n == 3 && memcmp(w, "deb", 3) == 0;
	if (!t->deb)
		return 0;
	while (*p == ' ' || *p == '\t')
		p++;
	if (*p == '[') {
		end = strchr(p, ']');
		if (!end)
			return 0;
		ret = line_options(t, p + 1, (size_t)(end - p - 1));
		p = end + 1;
	}
	n = next_word(&p, &w);
	if (ret == 0)
		ret = buf_add(&t->uris, w, n);
	n = next_word(&p, &w);
	if (ret == 0)
		ret = buf_add(&t->suites, w, n);
	return ret == 0 ? buf_str(&t->components, p) : ret;
}

/* One field of a stanza; value may hold newlines (continuation lines). */
static int stanza_field(struct entry *t, const char *key, size_t klen, const char *value)
{
	struct {
		const char *name;
		struct buf *to;
	} plain[] = { { "URIs", &t->uris },
		      { "Suites", &t->suites },
		      { "Components", &t->components },
		      { "Signed-By", &t->signed_by } };

	for (size_t i = 0; i < ARRAY_SIZE(plain); i++)
		if (klen == strlen(plain[i].name) && strncasecmp(key, plain[i].name, klen) == 0) {
			/* A key block keeps its shape, the rest are words. */
			if (plain[i].to != &t->signed_by)
				while (isspace((unsigned char)*value))
					value++;
			return buf_str(plain[i].to, value);
		}
	if (klen == 5 && strncasecmp(key, "Types", 5) == 0)
		t->deb = has_word(value, "deb");
	else if (klen == 7 && strncasecmp(key, "Enabled", 7) == 0)
		t->enabled = !has_word(value, "no") && !has_word(value, "false");
	else if ((klen == 7 && strncasecmp(key, "Trusted", 7) == 0) ||
		 (klen == 17 && strncasecmp(key, "Check-Valid-Until", 17) == 0))
		return buf_printf(&t->extra, "%.*s:%s\n", (int)klen, key, value);
	return 0;
}

/* Joins a field's continuation lines (not the comments between them); returns behind the field. */
static const char *take_field(const char *p, struct buf *field)
{
	bool first = true;

	buf_clear(field);
	while (*p && (first || *p == ' ' || *p == '\t' || *p == '#')) {
		size_t n = strcspn(p, "\n");

		if (strspn(p, " \t\r") >= n) /* a blank line ends the stanza */
			break;
		if (*p != '#' && ((!first && buf_str(field, "\n") < 0) || buf_add(field, p, n) < 0))
			return NULL;
		first = false;
		p += n;
		p += *p == '\n';
	}
	return p;
}

static int convert_deb822(const char *text, struct entry *t, const char *host, const char *want,
			  const char *components, struct buf *out)
{
	_cleanup_buf_ struct buf field = { 0 };
	int taken = 0, ret = 0;

	while (*text && ret >= 0) {
		size_t n = strcspn(text, "\n");
		const char *colon;

		if (strspn(text, " \t\r") >= n) {
			ret = entry_emit(t, host, want, components, out);
			taken += ret > 0;
			entry_reset(t);
		} else if (*text != '#') {
			text = take_field(text, &field);
			if (!text)
				return -ENOMEM;
			colon = strchr(text_of(&field), ':');
			if (colon)
				ret = stanza_field(t, field.data, (size_t)(colon - field.data),
						   colon + 1);
			continue;
		}
		text += n;
		text += *text == '\n';
	}
	if (ret >= 0) {
		ret = entry_emit(t, host, want, components, out);
		taken += ret > 0;
	}
	return ret < 0 ? ret : taken;
}

static int convert_lines(const char *text, struct entry *t, const char *host, const char *want,
			 const char *components, struct buf *out)
{
	int taken = 0, ret = 0;

	while (*text && ret >= 0) {
		size_t n = strcspn(text, "\n");
		_cleanup_free_ char *line = strndup(text, strcspn(text, "#\n"));

		entry_reset(t);
		ret = line ? parse_line(t, line) : -ENOMEM;
		if (ret == 0)
			ret = entry_emit(t, host, want, components, out);
		taken += ret > 0;
		text += n;
		text += *text == '\n';
	}
	return ret < 0 ? ret : taken;
}

int aptsrc_convert(const char *text, int deb822, const char *host, const char *want,
		   const char *components, struct buf *out)
{
	struct entry t = { .enabled = true };
	int ret;

	ret = deb822 ? convert_deb822(text, &t, host, want, components, out)
		     : convert_lines(text, &t, host, want, components, out);
	entry_free(&t);
	return ret;
}

static bool ends_with(const char *s, const char *end)
{
	size_t n = strlen(s), m = strlen(end);

	return n > m && strcmp(s + n - m, end) == 0;
}

/* Adds one file's entries to *taken; a file that is not there is no error. */
static int convert_file(const char *path, const char *host, const char *want,
			const char *components, struct buf *out, int *taken, struct err *e)
{
	_cleanup_buf_ struct buf text = { 0 };
	int ret;

	if (access(path, F_OK) < 0)
		return 0;
	ret = fd_read_file(path, &text, FILE_MAX, e);
	if (ret < 0)
		return ret;
	ret = aptsrc_convert(text_of(&text), ends_with(path, ".sources"), host, want, components,
			     out);
	if (ret < 0)
		return err_errno(e, -ret, "read %s", path);
	*taken += ret;
	return 0;
}

int aptsrc_host(const char *etc, const char *host, const char *want, const char *components,
		struct buf *out, struct err *e)
{
	char path[PATH_MAX];
	_cleanup_closedir_ DIR *d = NULL;
	int taken = 0, ret;

	path_printf(path, "%s/sources.list", etc);
	ret = convert_file(path, host, want, components, out, &taken, e);
	path_printf(path, "%s/sources.list.d", etc);
	d = opendir(path);
	for (struct dirent *f; ret == 0 && d && (f = readdir(d));) {
		if (!ends_with(f->d_name, ".list") && !ends_with(f->d_name, ".sources"))
			continue;
		path_printf(path, "%s/sources.list.d/%s", etc, f->d_name);
		ret = convert_file(path, host, want, components, out, &taken, e);
	}
	if (ret < 0 || taken)
		return ret;
	err_set(e, "no_mirror", ENOENT, "%s has no source for suite %s with component %s", etc,
		host, components);
	err_fix(e, "Name an archive with --mirror URL.");
	return -ENOENT;
}

/* A URL with a scheme, and without blanks or control characters that would forge a field. */
static bool url_ok(const char *url)
{
	if (!strstr(url, ":/"))
		return false;
	for (const unsigned char *p = (const unsigned char *)url; *p; p++)
		if (*p <= ' ' || *p == 0x7f)
			return false;
	return true;
}

int aptsrc_mirror(const char *url, const char *security_url, const char *want,
		  const char *components, struct buf *out, struct err *e)
{
	int ret;

	if (!url_ok(url) || (security_url && !url_ok(security_url))) {
		err_set(e, "bad_mirror", EINVAL, "%s is not a URL",
			url_ok(url) ? security_url : url);
		err_fix(e, "Give a URL such as http://HOST/debian.");
		return -EINVAL;
	}
	ret = buf_printf(out, "Types: deb\nURIs: %s\nSuites: %s %s-updates\nComponents: %s\n\n",
			 url, want, want, components);
	if (ret == 0 && security_url)
		ret = buf_printf(out,
				 "Types: deb\nURIs: %s\nSuites: %s-security\nComponents: %s\n\n",
				 security_url, want, components);
	return ret < 0 ? err_errno(e, -ret, "describe the mirror") : 0;
}

char *aptsrc_os_release(const char *text, const char *key)
{
	size_t k = strlen(key);

	for (const char *p = text; *p;) {
		size_t n = strcspn(p, "\n");

		if (n > k && memcmp(p, key, k) == 0 && p[k] == '=') {
			const char *v = p + k + 1;
			size_t len = n - k - 1;

			if (len >= 2 && (*v == '"' || *v == '\'')) {
				v++;
				len -= 2;
			}
			return strndup(v, len);
		}
		p += n;
		p += *p == '\n';
	}
	return NULL;
}
