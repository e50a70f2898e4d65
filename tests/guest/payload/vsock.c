/* A vsock driver that accepts every connection and echoes what comes, until it is shut down. */
#include "virtio.h"

#define RX 0
#define TX 1
#define EVENT 2
#define BUFFERS 4
#define BUFFER_BYTES 4096
#define OP_REQUEST 1
#define OP_RESPONSE 2
#define OP_RST 3
#define OP_SHUTDOWN 4
#define OP_RW 5
#define OP_CREDIT_UPDATE 6
#define OP_CREDIT_REQUEST 7
#define TYPE_STREAM 1
#define BUF_ALLOC 65536
#define REFUSED_PORT 9

struct packet {
	uint64_t src_cid, dst_cid;
	uint32_t src_port, dst_port, len;
	uint16_t type, op;
	uint32_t flags, buf_alloc, fwd_cnt;
} __attribute__((packed));

static struct vq rx, tx, event;
static uint8_t buffers[BUFFERS][BUFFER_BYTES];
static uint8_t out[BUFFER_BYTES];
static uint32_t received;

static void give_buffer(uint16_t i)
{
	rx.desc[i] = (struct vq_desc){ (uint64_t)buffers[i], BUFFER_BYTES, VQ_WRITE, 0 };
	vq_submit(&rx, i);
}

static bool reply(const struct packet *to, uint16_t op, const void *payload, uint32_t len)
{
	struct packet *p = (struct packet *)out;
	uint16_t head;

	*p = (struct packet){ .src_cid = to->dst_cid,
			      .dst_cid = to->src_cid,
			      .src_port = to->dst_port,
			      .dst_port = to->src_port,
			      .len = len,
			      .type = TYPE_STREAM,
			      .op = op,
			      .buf_alloc = BUF_ALLOC,
			      .fwd_cnt = received };
	memcpy(out + sizeof(*p), payload, len);
	tx.desc[0] = (struct vq_desc){ (uint64_t)out, (uint32_t)sizeof(*p) + len, 0, 0 };
	vq_submit(&tx, 0);
	return vq_wait(&tx, &head) >= 0;
}

/* Handles one packet; false when the last connection was shut down. */
static bool handle(const struct packet *p)
{
	switch (p->op) {
	case OP_REQUEST:
		received = 0;
		check(reply(p, p->dst_port == REFUSED_PORT ? OP_RST : OP_RESPONSE, NULL, 0),
		      "a connection is answered");
		return true;
	case OP_RW:
		received += p->len;
		if (!reply(p, OP_RW, p + 1, p->len))
			check(false, "an echo is sent");
		return true;
	case OP_CREDIT_REQUEST:
		return reply(p, OP_CREDIT_UPDATE, NULL, 0);
	case OP_SHUTDOWN:
		check(reply(p, OP_RST, NULL, 0), "a shutdown is answered");
		return false;
	default:
		return true;
	}
}

void test_vsock(void)
{
	uint32_t gsi;
	uint64_t base = virtio_find(VIRTIO_ID_VSOCK, &gsi);
	bool more = true;

	check(base != 0, "there is a vsock device");
	check(virtio_begin(base), "it takes VERSION_1");
	put_text("cid ");
	put_number(mmio_read(base + VR_CONFIG));
	put_text("\n");
	virtio_queue(base, RX, &rx);
	virtio_queue(base, TX, &tx);
	virtio_queue(base, EVENT, &event);
	virtio_ready(base);
	for (uint16_t i = 0; i < BUFFERS; i++)
		give_buffer(i);
	put_text("listening\n");
	while (more) {
		uint16_t head;

		if (vq_wait(&rx, &head) < (int64_t)sizeof(struct packet)) {
			check(false, "a packet comes");
			return;
		}
		more = handle((const struct packet *)buffers[head]);
		give_buffer(head);
	}
	put_text("echoed ");
	put_number(received);
	put_text("\n");
}
