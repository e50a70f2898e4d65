/* A vsock driver that accepts connections and echoes what comes. */
#include "vsock.h"

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
#define EVENT_BYTES 16
#define BUF_ALLOC 65536
#define REFUSED_PORT 9

struct packet {
	uint64_t src_cid, dst_cid;
	uint32_t src_port, dst_port, len;
	uint16_t type, op;
	uint32_t flags, buf_alloc, fwd_cnt;
} __attribute__((packed));

static struct vq rx, tx, event;
static uint8_t event_buffer[EVENT_BYTES];
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

static void give_event_buffer(void)
{
	event.desc[0] = (struct vq_desc){ (uint64_t)event_buffer, EVENT_BYTES, VQ_WRITE, 0 };
	vq_submit(&event, 0);
}

bool vsock_begin(void)
{
	uint32_t gsi;
	uint64_t base = virtio_find(VIRTIO_ID_VSOCK, &gsi);

	check(base != 0, "there is a vsock device");
	if (!virtio_begin(base))
		return false;
	virtio_queue(base, RX, &rx);
	virtio_queue(base, TX, &tx);
	virtio_queue(base, EVENT, &event);
	virtio_ready(base);
	for (uint16_t i = 0; i < BUFFERS; i++)
		give_buffer(i);
	give_event_buffer();
	put_text("cid ");
	put_number(mmio_read(base + VR_CONFIG));
	put_text("\n");
	return true;
}

/* Answers one packet. */
static enum vsock_news handle(const struct packet *p, uint32_t *port)
{
	*port = p->dst_port;
	switch (p->op) {
	case OP_REQUEST:
		received = 0;
		check(reply(p, p->dst_port == REFUSED_PORT ? OP_RST : OP_RESPONSE, NULL, 0),
		      "a connection is answered");
		return VSOCK_OPENED;
	case OP_RW:
		received += p->len;
		if (!reply(p, OP_RW, p + 1, p->len))
			check(false, "an echo is sent");
		return VSOCK_NOTHING;
	case OP_CREDIT_REQUEST:
		reply(p, OP_CREDIT_UPDATE, NULL, 0);
		return VSOCK_NOTHING;
	case OP_SHUTDOWN:
		check(reply(p, OP_RST, NULL, 0), "a shutdown is answered");
		return VSOCK_CLOSED;
	default:
		return VSOCK_NOTHING;
	}
}

enum vsock_news vsock_poll(uint32_t *port)
{
	enum vsock_news news;
	uint16_t head;

	if (vq_poll(&event, &head) >= 0)
		give_event_buffer(); /* which answers the event */
	if (vq_poll(&rx, &head) < (int64_t)sizeof(struct packet))
		return VSOCK_NOTHING;
	news = handle((const struct packet *)buffers[head], port);
	give_buffer(head);
	return news;
}

void test_vsock(void)
{
	enum vsock_news news;
	uint32_t port;

	check(vsock_begin(), "it takes VERSION_1");
	do {
		relax();
		news = vsock_poll(&port);
	} while (news != VSOCK_CLOSED);
	put_text("echoed ");
	put_number(received);
	put_text("\n");
}
