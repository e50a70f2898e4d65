/*
 * Memory order: the driver fills descriptors, then the available ring, then its index; reading
 * that index with acquire makes the rest visible. The other way round, the used index is stored
 * with release after its entries. Whether the other side wants to be told is a Dekker pattern
 * (store ours, full fence, load theirs) on both sides.
 *
 * Invariant: next_avail never passes the driver's index, and at most `size` requests are between
 * next_used and next_avail, so a used entry never overwrites one that the driver has not got.
 */
#include "vmm/virtio/queue.h"

#include <errno.h>
#include <linux/virtio_ring.h>
#include <string.h>

#include "vmm/mem.h"

#define load_relaxed(p) __atomic_load_n(p, __ATOMIC_RELAXED)
#define store_relaxed(p, v) __atomic_store_n(p, v, __ATOMIC_RELAXED)

/* The event indexes follow the rings' entries. */
static uint16_t *used_event(const struct virtq *q)
{
	return &q->avail->ring[q->size];
}

static uint16_t *avail_event(const struct virtq *q)
{
	return (uint16_t *)&q->used->ring[q->size];
}

int virtq_enable(struct virtq *q, const struct guest_mem *mem, bool event_idx, bool indirect)
{
	uint64_t n = q->size;

	if (n == 0 || n > q->size_max || (n & (n - 1)))
		return -EINVAL;
	if (q->desc_gpa % 16 || q->avail_gpa % 2 || q->used_gpa % 4)
		return -EINVAL;
	q->desc = guest_mem_at(mem, q->desc_gpa, n * sizeof(struct vring_desc));
	q->avail = guest_mem_at(mem, q->avail_gpa, sizeof(struct vring_avail) + n * 2 + 2);
	q->used = guest_mem_at(mem, q->used_gpa,
			       sizeof(struct vring_used) + n * sizeof(struct vring_used_elem) + 2);
	if (!q->desc || !q->avail || !q->used)
		return -EINVAL;
	q->mem = mem;
	q->event_idx = event_idx;
	q->indirect = indirect;
	q->published = q->next_used;
	q->broken = false;
	q->ready = true;
	return 0;
}

void virtq_reset(struct virtq *q)
{
	*q = (struct virtq){ .size_max = q->size_max };
}

static int broken(struct virtq *q)
{
	q->broken = true;
	return -EPROTO;
}

/* A descriptor as it was at one moment. */
static struct vring_desc desc_copy(const struct vring_desc *d)
{
	return (struct vring_desc){
		.addr = load_relaxed(&d->addr),
		.len = load_relaxed(&d->len),
		.flags = load_relaxed(&d->flags),
		.next = load_relaxed(&d->next),
	};
}

/* Appends a descriptor's buffer: readable ones first, each in RAM and not empty. */
static int chain_add(const struct virtq *q, struct virtq_chain *c, const struct vring_desc *d)
{
	bool in = d->flags & VRING_DESC_F_WRITE;
	uint32_t *total = in ? &c->in_len : &c->out_len;
	void *p = guest_mem_at(q->mem, d->addr, d->len);

	if (!p || c->nout + c->nin == VIRTQ_CHAIN_MAX || (!in && c->nin))
		return -EPROTO;
	if (__builtin_add_overflow(*total, d->len, total))
		return -EPROTO;
	c->iov[c->nout + c->nin] = (struct iovec){ .iov_base = p, .iov_len = d->len };
	if (in)
		c->nin++;
	else
		c->nout++;
	return 0;
}

/*
 * Follows `next` through a table of n descriptors from index i. A chain longer than its table has
 * a loop in it. *indirect is filled when the chain ends in an indirect descriptor.
 */
static int walk(const struct virtq *q, struct virtq_chain *c, const struct vring_desc *table,
		uint32_t n, uint32_t i, struct vring_desc *indirect)
{
	uint32_t left;

	for (left = n; left > 0; left--) {
		struct vring_desc d;

		if (i >= n)
			return -EPROTO;
		d = desc_copy(&table[i]);
		if (d.flags & VRING_DESC_F_INDIRECT) {
			if (!indirect || (d.flags & VRING_DESC_F_NEXT))
				return -EPROTO;
			*indirect = d;
			return 0;
		}
		if (chain_add(q, c, &d) < 0)
			return -EPROTO;
		if (!(d.flags & VRING_DESC_F_NEXT))
			return 0;
		i = d.next;
	}
	return -EPROTO;
}

static int walk_indirect(const struct virtq *q, struct virtq_chain *c, const struct vring_desc *d)
{
	uint32_t n = d->len / (uint32_t)sizeof(struct vring_desc);
	const struct vring_desc *table = guest_mem_at(q->mem, d->addr, d->len);

	if (!table || d->addr % _Alignof(struct vring_desc) || d->len % sizeof(*table) ||
	    n > VIRTQ_CHAIN_MAX)
		return -EPROTO;
	return walk(q, c, table, n, 0, NULL);
}

