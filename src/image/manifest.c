/*
 * JSON in and out of struct image_manifest. The text comes from a folder that a user may have
 * copied by hand, so names of files must be plain names and sizes must match what is there.
 */
#include "image/manifest.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/fd.h"
#include "image/tree.h"

#define MANIFEST_MAX (64UL << 10)
#define CHUNK (1UL << 20)

static const char *const part_names[IMAGE_PARTS] = { "disk", "kernel", "initrd" };

bool image_name_valid(const char *name)
{
	size_t n = strlen(name);

	return n >= 1 && n <= IMAGE_NAME_MAX && name[0] != '.' && name[0] != '-' &&
	       name[0] != '_' && strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789._-") == n;
}

static int damaged(struct err *e, const char *dir, const char *why)
{
	err_set(e, "image_damaged", EINVAL, "image %s: %s", dir, why);
	err_fix(e, "Build or import the image again.");
	return -EINVAL;
}

/* Copies a string member that must be there and fit. */
static int take(const json_t *o, const char *key, char *to, size_t room)
{
	const char *s = json_get_str(o, key, NULL);

	if (!s || strlen(s) >= room)
		return -EINVAL;
	memcpy(to, s, strlen(s) + 1);
	return 0;
}

static int parse_file(const json_t *o, struct image_file *f)
{
	int64_t bytes = json_get_int(o, "bytes", -1);

	if (take(o, "name", f->name, sizeof(f->name)) < 0 || !f->name[0] || f->name[0] == '.' ||
	    strchr(f->name, '/') || take(o, "sha256", f->sha256, sizeof(f->sha256)) < 0 ||
	    strlen(f->sha256) != SHA256_HEX_LEN - 1 || bytes <= 0)
		return -EINVAL;
	f->bytes = (uint64_t)bytes;
	return 0;
}

static int parse(const json_t *o, struct image_manifest *m)
{
	const json_t *files = json_object_get(o, "files");

	if (json_get_int(o, "schema", 0) != 1 || take(o, "name", m->name, sizeof(m->name)) < 0 ||
	    take(o, "createdAt", m->created_at, sizeof(m->created_at)) < 0 ||
	    take(o, "recipe", m->recipe, sizeof(m->recipe)) < 0 ||
	    take(o, "distribution", m->distribution, sizeof(m->distribution)) < 0 ||
	    take(o, "release", m->release, sizeof(m->release)) < 0 ||
	    take(o, "kernelVersion", m->kernel_version, sizeof(m->kernel_version)) < 0 ||
	    take(o, "cmdline", m->cmdline, sizeof(m->cmdline)) < 0 || !image_name_valid(m->name))
		return -EINVAL;
	for (int i = 0; i < IMAGE_PARTS; i++)
		if (parse_file(json_object_get(files, part_names[i]), &m->files[i]) < 0)
			return -EINVAL;
	return 0;
}

int manifest_load(const char *dir, struct image_manifest *m, struct err *e)
{
	_cleanup_buf_ struct buf text = { 0 };
	_cleanup_json_ json_t *doc = NULL;
	char path[PATH_MAX];
	struct stat st;
	int ret;

	memset(m, 0, sizeof(*m));
	path_printf(path, "%s/manifest.json", dir);
	if (access(path, F_OK) < 0) {
		err_set(e, "image_not_found", ENOENT, "there is no image at %s", dir);
		err_fix(e,
			"List images with `cloche image ls`; make one with `cloche image build`.");
		return -ENOENT;
	}
	ret = fd_read_file(path, &text, MANIFEST_MAX, e);
	if (ret < 0)
		return ret;
	doc = json_parse(text.data ? text.data : "", text.len, NULL);
	if (!doc || parse(doc, m) < 0)
		return damaged(e, dir, "manifest.json is not a valid manifest");
	for (int i = 0; i < IMAGE_PARTS; i++) {
		path_printf(path, "%s/%s", dir, m->files[i].name);
		if (stat(path, &st) < 0 || !S_ISREG(st.st_mode) ||
		    (uint64_t)st.st_size != m->files[i].bytes)
			return damaged(e, dir, "a file is missing or has another size");
	}
	return 0;
}

