/*
 * Digests use OpenSSL, whose SHA-256 uses the processor's instructions. One function reads,
 * hashes and, when there is a target, writes the blocks that are not all zero; a copy is thereby
 * sparse even when its source came from a file system that knows no holes.
 */
#include "sandbox/image_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"

#define CHUNK (1u << 20)
#define ZERO_BLOCK 65536u
#define VERIFIED_BYTES_MAX 4096

CLEANUP_DEFINE(EVP_MD_CTX *, cleanup_md, EVP_MD_CTX_free)

int image_identity_get(int fd, struct image_identity *out, struct err *e)
{
	struct stat st;

	if (fstat(fd, &st) < 0)
		return err_errno(e, errno, "look at an image file");
	out->bytes = (uint64_t)st.st_size;
	out->inode = (uint64_t)st.st_ino;
	out->mtime_ns = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
	return 0;
}

static bool all_zero(const char *p, size_t n)
{
	return n == 0 || (p[0] == 0 && memcmp(p, p + 1, n - 1) == 0);
}

static int write_failed(int errnum, struct err *e)
{
	int r;

	if (errnum != ENOSPC && errnum != EDQUOT)
		return err_errno(e, errnum, "write");
	r = err_set(e, "capacity_disk", errnum, "write: %s", strerror(errnum));
	err_fix(e, "Free space on the host, then try again.");
	return r;
}

/* Writes the blocks of p[n] that hold something at offset `at`. */
static int write_sparse(int fd, const char *p, size_t n, uint64_t at, struct err *e)
{
	for (size_t i = 0; i < n; i += ZERO_BLOCK) {
		size_t len = n - i < ZERO_BLOCK ? n - i : ZERO_BLOCK;

		if (all_zero(p + i, len))
			continue;
		for (size_t done = 0; done < len;) {
			ssize_t w = pwrite(fd, p + i + done, len - done, (off_t)(at + i + done));

			if (w < 0 && errno != EINTR)
				return write_failed(errno, e);
			done += w > 0 ? (size_t)w : 0;
		}
	}
	return 0;
}

static void to_hex(const unsigned char *digest, char out[SHA256_HEX_LEN])
{
	static const char hex[] = "0123456789abcdef";

	for (int i = 0; i < SHA256_LEN; i++) {
		out[2 * i] = hex[digest[i] >> 4];
		out[2 * i + 1] = hex[digest[i] & 15];
	}
	out[SHA256_HEX_LEN - 1] = '\0';
}

/* Reads all of src; copies to dst unless it is -1. More than max bytes is "image_corrupt". */
static int hash_copy(int src, int dst, uint64_t max, uint64_t *bytes, char sha[SHA256_HEX_LEN],
		     struct err *e)
{
	_cleanup_(cleanup_md) EVP_MD_CTX *md = EVP_MD_CTX_new();
	_cleanup_free_ char *buf = malloc(CHUNK);
	unsigned char digest[EVP_MAX_MD_SIZE];
	uint64_t at = 0;

	if (!buf || !md || !EVP_DigestInit_ex(md, EVP_sha256(), NULL))
		return err_errno(e, ENOMEM, "hash");
	for (;;) {
		ssize_t n = pread(src, buf, CHUNK, (off_t)at);
		int r;

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return err_errno(e, errno, "read");
		if (n == 0)
			break;
		if ((uint64_t)n > max - at)
			return err_set(e, "image_corrupt", EFBIG, "longer than its manifest says");
		if (!EVP_DigestUpdate(md, buf, (size_t)n))
			return err_errno(e, EIO, "hash");
		r = dst < 0 ? 0 : write_sparse(dst, buf, (size_t)n, at, e);
		if (r < 0)
			return r;
		at += (uint64_t)n;
	}
	if (!EVP_DigestFinal_ex(md, digest, NULL))
		return err_errno(e, EIO, "hash");
	to_hex(digest, sha);
	*bytes = at;
	return 0;
}

