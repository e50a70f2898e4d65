/*
 * The device side of a split virtqueue (virtio 1.2, section 2.7) with indirect descriptors and
 * event indexes. The rings lie in guest memory: every value is read once and checked. A ring that
 * makes no sense marks the queue broken; from then on it yields nothing until the device's reset.
 *
 * A queue belongs to its device and is used under the device's lock.
 */
#ifndef CLOCHE_VMM_VIRTIO_QUEUE_H
#define CLOCHE_VMM_VIRTIO_QUEUE_H

#include <endian.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

struct guest_mem;

_Static_assert(__BYTE_ORDER == __LITTLE_ENDIAN, "virtio structures are used as they are");

#define VIRTQ_SIZE_MAX 256
#define VIRTQ_CHAIN_MAX 256 /* descriptors of one chain, an indirect table's included */

struct virtq {
	/* Set by the driver through the transport; saved. */
	uint16_t size_max; /* what the device offers, a power of two */
	uint16_t size;
	bool ready;
	uint64_t desc_gpa, avail_gpa, used_gpa;
	uint16_t next_avail; /* next entry of the available ring to take */
	uint16_t next_used;  /* next entry of the used ring to fill */
	/* Derived when the queue gets ready. */
	bool event_idx, indirect;
	uint16_t published; /* next_used when it was last shown to the driver */
	bool broken;
	const struct guest_mem *mem;
	struct vring_desc *desc;
	struct vring_avail *avail;
	struct vring_used *used;
};

/* One request: what the device may read is iov[0..nout), what it must fill is iov[nout..+nin). */
struct virtq_chain {
	uint16_t head;
	unsigned nout, nin;
	uint32_t out_len, in_len; /* bytes */
	struct iovec iov[VIRTQ_CHAIN_MAX];
};

/*
 * Makes the queue usable with the addresses set in it. -EINVAL when its size is no power of two
 * within size_max, or a ring is misaligned or not in RAM; then ready stays false.
 */
int virtq_enable(struct virtq *q, const struct guest_mem *mem, bool event_idx, bool indirect);

/* Back to the state before any driver; size_max stays. */
void virtq_reset(struct virtq *q);

/* Takes the next request: 1, 0 when there is none, -EPROTO when the queue is (now) broken. */
int virtq_pop(struct virtq *q, struct virtq_chain *c);

/* Whether virtq_pop() would find something. */
bool virtq_has_more(const struct virtq *q);

/* The driver's index: how many requests it ever made available, modulo 2^16. */
uint16_t virtq_avail_index(const struct virtq *q);

/* Puts back the request that the last virtq_pop() took. */
void virtq_unpop(struct virtq *q);

/* Hands a request back with the bytes that were written from the start of its in part. */
void virtq_push(struct virtq *q, uint16_t head, uint32_t written);

/* Shows the driver everything pushed; whether it wants an interrupt for that. */
bool virtq_publish(struct virtq *q);

/*
 * Tells the driver to kick, or not to, for new requests. virtq_want_kick(q, true) returns whether
 * requests are there already: then the caller goes on, since no kick may come for them.
 */
bool virtq_want_kick(struct virtq *q, bool want);

/*
 * For a device that needs more requests than the ones there: tells the driver to kick once its
 * index passes `seen`, an earlier virtq_avail_index(); returns whether it has passed it already.
 */
bool virtq_want_more(struct virtq *q, uint16_t seen);

/* Copies len bytes at offset of the readable or the writable part; false when it is too short. */
bool virtq_read(const struct virtq_chain *c, uint32_t offset, void *to, uint32_t len);
bool virtq_write(const struct virtq_chain *c, uint32_t offset, const void *from, uint32_t len);

/* The iovecs of len bytes at offset, from iov[n] into out (room for n); their number. */
unsigned iov_slice(const struct iovec *iov, unsigned n, uint64_t offset, uint64_t len,
		   struct iovec *out);

#endif