/* OpenSSL's digest: a disk image is hundreds of megabytes. */
static int digest_fd(int fd, uint64_t *bytes, char hex[SHA256_HEX_LEN])
{
	_cleanup_free_ uint8_t *chunk = malloc(CHUNK);
	EVP_MD_CTX *md = EVP_MD_CTX_new();
	uint8_t out[SHA256_LEN];
	ssize_t n = -ENOMEM;
	bool ok;

	*bytes = 0;
	ok = chunk && md && EVP_DigestInit_ex(md, EVP_sha256(), NULL) == 1;
	while (ok && (n = fd_read_full(fd, chunk, CHUNK)) > 0) {
		*bytes += (uint64_t)n;
		ok = EVP_DigestUpdate(md, chunk, (size_t)n) == 1;
	}
	ok = ok && n == 0 && EVP_DigestFinal_ex(md, out, NULL) == 1;
	EVP_MD_CTX_free(md);
	if (!ok)
		return n < 0 ? (int)n : -ENOMEM;
	for (int i = 0; i < SHA256_LEN; i++)
		snprintf(hex + i * 2, 3, "%02x", out[i]);
	return 0;
}

static int digest_part(const char *dir, const struct image_file *f, uint64_t *bytes,
		       char hex[SHA256_HEX_LEN], struct err *e)
{
	_cleanup_close_ int fd = -1;
	char path[PATH_MAX];
	int ret;

	path_printf(path, "%s/%s", dir, f->name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return err_errno(e, errno, "open %s", path);
	ret = digest_fd(fd, bytes, hex);
	return ret < 0 ? err_errno(e, -ret, "read %s", path) : 0;
}

int manifest_verify(const char *dir, const struct image_manifest *m, struct err *e)
{
	for (int i = 0; i < IMAGE_PARTS; i++) {
		char hex[SHA256_HEX_LEN], why[128];
		uint64_t bytes;
		int ret = digest_part(dir, &m->files[i], &bytes, hex, e);

		if (ret < 0)
			return ret;
		snprintf(why, sizeof(why), "%s differs from its digest", m->files[i].name);
		if (bytes != m->files[i].bytes || strcmp(hex, m->files[i].sha256) != 0)
			return damaged(e, dir, why);
	}
	return 0;
}

int manifest_measure(const char *dir, struct image_manifest *m, struct err *e)
{
	for (int i = 0; i < IMAGE_PARTS; i++) {
		struct image_file *f = &m->files[i];
		int ret = digest_part(dir, f, &f->bytes, f->sha256, e);

		if (ret < 0)
			return ret;
	}
	return 0;
}

json_t *manifest_to_json(const struct image_manifest *m)
{
	_cleanup_json_ json_t *files = json_object();

	for (int i = 0; files && i < IMAGE_PARTS; i++)
		json_object_set_new(files, part_names[i],
				    json_pack("{s:s,s:I,s:s}", "name", m->files[i].name, "bytes",
					      (json_int_t)m->files[i].bytes, "sha256",
					      m->files[i].sha256));
	return json_pack("{s:i,s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:O}", "schema", 1, "name", m->name,
			 "createdAt", m->created_at, "recipe", m->recipe, "distribution",
			 m->distribution, "release", m->release, "architecture", "amd64",
			 "kernelVersion", m->kernel_version, "cmdline", m->cmdline, "files", files);
}

int manifest_save(const char *dir, const struct image_manifest *m, struct err *e)
{
	_cleanup_json_ json_t *doc = manifest_to_json(m);
	_cleanup_free_ char *text = doc ? json_dumps(doc, JSON_INDENT(2)) : NULL;
	char path[PATH_MAX];

	if (!text)
		return err_errno(e, ENOMEM, "write the manifest");
	path_printf(path, "%s/manifest.json", dir);
	return fd_write_file_atomic(path, text, strlen(text), 0644, e);
}
