/*
 * What a disk stores its bytes in. A backend is a struct that begins with struct blk_backend;
 * its functions are called from the disk's worker threads, several at once, and may block.
 * Offsets and lengths are in bytes, multiples of 512, and were checked against size. All return 0
 * when everything was done, else a negative errno.
 */
#ifndef CLOCHE_VMM_VIRTIO_BLK_BACKEND_H
#define CLOCHE_VMM_VIRTIO_BLK_BACKEND_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

struct blk_backend;
struct err;

struct blk_backend_ops {
	/* The iovecs' lengths add up to len. Bytes past the end of a short file read as zero. */
	int (*readv)(struct blk_backend *b, const struct iovec *iov, int n, uint64_t offset,
		     uint64_t len);
	int (*writev)(struct blk_backend *b, const struct iovec *iov, int n, uint64_t offset,
		      uint64_t len);
	/* All writes that returned before are durable when this returns. */
	int (*flush)(struct blk_backend *b);
	/* The range may read as anything afterwards; ours reads as zero. */
	int (*discard)(struct blk_backend *b, uint64_t offset, uint64_t len);
	/* The range reads as zero; with unmap its space may be given back. */
	int (*write_zeroes)(struct blk_backend *b, uint64_t offset, uint64_t len, bool unmap);
	void (*free)(struct blk_backend *b);
};

struct blk_backend {
	const struct blk_backend_ops *ops;
	uint64_t size; /* bytes, a multiple of 512, constant */
	bool read_only;
};

/*
 * A raw image: a regular file or a block device. fd stays the caller's and must outlive the
 * backend; it must be open for writing unless read_only. A size that is no multiple of 512 is cut.
 */
int blk_raw_new(int fd, bool read_only, struct blk_backend **out, struct err *e);

void blk_backend_free(struct blk_backend *b); /* NULL-safe */

#endif
