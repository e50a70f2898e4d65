/*
 * The network card, over a packet socket pair for what every host can run, and over a real tap in
 * a network namespace of its own where the test may make one.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_packet.h>
#include <linux/if_tun.h>
#include <linux/virtio_config.h>
#include <linux/virtio_mmio.h>
#include <linux/virtio_net.h>
#include <linux/virtio_ring.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/loop.h"
#include "virtio_driver.h"
#include "vmm/mem.h"
#include "vmm/virtio/mmio.h"
#include "vmm/virtio/net.h"

enum { RX, TX };

#define ALL UINT64_MAX
#define F(name) (1ULL << VIRTIO_NET_F_##name)
#define HEADER ((uint32_t)sizeof(struct virtio_net_hdr_v1))
#define RX_LEN 1536
#define BUFS (4u << 20) /* guest address of buffers */

static const uint8_t mac[6] = { 2, 0xc1, 0x0c, 0xe0, 0, 1 };

struct fixture {
	struct loop *loop;
	struct guest_mem *mem;
	struct virtio_net *net;
	struct vdrv d;
	int wire; /* the other end */
	int fd;
	uint64_t rx_at[256];
	unsigned rx_next;
};

static unsigned offloads; /* what the device last asked its descriptor for */

static int set_offloads(int fd, unsigned f)
{
	(void)fd;
	offloads = f;
	return 0;
}

static void make(struct fixture *f, int fd, bool tap)
{
	struct virtio_net_setup s = { .fd = fd, .mtu = 1400 };

	s.set_offloads = tap ? NULL : set_offloads;
	memcpy(s.mac, mac, 6);
	f->fd = fd;
	assert_int_equal(virtio_net_new(f->mem, &s, &f->net, NULL), 0);
	assert_int_equal(virtio_mmio_attach(virtio_net_mmio(f->net), f->loop, NULL), 0);
	vdrv_init(&f->d, virtio_net_mmio(f->net), f->mem, f->loop, 1 << 20);
}

static int set_up_without_device(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));

	assert_non_null(f);
	assert_int_equal(loop_new(&f->loop, NULL), 0);
	assert_int_equal(guest_mem_new(16 << 20, 0, &f->mem, NULL), 0);
	f->wire = f->fd = -1;
	*state = f;
	return 0;
}

static int set_up(void **state)
{
	int sv[2], size = 1 << 20;

	set_up_without_device(state);
	assert_int_equal(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, sv), 0);
	assert_int_equal(setsockopt(sv[0], SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof(size)), 0);
	((struct fixture *)*state)->wire = sv[0];
	assert_int_equal(fd_set_nonblock(sv[0], true), 0);
	make(*state, sv[1], false);
	return 0;
}

static int tear_down(void **state)
{
	struct fixture *f = *state;

	if (f->net)
		vdrv_fini(&f->d);
	virtio_net_free(f->net);
	loop_free(f->loop);
	guest_mem_free(f->mem);
	close_fd(&f->wire);
	close_fd(&f->fd);
	free(f);
	return 0;
}

static void add_rx(struct fixture *f, uint32_t len)
{
	struct vdrv_buf b = { .gpa = BUFS + f->rx_next++ % 128 * 4096, .len = len, .in = true };

	f->rx_at[vdrv_add(&f->d, RX, &b, 1)] = b.gpa;
	vdrv_kick(&f->d, RX);
}

static void turns(struct fixture *f)
{
	for (int i = 0; i < 3; i++)
		vdrv_turn(f->loop);
}

/* A frame on the wire, with the header that a tap puts in front. */
static void wire_send(struct fixture *f, const uint8_t *frame, uint32_t len)
{
	static uint8_t packet[70000];

	memset(packet, 0, HEADER);
	memcpy(packet + HEADER, frame, len);
	assert_int_equal(write(f->wire, packet, HEADER + len), HEADER + len);
	turns(f);
}

static void pattern(uint8_t *p, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		p[i] = (uint8_t)(i * 5 + (i >> 8));
}

