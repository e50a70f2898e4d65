/* Round trips on the disk and the entropy source, and what a broken driver gets. */
#include "virtio.h"

#define SECTOR 512
#define BLK_READ 0
#define BLK_WRITE 1
#define BLK_FLUSH 4
#define POLLS 20000

static struct vq queue;
static struct {
	uint32_t type, reserved;
	uint64_t sector;
} request;
static uint8_t data[SECTOR], status;

/* One request: header, data (unless a flush), status. The device's status byte, or 0xff. */
static uint8_t blk_do(uint32_t type, uint64_t sector)
{
	uint16_t head;

	request.type = type;
	request.sector = sector;
	status = 0xff;
	queue.desc[0] = (struct vq_desc){ (uint64_t)&request, sizeof(request), VQ_NEXT,
					  type == BLK_FLUSH ? 2 : 1 };
	queue.desc[1] = (struct vq_desc){ (uint64_t)data, SECTOR,
					  VQ_NEXT | (type == BLK_READ ? VQ_WRITE : 0), 2 };
	queue.desc[2] = (struct vq_desc){ (uint64_t)&status, 1, VQ_WRITE, 0 };
	vq_submit(&queue, 0);
	return vq_wait(&queue, &head) < 0 ? 0xff : status;
}

static bool blk_begin(uint64_t base)
{
	bool ok = virtio_begin(base);

	virtio_queue(base, 0, &queue);
	virtio_ready(base);
	return ok;
}

static bool all_bytes(uint8_t v)
{
	for (unsigned i = 0; i < SECTOR; i++)
		if (data[i] != v)
			return false;
	return true;
}

/* The runner's disk: 64 sectors, each full of its own number. */
void test_blk(void)
{
	uint32_t gsi;
	uint64_t base = virtio_find(VIRTIO_ID_BLK, &gsi);

	check(base != 0, "there is a disk");
	check(blk_begin(base), "the disk takes VERSION_1");
	check(mmio_read(base + VR_CONFIG) == 64, "its capacity is 64 sectors");
	irq_enable(gsi);
	check(blk_do(BLK_READ, 5) == 0 && all_bytes(5), "sector 5 is read");
	memset(data, 0xc3, SECTOR);
	check(blk_do(BLK_WRITE, 7) == 0, "sector 7 is written");
	check(blk_do(BLK_FLUSH, 0) == 0, "the disk is flushed");
	memset(data, 0, SECTOR);
	check(blk_do(BLK_READ, 7) == 0 && all_bytes(0xc3), "sector 7 reads back");
	check(blk_do(BLK_READ, 64) == 1, "a read past the end is an I/O error");
	check(blk_do(BLK_READ, UINT64_MAX) == 1, "a read at the largest sector is an I/O error");
	check(irq_count > 0, "the disk interrupts");
	check(mmio_read(base + VR_INTERRUPT_STATUS) & 1, "the interrupt's cause is the queue");
	mmio_write(base + VR_INTERRUPT_ACK, 3);
	check(mmio_read(base + VR_INTERRUPT_STATUS) == 0, "acknowledging clears the cause");
}

void test_rng(void)
{
	static uint8_t a[64], b[64];
	static const uint8_t zero[64];
	uint32_t gsi;
	uint64_t base = virtio_find(VIRTIO_ID_RNG, &gsi);
	uint16_t head;

	check(base != 0, "there is an entropy source");
	check(virtio_begin(base), "it takes VERSION_1");
	virtio_queue(base, 0, &queue);
	virtio_ready(base);
	queue.desc[0] = (struct vq_desc){ (uint64_t)a, sizeof(a), VQ_WRITE, 0 };
	queue.desc[1] = (struct vq_desc){ (uint64_t)b, sizeof(b), VQ_WRITE, 0 };
	vq_submit(&queue, 0);
	check(vq_wait(&queue, &head) == sizeof(a), "it fills a buffer");
	vq_submit(&queue, 1);
	check(vq_wait(&queue, &head) == sizeof(b), "and another");
	check(memcmp(a, zero, sizeof(a)) != 0 && memcmp(a, b, sizeof(a)) != 0,
	      "the bytes differ from zero and from each other");
}

static void garbage_ring_outside(uint64_t base)
{
	queue.base = base;
	mmio_write(base + VR_QUEUE_READY, 0);
	mmio_write(base + VR_QUEUE_DESC, 0xfffff000);
	mmio_write(base + VR_QUEUE_DESC + 4, 0xffffffff);
	mmio_write(base + VR_QUEUE_READY, 1);
}

static void garbage_descriptor_outside(uint64_t base)
{
	(void)base;
	queue.desc[0] = (struct vq_desc){ 0xfffffffffffff000, 0xffffffff, 0, 0 };
}

static void garbage_loop(uint64_t base)
{
	(void)base;
	queue.desc[0] = (struct vq_desc){ (uint64_t)&request, sizeof(request), VQ_NEXT, 1 };
	queue.desc[1] = (struct vq_desc){ (uint64_t)data, SECTOR, VQ_NEXT, 0 };
}

static void garbage_next(uint64_t base)
{
	(void)base;
	queue.desc[0] = (struct vq_desc){ (uint64_t)&request, sizeof(request), VQ_NEXT, 0xffff };
}

static void garbage_head(uint64_t base)
{
	(void)base;
	for (unsigned i = 0; i < VQ_SIZE; i++)
		queue.avail.ring[i] = 0xfff0;
	queue.avail.idx = 1;
}

static void garbage_index(uint64_t base)
{
	(void)base;
	queue.avail.idx = 0x7000;
}

/* The device refuses the queue at once, or asks for a reset once it has met the damage. */
static bool notices(uint64_t base)
{
	for (unsigned n = 0; n < POLLS; n++)
		if ((mmio_read(base + VR_STATUS) & VIRTIO_NEEDS_RESET) ||
		    mmio_read(base + VR_QUEUE_READY) == 0)
			return true;
	return false;
}

/* Each damage breaks the device and only the device: it says so, and a reset mends it. */
void test_garbage(void)
{
	static void (*const damages[])(uint64_t) = {
		garbage_ring_outside, garbage_descriptor_outside,
		garbage_loop,	      garbage_next,
		garbage_head,	      garbage_index,
	};
	uint32_t gsi;
	uint64_t base = virtio_find(VIRTIO_ID_BLK, &gsi);

	check(base != 0, "there is a disk");
	for (unsigned i = 0; i < sizeof(damages) / sizeof(damages[0]); i++) {
		blk_begin(base);
		damages[i](base);
		if (queue.avail.idx == 0)
			vq_submit(&queue, 0);
		else
			mmio_write(base + VR_QUEUE_NOTIFY, 0);
		put_text("damage ");
		put_number(i);
		put_text(" ");
		check(notices(base), "is noticed");
		blk_begin(base);
		check(blk_do(BLK_READ, 9) == 0 && all_bytes(9), "and a reset mends it");
	}
}
