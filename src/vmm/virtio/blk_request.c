/*
 * A request is a 16-byte header, data, and a status byte, which is the last byte of the writable
 * part whatever the descriptors' borders are. The header is copied once; ranges are checked
 * against the disk before anything is done, so a request is refused as a whole.
 *
 * Threads: pure but for the guest's buffers, the backend and *stats, which is the caller's alone.
 */
#include "vmm/virtio/blk_request.h"

#include <errno.h>
#include <linux/virtio_blk.h>
#include <string.h>

#include "vmm/virtio/blk_backend.h"
#include "vmm/virtio/queue.h"

#define SECTOR 512u
#define HEADER ((uint32_t)sizeof(struct virtio_blk_outhdr))

/* How serving ended: a status, the bytes filled in front of it, and whose fault it is. */
struct outcome {
	uint8_t status;
	uint32_t filled;
	bool malformed;
};

static struct outcome malformed(uint8_t status)
{
	return (struct outcome){ .status = status, .malformed = true };
}

/* The outcome of a backend call that returned r and filled n bytes. */
static struct outcome done(int r, uint32_t n, struct virtio_blk_stats *stats)
{
	if (r == 0)
		return (struct outcome){ .status = VIRTIO_BLK_S_OK, .filled = n };
	if (r == -ENOSPC || r == -EDQUOT)
		stats->no_space = true;
	return (struct outcome){ .status = VIRTIO_BLK_S_IOERR };
}

/* Whether len bytes from a sector on are whole sectors inside of the disk. */
static bool in_range(const struct blk_backend *b, uint64_t sector, uint64_t len)
{
	uint64_t sectors = b->size / SECTOR;

	return len % SECTOR == 0 && sector <= sectors && len / SECTOR <= sectors - sector;
}

static struct outcome serve_read(const struct blk_disk *disk, const struct virtq_chain *c,
				 uint64_t sector, struct virtio_blk_stats *stats)
{
	struct blk_backend *b = disk->backend;
	struct iovec iov[VIRTQ_CHAIN_MAX];
	uint32_t len = c->in_len - 1;
	unsigned n = iov_slice(c->iov + c->nout, c->nin, 0, len, iov);
	int r;

	if (c->out_len != HEADER || !in_range(b, sector, len))
		return malformed(VIRTIO_BLK_S_IOERR);
	r = b->ops->readv(b, iov, (int)n, sector * SECTOR, len);
	if (r == 0) {
		stats->reads++;
		stats->bytes_read += len;
	}
	return done(r, len, stats);
}

static struct outcome serve_write(const struct blk_disk *disk, const struct virtq_chain *c,
				  uint64_t sector, bool write_through,
				  struct virtio_blk_stats *stats)
{
	struct blk_backend *b = disk->backend;
	struct iovec iov[VIRTQ_CHAIN_MAX];
	uint32_t len = c->out_len - HEADER;
	unsigned n = iov_slice(c->iov, c->nout, HEADER, len, iov);
	int r;

	if (b->read_only || !in_range(b, sector, len))
		return malformed(VIRTIO_BLK_S_IOERR);
	r = b->ops->writev(b, iov, (int)n, sector * SECTOR, len);
	if (r == 0 && write_through)
		r = b->ops->flush(b);
	if (r == 0) {
		stats->writes++;
		stats->bytes_written += len;
	}
	return done(r, 0, stats);
}

static struct outcome serve_flush(const struct blk_disk *disk, struct virtio_blk_stats *stats)
{
	struct blk_backend *b = disk->backend;
	int r = b->read_only ? 0 : b->ops->flush(b);

	if (r == 0)
		stats->flushes++;
	return done(r, 0, stats);
}

static struct outcome serve_id(const struct blk_disk *disk, const struct virtq_chain *c)
{
	if (!virtq_write(c, 0, disk->serial, VIRTIO_BLK_SERIAL_LEN) ||
	    c->in_len < VIRTIO_BLK_SERIAL_LEN + 1)
		return malformed(VIRTIO_BLK_S_IOERR);
	return (struct outcome){ .status = VIRTIO_BLK_S_OK, .filled = VIRTIO_BLK_SERIAL_LEN };
}