/* Gathers one packet from the guest's buffers; its length without header, 0 when there is none. */
static uint32_t guest_receive(struct fixture *f, uint8_t *out, unsigned *buffers)
{
	struct virtio_net_hdr_v1 h;
	uint32_t total = 0, len;
	uint16_t head;

	if (!vdrv_used(&f->d, RX, &head, &len))
		return 0;
	assert_int_equal(guest_mem_read(f->mem, f->rx_at[head], &h, sizeof(h)), 0);
	*buffers = h.num_buffers;
	guest_mem_read(f->mem, f->rx_at[head] + HEADER, out, len - HEADER);
	total = len - HEADER;
	for (unsigned i = 1; i < h.num_buffers; i++) {
		assert_true(vdrv_used(&f->d, RX, &head, &len));
		guest_mem_read(f->mem, f->rx_at[head], out + total, len);
		total += len;
	}
	return total;
}

static void guest_send(struct fixture *f, const struct virtio_net_hdr_v1 *h, const uint8_t *frame,
		       uint32_t len)
{
	struct vdrv_buf b[] = { { 8 << 20, HEADER, false }, { (8 << 20) + 4096, len, false } };

	assert_int_equal(guest_mem_write(f->mem, b[0].gpa, h, HEADER), 0);
	assert_int_equal(guest_mem_write(f->mem, b[1].gpa, frame, len), 0);
	vdrv_add(&f->d, TX, b, len ? 2 : 1);
	vdrv_kick(&f->d, TX);
	vdrv_wait(&f->d, TX, NULL);
}

static struct virtio_net_stats stats(struct fixture *f)
{
	struct virtio_net_stats st;

	virtio_net_stats(f->net, &st);
	return st;
}

static void configuration(void **state)
{
	struct fixture *f = *state;
	struct virtio_net_config c = { 0 };

	for (unsigned i = 0; i < sizeof(c); i++)
		virtio_mmio_read(f->d.v, VIRTIO_MMIO_CONFIG + i, (uint8_t *)&c + i, 1);
	assert_memory_equal(c.mac, mac, 6);
	assert_int_equal(c.mtu, 1400);
	vdrv_start(&f->d, ALL, 64);
	assert_true(f->d.features & F(MAC));
	assert_true(f->d.features & F(MRG_RXBUF));
	assert_false(f->d.features & F(CTRL_VQ));
	turns(f);
	assert_int_equal(offloads, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6);
	/* A driver that can take less gets less. */
	f->d.heap = 1 << 20;
	vdrv_start(&f->d, F(GUEST_TSO4), 64);
	turns(f);
	assert_int_equal(offloads, 0);
	f->d.heap = 1 << 20;
	vdrv_start(&f->d, F(GUEST_CSUM) | F(GUEST_TSO6), 64);
	turns(f);
	assert_int_equal(offloads, TUN_F_CSUM | TUN_F_TSO6);
}

static void both_ways(void **state)
{
	static const uint64_t masks[] = { 0, F(MRG_RXBUF), ALL };
	struct fixture *f = *state;
	struct virtio_net_hdr_v1 h = { 0 };
	uint8_t frame[1500], got[4096];
	unsigned buffers;

	pattern(frame, sizeof(frame));
	for (size_t m = 0; m < ARRAY_SIZE(masks); m++) {
		f->d.heap = 1 << 20;
		vdrv_start(&f->d, masks[m], 64);
		for (int i = 0; i < 32; i++)
			add_rx(f, RX_LEN);
		for (uint32_t len = 14; len <= 1500; len += 297) {
			wire_send(f, frame, len);
			assert_int_equal(guest_receive(f, got, &buffers), len);
			assert_int_equal(buffers, 1);
			assert_memory_equal(got, frame, len);
			guest_send(f, &h, frame, len);
			assert_int_equal(read(f->wire, got, sizeof(got)), HEADER + len);
			assert_memory_equal(got + HEADER, frame, len);
		}
	}
	assert_int_equal(stats(f).rx_packets, 18);
	assert_int_equal(stats(f).tx_packets, 18);
	assert_int_equal(stats(f).rx_bytes, stats(f).tx_bytes);
	assert_int_equal(stats(f).malformed, 0);
}

