/*
 * Header of 110 characters: "070701" and thirteen 8-digit hexadecimal numbers; then the name with
 * its NUL, padded to 4; then the data, padded to 4. Inode numbers only matter for hard links, of
 * which there are none, but must differ: the offset of the header serves. Times are zero so that
 * the same input gives the same bytes.
 */
#include "image/cpio.h"

#include <errno.h>
#include <limits.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>

#include "base/buf.h"

static int pad(struct buf *b, size_t start, size_t align)
{
	static const char zero[512];
	size_t over = (b->len - start) % align;

	return over ? buf_add(b, zero, align - over) : 0;
}

static int add(struct buf *b, const char *path, mode_t mode, const void *data, size_t n)
{
	size_t len = strlen(path) + 1, start = b->len;
	unsigned links = S_ISDIR(mode) ? 2 : 1;
	int ret;

	if (len == 1 || len > PATH_MAX || path[0] == '/' || n > UINT32_MAX)
		return -EINVAL;
	ret = buf_printf(b, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X",
			 (unsigned)(start / 4 + 1), (unsigned)mode, 0U, 0U, links, 0U, (unsigned)n,
			 0U, 0U, 0U, 0U, (unsigned)len, 0U);
	if (ret == 0)
		ret = buf_add(b, path, len);
	if (ret == 0)
		ret = pad(b, start, 4);
	if (ret == 0 && n)
		ret = buf_add(b, data, n);
	return ret == 0 ? pad(b, start, 4) : ret;
}

int cpio_add_file(struct buf *b, const char *path, mode_t mode, const void *data, size_t n)
{
	return add(b, path, S_IFREG | (mode & 07777), data, n);
}

int cpio_add_dir(struct buf *b, const char *path)
{
	return add(b, path, S_IFDIR | 0755, NULL, 0);
}

int cpio_end(struct buf *b)
{
	int ret = add(b, "TRAILER!!!", 0, NULL, 0);

	return ret == 0 ? pad(b, 0, 512) : ret;
}