/* Checks one range; an allowed one has VIRTIO_BLK_S_OK. */
static uint8_t check_range(const struct blk_backend *b, bool zeroes,
			   const struct virtio_blk_discard_write_zeroes *s)
{
	uint32_t allowed = zeroes ? VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP : 0;

	if (s->flags & ~allowed)
		return VIRTIO_BLK_S_UNSUPP;
	if (s->num_sectors > BLK_RANGE_SECTORS_MAX ||
	    !in_range(b, s->sector, (uint64_t)s->num_sectors * SECTOR))
		return VIRTIO_BLK_S_IOERR;
	return VIRTIO_BLK_S_OK;
}

static int clear_range(struct blk_backend *b, bool zeroes,
		       const struct virtio_blk_discard_write_zeroes *s)
{
	uint64_t at = s->sector * SECTOR, len = (uint64_t)s->num_sectors * SECTOR;

	if (len == 0)
		return 0;
	if (zeroes)
		return b->ops->write_zeroes(b, at, len,
					    s->flags & VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP);
	return b->ops->discard(b, at, len);
}

static struct outcome serve_clear(const struct blk_disk *disk, const struct virtq_chain *c,
				  bool zeroes, struct virtio_blk_stats *stats)
{
	struct virtio_blk_discard_write_zeroes s[BLK_SEGMENTS_MAX];
	uint32_t len = c->out_len - HEADER, n = len / (uint32_t)sizeof(s[0]), i;
	struct blk_backend *b = disk->backend;
	int r = 0;

	if (b->read_only || len == 0 || len % sizeof(s[0]) || n > BLK_SEGMENTS_MAX ||
	    !virtq_read(c, HEADER, s, len))
		return malformed(VIRTIO_BLK_S_IOERR);
	for (i = 0; i < n; i++) {
		uint8_t status = check_range(b, zeroes, &s[i]);

		if (status != VIRTIO_BLK_S_OK)
			return malformed(status);
	}
	for (i = 0; i < n && r == 0; i++)
		r = clear_range(b, zeroes, &s[i]);
	if (r == 0)
		stats->discards++;
	return done(r, 0, stats);
}

static struct outcome serve(const struct blk_disk *disk, const struct virtq_chain *c,
			    bool write_through, struct virtio_blk_stats *stats)
{
	struct virtio_blk_outhdr h;

	if (!virtq_read(c, 0, &h, HEADER))
		return malformed(VIRTIO_BLK_S_IOERR);
	switch (h.type) {
	case VIRTIO_BLK_T_IN:
		return serve_read(disk, c, h.sector, stats);
	case VIRTIO_BLK_T_OUT:
		return serve_write(disk, c, h.sector, write_through, stats);
	case VIRTIO_BLK_T_FLUSH:
		return serve_flush(disk, stats);
	case VIRTIO_BLK_T_GET_ID:
		return serve_id(disk, c);
	case VIRTIO_BLK_T_DISCARD:
	case VIRTIO_BLK_T_WRITE_ZEROES:
		return serve_clear(disk, c, h.type == VIRTIO_BLK_T_WRITE_ZEROES, stats);
	default:
		return malformed(VIRTIO_BLK_S_UNSUPP);
	}
}

int64_t blk_request_serve(const struct blk_disk *disk, const struct virtq_chain *c,
			  bool write_through, struct virtio_blk_stats *stats)
{
	struct outcome o;

	if (c->in_len == 0)
		return -EPROTO;
	o = serve(disk, c, write_through, stats);
	if (o.status == VIRTIO_BLK_S_IOERR)
		stats->errors++;
	if (o.malformed)
		stats->malformed++;
	virtq_write(c, c->in_len - 1, &o.status, 1);
	/* The status counts as written only when everything before it was. */
	return o.filled == c->in_len - 1 ? (int64_t)o.filled + 1 : o.filled;
}