/* A large packet spreads over many buffers, and waits until there are enough of them. */
static void merged_buffers(void **state)
{
	struct fixture *f = *state;
	static uint8_t frame[65549], got[70000];
	unsigned buffers, need = (HEADER + sizeof(frame) + RX_LEN - 1) / RX_LEN;

	pattern(frame, sizeof(frame));
	vdrv_start(&f->d, ALL, 256);
	for (unsigned i = 0; i < need - 1; i++)
		add_rx(f, RX_LEN);
	wire_send(f, frame, sizeof(frame));
	turns(f);
	assert_int_equal(guest_receive(f, got, &buffers), 0);
	add_rx(f, RX_LEN);
	turns(f);
	assert_int_equal(guest_receive(f, got, &buffers), sizeof(frame));
	assert_int_equal(buffers, need);
	assert_memory_equal(got, frame, sizeof(frame));
	/* Buffers of odd sizes, and two packets that wait in line. */
	wire_send(f, frame, 3000);
	wire_send(f, frame + 1, 100);
	for (uint32_t len = 12; len < 600; len += 37)
		add_rx(f, len);
	turns(f);
	assert_int_equal(guest_receive(f, got, &buffers), 3000);
	assert_memory_equal(got, frame, 3000);
	assert_int_equal(guest_receive(f, got, &buffers), 100);
	assert_memory_equal(got, frame + 1, 100);
}

static void packets_that_do_not_fit(void **state)
{
	struct fixture *f = *state;
	uint8_t frame[1500] = { 0 }, got[4096];
	unsigned buffers;

	vdrv_start(&f->d, 0, 64);
	add_rx(f, 500);
	add_rx(f, 500);
	wire_send(f, frame, 1500);
	assert_int_equal(stats(f).rx_dropped, 1);
	wire_send(f, frame, 400);
	assert_int_equal(guest_receive(f, got, &buffers), 400);
	/* Room for less than a header: that driver is broken. */
	vdrv_start(&f->d, ALL, 64);
	add_rx(f, HEADER - 1);
	wire_send(f, frame, 100);
	assert_true(virtio_mmio_is_broken(f->d.v));
	f->d.heap = 1 << 20;
	vdrv_start(&f->d, ALL, 64);
	add_rx(f, 500);
	wire_send(f, frame, 100);
	assert_int_equal(guest_receive(f, got, &buffers), 100);
}

