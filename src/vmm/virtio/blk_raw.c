/*
 * A disk in a file, with plain positional reads and writes. Discarded space is punched out of the
 * file, so it goes back to the host and reads as zero; where a filesystem cannot punch, discard is
 * a hint that is not taken, and zeroes are written out.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "vmm/virtio/blk_backend.h"
#include "vmm/virtio/queue.h"

#define ZEROES (64u << 10)

struct blk_raw {
	struct blk_backend base;
	int fd;
};

static int raw_fd(const struct blk_backend *b)
{
	return ((const struct blk_raw *)b)->fd;
}

typedef ssize_t (*vector_fn)(int, const struct iovec *, int, off_t);

/*
 * Repeats a short transfer until len bytes went. Returns the bytes (fewer only at the end of a
 * file that is being read), or a negative errno.
 */
static int64_t transfer(vector_fn fn, int fd, const struct iovec *iov, int n, uint64_t offset,
			uint64_t len)
{
	struct iovec rest[VIRTQ_CHAIN_MAX];
	uint64_t done = 0;

	while (done < len) {
		unsigned k = iov_slice(iov, (unsigned)n, done, len - done, rest);
		ssize_t r = fn(fd, rest, (int)k, (off_t)(offset + done));

		if (r < 0 && errno == EINTR)
			continue;
		if (r < 0)
			return -errno;
		if (r == 0)
			break;
		done += (uint64_t)r;
	}
	return (int64_t)done;
}

static int raw_readv(struct blk_backend *b, const struct iovec *iov, int n, uint64_t offset,
		     uint64_t len)
{
	struct iovec rest[VIRTQ_CHAIN_MAX];
	int64_t done = transfer(preadv, raw_fd(b), iov, n, offset, len);
	unsigned i, k;

	if (done < 0)
		return (int)done;
	k = iov_slice(iov, (unsigned)n, (uint64_t)done, len - (uint64_t)done, rest);
	for (i = 0; i < k; i++)
		memset(rest[i].iov_base, 0, rest[i].iov_len);
	return 0;
}

static int raw_writev(struct blk_backend *b, const struct iovec *iov, int n, uint64_t offset,
		      uint64_t len)
{
	int64_t done = transfer(pwritev, raw_fd(b), iov, n, offset, len);

	if (done < 0)
		return (int)done;
	return (uint64_t)done == len ? 0 : -EIO;
}

static int raw_flush(struct blk_backend *b)
{
	return fdatasync(raw_fd(b)) < 0 ? -errno : 0;
}

static int raw_fallocate(struct blk_backend *b, int mode, uint64_t offset, uint64_t len)
{
	int r;

	do {
		r = fallocate(raw_fd(b), mode | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)len);
	} while (r < 0 && errno == EINTR);
	return r < 0 ? -errno : 0;
}

static int raw_discard(struct blk_backend *b, uint64_t offset, uint64_t len)
{
	int r = raw_fallocate(b, FALLOC_FL_PUNCH_HOLE, offset, len);

	return r == -EOPNOTSUPP ? 0 : r;
}

static int write_out_zeroes(struct blk_backend *b, uint64_t offset, uint64_t len)
{
	static const uint8_t zeroes[ZEROES];

	while (len > 0) {
		uint64_t n = len < ZEROES ? len : ZEROES;
		struct iovec iov = { .iov_base = (void *)(uintptr_t)zeroes, .iov_len = n };
		int r = raw_writev(b, &iov, 1, offset, n);

		if (r < 0)
			return r;
		offset += n;
		len -= n;
	}
	return 0;
}

static int raw_write_zeroes(struct blk_backend *b, uint64_t offset, uint64_t len, bool unmap)
{
	int r = raw_fallocate(b, unmap ? FALLOC_FL_PUNCH_HOLE : FALLOC_FL_ZERO_RANGE, offset, len);

	return r == -EOPNOTSUPP ? write_out_zeroes(b, offset, len) : r;
}

static void raw_free(struct blk_backend *b)
{
	free(b);
}

static const struct blk_backend_ops raw_ops = {
	.readv = raw_readv,
	.writev = raw_writev,
	.flush = raw_flush,
	.discard = raw_discard,
	.write_zeroes = raw_write_zeroes,
	.free = raw_free,
};

static int raw_size(int fd, uint64_t *size, struct err *e)
{
	struct stat st;

	if (fstat(fd, &st) < 0)
		return err_errno(e, errno, "disk");
	if (S_ISREG(st.st_mode)) {
		*size = (uint64_t)st.st_size;
		return 0;
	}
	if (!S_ISBLK(st.st_mode))
		return err_set(e, "bad_request", EINVAL,
			       "disk is neither a file nor a block device");
	if (ioctl(fd, BLKGETSIZE64, size) < 0)
		return err_errno(e, errno, "size of the disk");
	return 0;
}

int blk_raw_new(int fd, bool read_only, struct blk_backend **out, struct err *e)
{
	int mode = fcntl(fd, F_GETFL);
	struct blk_raw *raw;
	uint64_t size = 0;
	int r;

	if (mode < 0)
		return err_errno(e, errno, "disk");
	if (!read_only && (mode & O_ACCMODE) != O_RDWR)
		return err_set(e, "bad_request", EINVAL,
			       "disk is not open for reading and writing");
	r = raw_size(fd, &size, e);
	if (r < 0)
		return r;
	raw = calloc(1, sizeof(*raw));
	if (!raw)
		return err_errno(e, ENOMEM, "disk");
	raw->base.ops = &raw_ops;
	raw->base.size = size & ~511ULL;
	raw->base.read_only = read_only;
	raw->fd = fd;
	*out = &raw->base;
	return 0;
}

void blk_backend_free(struct blk_backend *b)
{
	if (b)
		b->ops->free(b);
}