static int compare(const struct manifest_file *f, uint64_t bytes, const char *sha, struct err *e)
{
	if (bytes != f->bytes)
		return err_set(e, "image_corrupt", EINVAL,
			       "%s has %llu bytes, its manifest says %llu", f->name,
			       (unsigned long long)bytes, (unsigned long long)f->bytes);
	if (strcmp(sha, f->sha256) != 0)
		return err_set(e, "image_corrupt", EINVAL,
			       "%s has SHA-256 %s, its manifest says %s", f->name, sha, f->sha256);
	return 0;
}

int image_file_verify(int fd, const struct manifest_file *f, struct err *e)
{
	char sha[SHA256_HEX_LEN];
	uint64_t bytes;
	int r = hash_copy(fd, -1, f->bytes, &bytes, sha, e);

	return r < 0 ? err_wrap(e, "%s", f->name) : compare(f, bytes, sha, e);
}

int image_file_import(const struct manifest_file *f, const char *from_dir, const char *to_dir,
		      struct image_identity *id, struct err *e)
{
	_cleanup_close_ int src = -1, dst = -1;
	char from[PATH_MAX], to[PATH_MAX], sha[SHA256_HEX_LEN];
	uint64_t bytes;
	int r;

	if (snprintf(from, sizeof(from), "%s/%s", from_dir, f->name) >= PATH_MAX ||
	    snprintf(to, sizeof(to), "%s/%s", to_dir, f->name) >= PATH_MAX)
		return err_errno(e, ENAMETOOLONG, "%s", f->name);
	src = open(from, O_RDONLY | O_CLOEXEC);
	if (src < 0)
		return err_set(e, "image_corrupt", errno, "open %s: %s", from, strerror(errno));
	dst = open(to, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
	if (dst < 0)
		return err_errno(e, errno, "create %s", to);
	r = hash_copy(src, dst, f->bytes, &bytes, sha, e);
	if (r < 0)
		return err_wrap(e, "%s", f->name);
	r = compare(f, bytes, sha, e);
	if (r == 0 && (ftruncate(dst, (off_t)bytes) < 0 || fsync(dst) < 0))
		r = write_failed(errno, e);
	return r < 0 ? r : image_identity_get(dst, id, e);
}

/* {"disk":"BYTES INODE MTIME SHA256",…}: compared and written as a whole, never interpreted. */
static json_t *verified_value(const struct manifest *m, const struct image_identity *ids)
{
	json_t *v = json_object();

	for (int p = 0; p < MANIFEST_PARTS; p++) {
		char text[192];

		if (!m->files[p].name[0])
			continue;
		snprintf(text, sizeof(text), "%llu %llu %lld %s", (unsigned long long)ids[p].bytes,
			 (unsigned long long)ids[p].inode, (long long)ids[p].mtime_ns,
			 m->files[p].sha256);
		json_object_set_new(v, manifest_part_name((enum manifest_part)p),
				    json_string(text));
	}
	return v;
}

bool image_verified_read(const char *path, const struct manifest *m,
			 const struct image_identity *ids)
{
	_cleanup_json_ json_t *want = verified_value(m, ids), *have = NULL;
	_cleanup_buf_ struct buf b = { 0 };

	if (fd_read_file(path, &b, VERIFIED_BYTES_MAX, NULL) < 0 || !b.len)
		return false;
	have = json_parse(b.data, b.len, NULL);
	return have && json_equal(have, want);
}

int image_verified_write(const char *path, const struct manifest *m,
			 const struct image_identity *ids, struct err *e)
{
	_cleanup_json_ json_t *v = verified_value(m, ids);
	_cleanup_free_ char *text = json_dumps(v, JSON_COMPACT);

	if (!text)
		return err_errno(e, ENOMEM, "%s", path);
	return fd_write_file_atomic(path, text, strlen(text), 0644, e);
}