static void hostile_headers(void **state)
{
	static const struct {
		uint64_t mask;
		struct virtio_net_hdr_v1 h;
		uint32_t len;
		bool good;
	} cases[] = {
		{ ALL, { 0 }, 13, false },
		{ ALL, { 0 }, 0, false },
		{ ALL, { 0 }, 65554, false },
		{ ALL, { .flags = 2 }, 100, false },
		{ ALL, { .flags = 0x80 }, 100, false },
		{ ALL, { .flags = 1, .csum_start = 34, .csum_offset = 16 }, 100, true },
		{ 0, { .flags = 1, .csum_start = 34, .csum_offset = 16 }, 100, false },
		{ ALL, { .flags = 1, .csum_start = 90, .csum_offset = 9 }, 100, false },
		{ ALL, { .flags = 1, .csum_start = 0xffff, .csum_offset = 0xffff }, 100, false },
		{ ALL, { .gso_type = 1, .gso_size = 50, .flags = 1, .csum_start = 34 }, 100, true },
		{ ALL, { .gso_type = 4, .gso_size = 50, .flags = 1, .csum_start = 34 }, 100, true },
		{ ALL, { .gso_type = 1, .gso_size = 0, .flags = 1 }, 100, false },
		{ ALL, { .gso_type = 1, .gso_size = 50 }, 100, false },
		{ ALL, { .gso_type = 3, .gso_size = 50, .flags = 1 }, 100, false },
		{ ALL, { .gso_type = 0x81, .gso_size = 50, .flags = 1 }, 100, false },
		{ ALL, { .gso_type = 0xff, .gso_size = 50, .flags = 1 }, 100, false },
		{ F(CSUM), { .gso_type = 1, .gso_size = 50, .flags = 1 }, 100, false },
	};
	struct fixture *f = *state;
	static uint8_t frame[65554], got[70000];

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		uint64_t malformed = stats(f).malformed;
		ssize_t n;

		f->d.heap = 1 << 20;
		vdrv_start(&f->d, cases[i].mask, 64);
		guest_send(f, &cases[i].h, frame, cases[i].len);
		n = read(f->wire, got, sizeof(got));
		assert_int_equal(n, cases[i].good ? (ssize_t)(HEADER + cases[i].len) : -1);
		assert_int_equal(stats(f).malformed - malformed, !cases[i].good);
	}
	/* Not even a header. */
	{
		struct vdrv_buf b = { 8 << 20, HEADER - 1, false };

		vdrv_add(&f->d, TX, &b, 1);
		vdrv_kick(&f->d, TX);
		vdrv_wait(&f->d, TX, NULL);
		assert_int_equal(read(f->wire, got, sizeof(got)), -1);
	}
	assert_false(virtio_mmio_is_broken(f->d.v));
}

/* The wire takes nothing for a while: packets wait in the ring, in order. */
static void full_wire(void **state)
{
	struct fixture *f = *state;
	struct virtio_net_hdr_v1 h = { 0 };
	uint8_t frame[1000] = { 0 }, got[2048];
	unsigned sent = 0, n = 0;

	vdrv_start(&f->d, ALL, 256);
	for (; sent < 250; sent++) {
		struct vdrv_buf b = { (8 << 20) + sent * 4096, HEADER + sizeof(frame), false };

		frame[0] = (uint8_t)sent;
		guest_mem_write(f->mem, b.gpa, &h, HEADER);
		guest_mem_write(f->mem, b.gpa + HEADER, frame, sizeof(frame));
		vdrv_add(&f->d, TX, &b, 1);
	}
	vdrv_kick(&f->d, TX);
	turns(f);
	assert_true(stats(f).tx_packets < 250);
	while (n < 250) {
		while (read(f->wire, got, sizeof(got)) > 0) {
			assert_int_equal(got[HEADER], (uint8_t)n);
			n++;
		}
		turns(f);
	}
	assert_int_equal(stats(f).tx_packets, 250);
	assert_int_equal(stats(f).tx_dropped, 0);
}

static void pause_save_restore(void **state)
{
	struct fixture *f = *state;
	_cleanup_buf_ struct buf b = { 0 };
	uint8_t frame[100], got[2048];
	struct err e = { 0 };
	struct vdrv d;
	unsigned buffers;
	int fd;

	pattern(frame, sizeof(frame));
	vdrv_start(&f->d, ALL, 64);
	turns(f);
	for (int i = 0; i < 8; i++)
		add_rx(f, RX_LEN);
	virtio_mmio_pause(f->d.v);
	wire_send(f, frame, sizeof(frame));
	assert_int_equal(guest_receive(f, got, &buffers), 0);
	assert_int_equal(virtio_mmio_save(f->d.v, &b, &e), 0);
	vdrv_fini(&f->d);
	d = f->d;
	fd = f->fd;
	virtio_net_free(f->net);
	{
		struct virtio_net_setup s = { .fd = fd, .mtu = 1400, .set_offloads = set_offloads };

		offloads = 0;
		assert_int_equal(virtio_net_new(f->mem, &s, &f->net, NULL), 0);
		assert_int_equal(virtio_mmio_restore(virtio_net_mmio(f->net), b.data, b.len, &e),
				 0);
		assert_int_equal(virtio_mmio_attach(virtio_net_mmio(f->net), f->loop, NULL), 0);
		vdrv_init(&f->d, virtio_net_mmio(f->net), f->mem, f->loop, d.heap);
		memcpy(f->d.q, d.q, sizeof(d.q));
	}
	virtio_mmio_resume(f->d.v);
	turns(f);
	/* The frame waited on the wire, and the tap is set up again. */
	assert_int_equal(guest_receive(f, got, &buffers), sizeof(frame));
	assert_memory_equal(got, frame, sizeof(frame));
	assert_int_equal(offloads, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6);
}

