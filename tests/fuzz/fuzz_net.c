/*
 * The network card under a hostile driver, with a packet socket for its tap. What must hold: each
 * packet on the wire has a whole header that asks for nothing the driver did not negotiate.
 */
#include "virtio_script.h"

#include <linux/virtio_net.h>
#include <sys/socket.h>
#include <unistd.h>

#include "vmm/virtio/net.h"

#define HEADER ((ssize_t)sizeof(struct virtio_net_hdr_v1))

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { OP_WIRE = OP_DEVICE, OP_FRAME, OP_LAST };

static int set_offloads(int fd, unsigned f)
{
	(void)fd;
	(void)f;
	return 0;
}

static void read_wire(const struct script *s, int wire)
{
	static char packet[80000];
	struct virtio_net_hdr_v1 h;
	ssize_t n;

	while ((n = read(wire, packet, sizeof(packet))) > 0) {
		memcpy(&h, packet, sizeof(h));
		if (n < HEADER + 14 || n > HEADER + 65553 || h.num_buffers || (h.flags & ~1))
			abort();
		if (h.flags && h.csum_start + h.csum_offset + 2 > n - HEADER)
			abort();
		if (h.gso_type && (!h.flags || !h.gso_size))
			abort();
	}
	(void)s;
}

/* A frame in one buffer behind a header from the script. */
static void do_frame(struct script *s)
{
	struct virtio_net_hdr_v1 h = { 0 };
	struct vring_desc d = { .addr = 0x10000 };
	uint16_t i = s->avail[1] % SCRIPT_QUEUE;

	h.flags = (uint8_t)script_take(s, 1);
	h.gso_type = (uint8_t)script_take(s, 1);
	h.gso_size = (uint16_t)script_take(s, 2);
	h.csum_start = (uint16_t)script_take(s, 2);
	h.csum_offset = (uint16_t)script_take(s, 2);
	d.len = (uint32_t)script_take(s, 3);
	guest_mem_write(s->mem, d.addr, &h, sizeof(h));
	guest_mem_write(s->mem, SCRIPT_RINGS(1) + i * sizeof(d), &d, sizeof(d));
	guest_mem_write(s->mem, SCRIPT_RINGS(1) + 0x404 + 2 * i, &i, 2);
	script_index(s, 1, (uint16_t)(s->avail[1] + 1));
	script_set(s, VIRTIO_MMIO_QUEUE_NOTIFY, 1);
	script_turn(s);
}

static void step(struct script *s, int wire)
{
	static char packet[70000];
	unsigned op = (unsigned)script_take(s, 1) % OP_LAST;
	size_t n;

	if (script_common(s, op))
		return;
	if (op == OP_FRAME) {
		do_frame(s);
		return;
	}
	n = script_take(s, 3) % sizeof(packet);
	if (n && send(wire, packet, n, MSG_NOSIGNAL) < 0)
		return; /* full: the device has no buffers */
	script_turn(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct virtio_net_setup setup = { .set_offloads = set_offloads, .mtu = 1500 };
	struct virtio_net *net = NULL;
	struct script s;
	unsigned left;
	int sv[2];

	script_begin(&s, data, size);
	if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sv) < 0)
		abort();
	setup.fd = sv[1];
	if (virtio_net_new(s.mem, &setup, &net, NULL) < 0)
		abort();
	s.v = virtio_net_mmio(net);
	if (virtio_mmio_attach(s.v, s.loop, NULL) < 0)
		abort();
	for (left = SCRIPT_OPS_MAX; left > 0 && s.p < s.end; left--) {
		step(&s, sv[0]);
		script_check(&s);
		read_wire(&s, sv[0]);
	}
	virtio_net_free(net);
	close(sv[0]);
	close(sv[1]);
	script_end(&s);
	return 0;
}