int virtq_pop(struct virtq *q, struct virtq_chain *c)
{
	struct vring_desc indirect = { 0 };
	uint16_t idx, head;

	if (q->broken)
		return -EPROTO;
	if (!q->ready)
		return 0;
	idx = __atomic_load_n(&q->avail->idx, __ATOMIC_ACQUIRE);
	if (idx == q->next_avail)
		return 0;
	/* More requests than the ring holds, counting those still being worked on. */
	if ((uint16_t)(idx - q->next_used) > q->size)
		return broken(q);
	head = load_relaxed(&q->avail->ring[q->next_avail & (q->size - 1)]);
	c->head = head;
	c->nout = c->nin = 0;
	c->out_len = c->in_len = 0;
	if (walk(q, c, q->desc, q->size, head, q->indirect ? &indirect : NULL) < 0)
		return broken(q);
	if (indirect.flags && walk_indirect(q, c, &indirect) < 0)
		return broken(q);
	q->next_avail++;
	return 1;
}

bool virtq_has_more(const struct virtq *q)
{
	return q->ready && !q->broken && load_relaxed(&q->avail->idx) != q->next_avail;
}

uint16_t virtq_avail_index(const struct virtq *q)
{
	return q->ready ? load_relaxed(&q->avail->idx) : q->next_avail;
}

void virtq_unpop(struct virtq *q)
{
	q->next_avail--;
}

void virtq_push(struct virtq *q, uint16_t head, uint32_t written)
{
	struct vring_used_elem *u = &q->used->ring[q->next_used & (q->size - 1)];

	store_relaxed(&u->id, head);
	store_relaxed(&u->len, written);
	q->next_used++;
}

bool virtq_publish(struct virtq *q)
{
	uint16_t old = q->published;

	if (!q->ready || q->broken || old == q->next_used)
		return false;
	__atomic_store_n(&q->used->idx, q->next_used, __ATOMIC_RELEASE);
	q->published = q->next_used;
	__sync_synchronize();
	if (q->event_idx)
		return vring_need_event(load_relaxed(used_event(q)), q->next_used, old);
	return !(load_relaxed(&q->avail->flags) & VRING_AVAIL_F_NO_INTERRUPT);
}

bool virtq_want_more(struct virtq *q, uint16_t seen)
{
	if (!q->ready || q->broken)
		return false;
	if (q->event_idx)
		store_relaxed(avail_event(q), seen);
	else
		store_relaxed(&q->used->flags, 0);
	__sync_synchronize();
	return load_relaxed(&q->avail->idx) != seen;
}

bool virtq_want_kick(struct virtq *q, bool want)
{
	if (want)
		return virtq_want_more(q, q->next_avail);
	/* With event indexes the index stays behind and the driver keeps quiet. */
	if (q->ready && !q->broken && !q->event_idx)
		store_relaxed(&q->used->flags, VRING_USED_F_NO_NOTIFY);
	return false;
}

unsigned iov_slice(const struct iovec *iov, unsigned n, uint64_t offset, uint64_t len,
		   struct iovec *out)
{
	unsigned i, k = 0;

	for (i = 0; i < n && len > 0; i++) {
		uint64_t here;

		if (offset >= iov[i].iov_len) {
			offset -= iov[i].iov_len;
			continue;
		}
		here = iov[i].iov_len - offset;
		if (here > len)
			here = len;
		out[k++] = (struct iovec){ .iov_base = (uint8_t *)iov[i].iov_base + offset,
					   .iov_len = here };
		len -= here;
		offset = 0;
	}
	return k;
}

bool virtq_read(const struct virtq_chain *c, uint32_t offset, void *to, uint32_t len)
{
	uint8_t *p = to;
	unsigned i;

	if (offset > c->out_len || len > c->out_len - offset)
		return false;
	for (i = 0; i < c->nout && len > 0; i++) {
		size_t n = c->iov[i].iov_len;

		if (offset >= n) {
			offset -= (uint32_t)n;
			continue;
		}
		n = n - offset < len ? n - offset : len;
		memcpy(p, (const uint8_t *)c->iov[i].iov_base + offset, n);
		p += n;
		len -= (uint32_t)n;
		offset = 0;
	}
	return true;
}

bool virtq_write(const struct virtq_chain *c, uint32_t offset, const void *from, uint32_t len)
{
	const uint8_t *p = from;
	unsigned i;

	if (offset > c->in_len || len > c->in_len - offset)
		return false;
	for (i = c->nout; i < c->nout + c->nin && len > 0; i++) {
		size_t n = c->iov[i].iov_len;

		if (offset >= n) {
			offset -= (uint32_t)n;
			continue;
		}
		n = n - offset < len ? n - offset : len;
		memcpy((uint8_t *)c->iov[i].iov_base + offset, p, n);
		p += n;
		len -= (uint32_t)n;
		offset = 0;
	}
	return true;
}