static void not_a_tap(void **state)
{
	struct fixture *f = *state;
	struct virtio_net_setup s = { .fd = -1 };
	struct virtio_net *n = NULL;
	struct err e = { 0 };

	s.fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	assert_true(virtio_net_new(f->mem, &s, &n, &e) < 0);
	assert_string_equal(e.code, "bad_request");
	assert_null(n);
	close(s.fd);
}

/* A tap in a namespace of this process's own, and a raw socket on its other side. */
static bool make_tap(int *tap, int *wire)
{
	struct ifreq r = { .ifr_name = "tap0" };
	struct sockaddr_ll a = { .sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL) };

	*tap = -1;
	if (unshare(CLONE_NEWNET) < 0)
		return false;
	*tap = open("/dev/net/tun", O_RDWR | O_CLOEXEC);
	if (*tap < 0)
		return false;
	r.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR;
	if (ioctl(*tap, TUNSETIFF, &r) < 0)
		return false;
	*wire = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, htons(ETH_P_ALL));
	assert_true(*wire >= 0);
	assert_int_equal(ioctl(*wire, SIOCGIFINDEX, &r), 0);
	a.sll_ifindex = r.ifr_ifindex;
	assert_int_equal(bind(*wire, (struct sockaddr *)&a, sizeof(a)), 0);
	r.ifr_flags = IFF_UP;
	assert_int_equal(ioctl(*wire, SIOCSIFFLAGS, &r), 0);
	return true;
}

static void real_tap(void **state)
{
	struct fixture *f = *state;
	struct virtio_net_hdr_v1 h = { 0 };
	uint8_t frame[200], got[4096];
	unsigned buffers;
	int tap;

	if (!make_tap(&tap, &f->wire)) {
		print_message("no tap can be made here: %s\n", strerror(errno));
		close_fd(&tap);
		skip();
	}
	make(f, tap, true);
	vdrv_start(&f->d, ALL, 64);
	for (int i = 0; i < 32; i++)
		add_rx(f, RX_LEN);
	turns(f);
	pattern(frame, sizeof(frame));
	memset(frame, 0xff, 6);
	memcpy(frame + 6, mac, 6);
	frame[12] = 0x88; /* an EtherType for experiments */
	frame[13] = 0xb5;
	guest_send(f, &h, frame, sizeof(frame));
	assert_int_equal(stats(f).tx_packets, 1);
	while (read(f->wire, got, sizeof(got)) != sizeof(frame) || got[12] != 0x88)
		; /* the kernel's own neighbour chatter */
	assert_memory_equal(got, frame, sizeof(frame));
	frame[14] = 'z';
	assert_int_equal(write(f->wire, frame, sizeof(frame)), sizeof(frame));
	do {
		while (!vdrv_arm(&f->d, RX))
			vdrv_wait_irq(&f->d);
	} while (guest_receive(f, got, &buffers) == 0 || got[12] != 0x88);
	assert_memory_equal(got, frame, sizeof(frame));
}

#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(configuration),
		T(both_ways),
		T(merged_buffers),
		T(packets_that_do_not_fit),
		T(hostile_headers),
		T(full_wire),
		T(pause_save_restore),
		cmocka_unit_test_setup_teardown(not_a_tap, set_up_without_device, tear_down),
		cmocka_unit_test_setup_teardown(real_tap, set_up_without_device, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
