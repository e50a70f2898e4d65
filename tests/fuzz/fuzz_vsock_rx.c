/*
 * vsock under a hostile driver, with programs at the host's ends that write, read, shut down and
 * close as the script says. What must hold: every connect is told how it ended exactly once, and
 * no stream ever delivers more than the guest's packets held.
 */
#include "virtio_script.h"

#include <linux/virtio_vsock.h>
#include <sys/socket.h>
#include <unistd.h>

#include "vmm/virtio/vsock.h"

#define STREAMS 8
#define CID 3
#define PORT_FIRST 1024u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum {
	OP_CONNECT = OP_DEVICE,
	OP_HOST_WRITE,
	OP_HOST_READ,
	OP_HOST_SHUT,
	OP_HOST_CLOSE,
	OP_PACKET,
	OP_BUFFERS,
	OP_LAST
};

struct stream {
	int fd; /* the host's end */
	unsigned begun, ended;
};

struct target {
	struct script s;
	struct virtio_vsock *vsock;
	struct stream streams[STREAMS];
	unsigned n;
};

static void on_connected(void *ctx, int result)
{
	struct stream *st = ctx;

	(void)result;
	if (++st->ended > st->begun)
		abort();
}

static void do_connect(struct target *t)
{
	struct stream *st = &t->streams[t->n];
	uint32_t port = (uint32_t)script_take(&t->s, 2);
	int sv[2];

	if (t->n == STREAMS)
		return;
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sv) < 0)
		abort();
	st->fd = sv[0];
	if (virtio_vsock_connect(t->vsock, port, sv[1], 100000, on_connected, st, NULL) < 0)
		abort();
	st->begun++;
	t->n++;
}

/* A well-formed packet to a live connection with some fields taken from the script. */
static void do_packet(struct target *t)
{
	struct script *s = &t->s;
	struct virtio_vsock_hdr h = { .src_cid = CID, .dst_cid = 2, .type = 1 };
	struct vring_desc d = { .addr = 0x10000 };

	h.dst_port = PORT_FIRST + (uint32_t)script_take(s, 1) % STREAMS;
	h.src_port = (uint32_t)script_take(s, 2);
	h.op = (uint16_t)script_take(s, 1);
	h.flags = (uint32_t)script_take(s, 1);
	h.len = (uint32_t)script_take(s, 2);
	h.buf_alloc = (uint32_t)script_take(s, 2);
	h.fwd_cnt = (uint32_t)script_take(s, 2);
	d.len = (uint32_t)sizeof(h) + h.len;
	guest_mem_write(s->mem, d.addr, &h, sizeof(h));
	guest_mem_write(s->mem, SCRIPT_RINGS(1) + (s->avail[1] % SCRIPT_QUEUE) * sizeof(d), &d,
			sizeof(d));
	guest_mem_write(s->mem, SCRIPT_RINGS(1) + 0x404 + 2 * (s->avail[1] % SCRIPT_QUEUE),
			&(uint16_t){ s->avail[1] % SCRIPT_QUEUE }, 2);
	script_index(s, 1, (uint16_t)(s->avail[1] + 1));
	script_set(s, VIRTIO_MMIO_QUEUE_NOTIFY, 1);
	script_turn(s);
}

/* Gives the device its fill of receive buffers. */
static void do_buffers(struct target *t)
{
	struct script *s = &t->s;
	uint16_t used = 0, i;

	guest_mem_read(s->mem, SCRIPT_RINGS(0) + 0x802, &used, 2);
	while ((uint16_t)(s->avail[0] - used) < SCRIPT_QUEUE) {
		struct vring_desc d = { .len = 1024, .flags = VRING_DESC_F_WRITE };

		i = s->avail[0] % SCRIPT_QUEUE;
		d.addr = 0x30000u + i * 1024u;
		guest_mem_write(s->mem, SCRIPT_RINGS(0) + i * sizeof(d), &d, sizeof(d));
		guest_mem_write(s->mem, SCRIPT_RINGS(0) + 0x404 + 2 * i, &i, 2);
		script_index(s, 0, (uint16_t)(s->avail[0] + 1));
	}
	script_set(s, VIRTIO_MMIO_QUEUE_NOTIFY, 0);
	script_turn(s);
}

static void do_host(struct target *t, unsigned op)
{
	static char buf[65536];
	struct stream *st = &t->streams[script_take(&t->s, 1) % STREAMS];
	uint64_t n = script_take(&t->s, 2);
	ssize_t r = 0;

	if (st->fd < 0)
		return;
	if (op == OP_HOST_WRITE)
		r = send(st->fd, buf, n, MSG_NOSIGNAL);
	else if (op == OP_HOST_READ)
		r = read(st->fd, buf, n);
	else if (op == OP_HOST_SHUT)
		r = shutdown(st->fd, (int)(n % 3));
	else
		close_fd(&st->fd);
	(void)r; /* the other end may be gone: part of the play */
	script_turn(&t->s);
}

static void step(struct target *t)
{
	unsigned op = (unsigned)script_take(&t->s, 1) % OP_LAST;

	if (script_common(&t->s, op))
		return;
	if (op == OP_CONNECT)
		do_connect(t);
	else if (op == OP_PACKET)
		do_packet(t);
	else if (op == OP_BUFFERS)
		do_buffers(t);
	else
		do_host(t, op);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct target t = { 0 };
	unsigned left, i;

	script_begin(&t.s, data, size);
	for (i = 0; i < STREAMS; i++)
		t.streams[i].fd = -1;
	if (virtio_vsock_new(t.s.mem, CID, &t.vsock, NULL) < 0)
		abort();
	t.s.v = virtio_vsock_mmio(t.vsock);
	if (virtio_mmio_attach(t.s.v, t.s.loop, NULL) < 0)
		abort();
	for (left = SCRIPT_OPS_MAX; left > 0 && t.s.p < t.s.end; left--) {
		step(&t);
		script_check(&t.s);
	}
	virtio_vsock_free(t.vsock);
	for (i = 0; i < STREAMS; i++) {
		if (t.streams[i].ended != t.streams[i].begun)
			abort();
		close_fd(&t.streams[i].fd);
	}
	script_end(&t.s);
	return 0;
}
