/*
 * vsock from both ends: this test is the guest's driver and the host's program at once, and
 * checks what each may see. Known faults named here: 5 (bursts lose data; output at exit is cut).
 */
#include <errno.h>
#include <linux/virtio_config.h>
#include <linux/virtio_mmio.h>
#include <linux/virtio_ring.h>
#include <linux/virtio_vsock.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/loop.h"
#include "virtio_driver.h"
#include "vmm/mem.h"
#include "vmm/virtio/mmio.h"
#include "vmm/virtio/vsock.h"

enum { RX, TX, EVENT };

#define ALL UINT64_MAX
#define CID 7
#define RX_LEN 4096
#define RX_BUFS 64
#define TX_SLOT (68u << 10)
#define TX_SLOTS 16
#define PORT 1024
#define GUEST_BUF (64u << 10) /* what the guest says it has room for */
#define NOT_YET 12345

#define OP(name) VIRTIO_VSOCK_OP_##name
#define RCV VIRTIO_VSOCK_SHUTDOWN_RCV
#define SEND VIRTIO_VSOCK_SHUTDOWN_SEND

struct fixture {
	struct loop *loop;
	struct guest_mem *mem;
	struct virtio_vsock *vsock;
	struct vdrv d;
	uint64_t rx, tx;     /* guest addresses of the buffers */
	uint64_t rx_at[256]; /* buffer of each head */
	unsigned tx_next, tx_busy;
	bool no_refill; /* keep what was received */
	bool split;	/* see add_rx() */
	int fds_before;
};

/* One end of a stream as the guest has it. */
struct guest_conn {
	uint32_t local, peer; /* ports */
	uint32_t fwd_cnt, rx_cnt, tx_cnt, peer_fwd, peer_alloc;
};

/* A receive buffer: in one piece, or as Linux 6.1 has it, the header in a descriptor of its own. */
static void add_rx(struct fixture *f, uint64_t gpa)
{
	const uint32_t hdr = sizeof(struct virtio_vsock_hdr);
	struct vdrv_buf whole = { gpa, RX_LEN, true };
	struct vdrv_buf split[] = { { gpa, hdr, true }, { gpa + hdr, RX_LEN - hdr, true } };

	f->rx_at[f->split ? vdrv_add(&f->d, RX, split, 2) : vdrv_add(&f->d, RX, &whole, 1)] = gpa;
}

static void fill_rx(struct fixture *f)
{
	for (unsigned i = 0; i < RX_BUFS; i++)
		add_rx(f, f->rx + i * RX_LEN);
	vdrv_kick(&f->d, RX);
}

static void add_event(struct fixture *f)
{
	struct vdrv_buf b = { .gpa = f->rx + RX_BUFS * RX_LEN, .len = 4, .in = true };

	vdrv_add(&f->d, EVENT, &b, 1);
	vdrv_kick(&f->d, EVENT);
}

static void boot(struct fixture *f, uint64_t features)
{
	f->d.heap = 1 << 20;
	f->rx = vdrv_alloc(&f->d, (RX_BUFS + 1) * RX_LEN);
	f->tx = vdrv_alloc(&f->d, TX_SLOTS * TX_SLOT);
	f->tx_next = f->tx_busy = 0;
	vdrv_start(&f->d, features, 256);
	fill_rx(f);
	add_event(f);
}

static void make(struct fixture *f)
{
	assert_int_equal(virtio_vsock_new(f->mem, CID, &f->vsock, NULL), 0);
	assert_int_equal(virtio_mmio_attach(virtio_vsock_mmio(f->vsock), f->loop, NULL), 0);
	vdrv_init(&f->d, virtio_vsock_mmio(f->vsock), f->mem, f->loop, 1 << 20);
}

static int set_up(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));

	assert_non_null(f);
	f->fds_before = fd_count_open();
	assert_int_equal(loop_new(&f->loop, NULL), 0);
	assert_int_equal(guest_mem_new(32 << 20, 0, &f->mem, NULL), 0);
	make(f);
	*state = f;
	return 0;
}

static int tear_down(void **state)
{
	struct fixture *f = *state;
	int fds;

	vdrv_fini(&f->d);
	virtio_vsock_free(f->vsock);
	loop_free(f->loop);
	guest_mem_free(f->mem);
	fds = fd_count_open();
	assert_int_equal(fds, f->fds_before);
	free(f);
	return 0;
}

/* The guest sends one packet; the device takes it in the next turn. */
static void send_raw(struct fixture *f, const void *packet, uint32_t len)
{
	struct vdrv_buf b = { .gpa = f->tx + f->tx_next++ % TX_SLOTS * TX_SLOT, .len = len };

	while (f->tx_busy >= TX_SLOTS - 1) {
		vdrv_wait(&f->d, TX, NULL);
		f->tx_busy--;
	}
	assert_int_equal(guest_mem_write(f->mem, b.gpa, packet, len), 0);
	vdrv_add(&f->d, TX, &b, 1);
	vdrv_kick(&f->d, TX);
	f->tx_busy++;
}

static struct virtio_vsock_hdr guest_header(const struct guest_conn *g, uint16_t op, uint32_t len)
{
	return (struct virtio_vsock_hdr){ .src_cid = CID,
					  .dst_cid = 2,
					  .src_port = g->local,
					  .dst_port = g->peer,
					  .len = len,
					  .type = VIRTIO_VSOCK_TYPE_STREAM,
					  .op = op,
					  .buf_alloc = GUEST_BUF,
					  .fwd_cnt = g->fwd_cnt };
}

static void send_data(struct fixture *f, struct guest_conn *g, const void *data, uint32_t len)
{
	static uint8_t packet[TX_SLOT];
	struct virtio_vsock_hdr h = guest_header(g, OP(RW), len);

	memcpy(packet, &h, sizeof(h));
	memcpy(packet + sizeof(h), data, len);
	g->tx_cnt += len;
	send_raw(f, packet, (uint32_t)sizeof(h) + len);
}

static void send_op(struct fixture *f, const struct guest_conn *g, uint16_t op, uint32_t flags)
{
	struct virtio_vsock_hdr h = guest_header(g, op, 0);

	h.flags = flags;
	send_raw(f, &h, sizeof(h));
}

/* The next packet the guest got, if any; data gets its payload (RX_LEN). */
static bool receive(struct fixture *f, struct virtio_vsock_hdr *h, uint8_t *data)
{
	uint16_t head;
	uint32_t len;
	uint8_t *p;

	if (!vdrv_used(&f->d, RX, &head, &len))
		return false;
	p = vdrv_ptr(&f->d, f->rx_at[head], RX_LEN);
	assert_true(len >= sizeof(*h) && len <= RX_LEN);
	memcpy(h, p, sizeof(*h));
	assert_int_equal(h->src_cid, 2);
	assert_int_equal(h->dst_cid, CID);
	assert_int_equal(h->len, len - sizeof(*h));
	if (data)
		memcpy(data, p + sizeof(*h), h->len);
	if (!f->no_refill) {
		add_rx(f, f->rx_at[head]);
		vdrv_kick(&f->d, RX);
	}
	return true;
}

static void turns(struct fixture *f)
{
	for (int i = 0; i < 4; i++)
		vdrv_turn(f->loop);
}

/* The next packet, which must be `op` of this connection. */
static struct virtio_vsock_hdr expect(struct fixture *f, const struct guest_conn *g, uint16_t op)
{
	struct virtio_vsock_hdr h;

	turns(f);
	assert_true(receive(f, &h, NULL));
	assert_int_equal(h.op, op);
	if (g) {
		assert_int_equal(h.src_port, g->peer);
		assert_int_equal(h.dst_port, g->local);
	}
	return h;
}

static void expect_nothing(struct fixture *f)
{
	struct virtio_vsock_hdr h;

	turns(f);
	assert_false(receive(f, &h, NULL));
}

static void on_connected(void *ctx, int result)
{
	int *r = ctx;

	assert_int_equal(*r, NOT_YET); /* called once */
	*r = result;
}

/* Starts a connect; the host's end of its stream. */
static int begin(struct fixture *f, uint32_t port, unsigned timeout_ms, int *result)
{
	int sv[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv), 0);
	assert_int_equal(fd_set_nonblock(sv[0], true), 0);
	*result = NOT_YET;
	assert_int_equal(
		virtio_vsock_connect(f->vsock, port, sv[1], timeout_ms, on_connected, result, NULL),
		0);
	return sv[0];
}

/* An open stream. */
static int connect_to(struct fixture *f, struct guest_conn *g)
{
	struct virtio_vsock_hdr h;
	int result, fd = begin(f, PORT, 10000, &result);

	h = expect(f, NULL, OP(REQUEST));
	assert_int_equal(h.dst_port, PORT);
	assert_int_equal(h.type, VIRTIO_VSOCK_TYPE_STREAM);
	assert_int_equal(h.fwd_cnt, 0);
	*g = (struct guest_conn){ .local = PORT, .peer = h.src_port, .peer_alloc = h.buf_alloc };
	assert_int_equal(result, NOT_YET);
	send_op(f, g, OP(RESPONSE), 0);
	turns(f);
	assert_int_equal(result, 0);
	return fd;
}

static struct virtio_vsock_stats stats(struct fixture *f)
{
	struct virtio_vsock_stats st;

	virtio_vsock_stats(f->vsock, &st);
	return st;
}

static void assert_eof(int fd)
{
	char c;

	assert_int_equal(read(fd, &c, 1), 0);
}

static void assert_open(int fd)
{
	char c;

	assert_int_equal(read(fd, &c, 1), -1);
	assert_int_equal(errno, EAGAIN);
}

static void configuration(void **state)
{
	struct fixture *f = *state;
	struct virtio_vsock *v = NULL;
	uint64_t cid = 0;

	virtio_mmio_read(f->d.v, VIRTIO_MMIO_CONFIG, &cid, 8);
	assert_int_equal(cid, CID);
	assert_int_equal(vdrv_get(&f->d, VIRTIO_MMIO_DEVICE_ID), 19);
	assert_true(virtio_vsock_new(f->mem, 2, &v, NULL) < 0);
	assert_true(virtio_vsock_new(f->mem, UINT32_MAX, &v, NULL) < 0);
	assert_null(v);
}

static void connect_refused_and_timed_out(void **state)
{
	struct fixture *f = *state;
	struct guest_conn g = { .local = 99 };
	int result, fd;

	boot(f, ALL);
	fd = begin(f, 99, 10000, &result);
	g.peer = expect(f, NULL, OP(REQUEST)).src_port;
	send_op(f, &g, OP(RST), 0);
	turns(f);
	assert_int_equal(result, -ECONNREFUSED);
	assert_eof(fd);
	close(fd);

	fd = begin(f, 99, 1, &result);
	g.peer = expect(f, NULL, OP(REQUEST)).src_port;
	while (result == NOT_YET)
		vdrv_turn(f->loop);
	assert_int_equal(result, -ETIMEDOUT);
	assert_eof(fd);
	expect(f, &g, OP(RST));
	close(fd);
	/* A late answer is refused. */
	send_op(f, &g, OP(RESPONSE), 0);
	expect(f, &g, OP(RST));
	assert_int_equal(stats(f).refused, 1);
	assert_int_equal(stats(f).timed_out, 1);
	assert_int_equal(stats(f).connections, 0);
}

/* A connect may come before the driver, and outlives a driver that starts over. */
static void connect_waits_for_driver(void **state)
{
	struct fixture *f = *state;
	int result, fd = begin(f, PORT, 60000, &result);
	struct guest_conn g = { .local = PORT };

	turns(f);
	boot(f, ALL);
	expect(f, NULL, OP(REQUEST));
	vdrv_set(&f->d, VIRTIO_MMIO_STATUS, 0);
	turns(f);
	assert_int_equal(result, NOT_YET);
	boot(f, 0);
	g.peer = expect(f, NULL, OP(REQUEST)).src_port;
	send_op(f, &g, OP(RESPONSE), 0);
	turns(f);
	assert_int_equal(result, 0);
	/* And one whose caller went away is given up. */
	close(fd);
	fd = begin(f, PORT, 60000, &result);
	close(fd);
	turns(f);
	assert_int_equal(result, -ECANCELED);
}

/* Fault 5: 8 MiB each way, all at once, with credit both ways: nothing is lost or out of order. */
static void echo(struct fixture *f, uint64_t features)
{
	enum { TOTAL = 8 << 20 };
	uint8_t *want = malloc(TOTAL), *back = malloc(RX_LEN), *queue = malloc(TOTAL);
	size_t sent = 0, got = 0, guest_got = 0, guest_sent = 0;
	struct virtio_vsock_hdr h;
	struct guest_conn g;
	int fd;

	assert_true(want && back && queue);
	for (size_t i = 0; i < TOTAL; i++)
		want[i] = (uint8_t)(i * 31 + (i >> 8) * 7 + (i >> 16));
	f->split = features == 0;
	boot(f, features);
	fd = connect_to(f, &g);
	while (got < TOTAL) {
		ssize_t n = sent < TOTAL ? write(fd, want + sent, TOTAL - sent) : 0;

		sent += n > 0 ? (size_t)n : 0;
		vdrv_turn(f->loop);
		while (receive(f, &h, back)) {
			g.peer_alloc = h.buf_alloc;
			g.peer_fwd = h.fwd_cnt;
			if (h.op == OP(CREDIT_UPDATE))
				continue;
			assert_int_equal(h.op, OP(RW));
			g.rx_cnt += h.len;
			/* Never more than the guest has room for. */
			assert_true(g.rx_cnt - g.fwd_cnt <= GUEST_BUF);
			memcpy(queue + guest_got, back, h.len);
			guest_got += h.len;
		}
		/* The guest echoes as far as its credit goes; what it echoed it has room for. */
		while (guest_sent < guest_got) {
			uint32_t room = g.peer_alloc - (g.tx_cnt - g.peer_fwd);
			size_t k = guest_got - guest_sent;

			k = k < room ? k : room;
			k = k < 60000 ? k : 60000;
			if (k == 0)
				break;
			g.fwd_cnt += (uint32_t)k;
			send_data(f, &g, queue + guest_sent, (uint32_t)k);
			guest_sent += k;
		}
		while ((n = read(fd, queue + got, 65536)) > 0) {
			assert_memory_equal(queue + got, want + got, (size_t)n);
			got += (size_t)n;
			assert_true(got <= guest_sent);
		}
	}
	assert_int_equal(sent, TOTAL);
	assert_int_equal(guest_got, TOTAL);
	assert_int_equal(stats(f).bytes_to_guest, TOTAL);
	assert_int_equal(stats(f).bytes_from_guest, TOTAL);
	assert_int_equal(stats(f).malformed, 0);
	close(fd);
	free(want);
	free(back);
	free(queue);
}

static void echo_plain(void **state)
{
	echo(*state, 0);
}

static void echo_all_features(void **state)
{
	echo(*state, ALL);
}

/* A host that does not read stops the guest at its credit, not before and not after. */
static void slow_reader_and_flood(void **state)
{
	struct fixture *f = *state;
	static uint8_t chunk[32768], got[32768];
	struct guest_conn g;
	size_t sent = 0, total = 0;
	int fd;

	boot(f, ALL);
	fd = connect_to(f, &g);
	assert_int_equal(g.peer_alloc, VSOCK_BUF_LARGE);
	for (;;) {
		struct virtio_vsock_hdr h;

		turns(f);
		while (receive(f, &h, NULL))
			g.peer_fwd = h.fwd_cnt;
		if (g.peer_alloc - (g.tx_cnt - g.peer_fwd) < sizeof(chunk))
			break;
		memset(chunk, (int)(sent >> 15), sizeof(chunk));
		send_data(f, &g, chunk, sizeof(chunk));
		sent += sizeof(chunk);
	}
	assert_true(sent >= VSOCK_BUF_LARGE); /* the socket's own buffer comes on top */
	expect_nothing(f);
	/* The host reads: all of it is there, and the guest hears of the room. */
	while (total < sent) {
		ssize_t n = read(fd, got, sizeof(got));

		turns(f);
		for (ssize_t i = 0; i < n; i++)
			assert_int_equal(got[i], (uint8_t)((total + (size_t)i) >> 15));
		total += n > 0 ? (size_t)n : 0;
	}
	assert_true(expect(f, &g, OP(CREDIT_UPDATE)).fwd_cnt > g.peer_fwd);
	while (g.tx_cnt - g.peer_fwd != 0) { /* ask, and learn that everything went out */
		struct virtio_vsock_hdr h;

		send_op(f, &g, OP(CREDIT_REQUEST), 0);
		turns(f);
		while (receive(f, &h, NULL))
			g.peer_fwd = h.fwd_cnt;
	}
	/* Beyond its credit the guest is cut off. */
	for (size_t i = 0; i <= 2 * VSOCK_BUF_LARGE / sizeof(chunk) + 16; i++)
		send_data(f, &g, chunk, sizeof(chunk));
	turns(f);
	for (;;) {
		struct virtio_vsock_hdr h = { 0 };

		assert_true(receive(f, &h, NULL));
		if (h.op == OP(RST))
			break;
	}
	assert_int_equal(stats(f).malformed, 1);
	assert_int_equal(stats(f).connections, 0);
	close(fd);
}

/* The device honours the guest's credit to the byte, and wakes up when it grows. */
static void guest_without_room(void **state)
{
	struct fixture *f = *state;
	static uint8_t data[2 * GUEST_BUF];
	struct virtio_vsock_hdr h;
	struct guest_conn g;
	size_t got = 0;
	int fd;

	boot(f, ALL);
	fd = connect_to(f, &g);
	assert_int_equal(write(fd, data, sizeof(data)), sizeof(data));
	for (int i = 0; i < 20; i++) {
		turns(f);
		while (receive(f, &h, NULL))
			got += h.len;
	}
	assert_int_equal(got, GUEST_BUF);
	g.fwd_cnt = 100;
	send_op(f, &g, OP(CREDIT_UPDATE), 0);
	assert_int_equal(expect(f, &g, OP(RW)).len, 100);
	expect_nothing(f);
	/* An older count that comes late changes nothing. */
	g.fwd_cnt = 50;
	send_op(f, &g, OP(CREDIT_UPDATE), 0);
	expect_nothing(f);
	/* Acknowledging what was never sent is cut off. */
	g.fwd_cnt = GUEST_BUF + 101;
	send_op(f, &g, OP(CREDIT_UPDATE), 0);
	expect(f, &g, OP(RST));
	assert_int_equal(stats(f).malformed, 1);
	close(fd);
}

static void half_close(void **state)
{
	struct fixture *f = *state;
	struct guest_conn g;
	char buf[16];
	int fd;

	boot(f, ALL);
	/* The host is done sending; the guest still answers. */
	fd = connect_to(f, &g);
	assert_int_equal(write(fd, "ask", 3), 3);
	assert_int_equal(shutdown(fd, SHUT_WR), 0);
	assert_int_equal(expect(f, &g, OP(RW)).len, 3);
	assert_int_equal(expect(f, &g, OP(SHUTDOWN)).flags, SEND);
	expect_nothing(f);
	send_data(f, &g, "answer", 6);
	turns(f);
	assert_int_equal(read(fd, buf, sizeof(buf)), 6);
	assert_open(fd);
	send_op(f, &g, OP(SHUTDOWN), SEND | RCV);
	expect(f, &g, OP(RST));
	assert_eof(fd);
	close(fd);

	/* The guest is done sending; the host still asks. */
	fd = connect_to(f, &g);
	send_data(f, &g, "bye", 3);
	send_op(f, &g, OP(SHUTDOWN), SEND);
	turns(f);
	assert_int_equal(read(fd, buf, sizeof(buf)), 3);
	assert_eof(fd);
	assert_int_equal(write(fd, "more", 4), 4);
	assert_int_equal(expect(f, &g, OP(RW)).len, 4);
	close(fd);
	assert_int_equal(expect(f, &g, OP(SHUTDOWN)).flags, SEND | RCV);
	expect_nothing(f);
	send_op(f, &g, OP(RST), 0);
	turns(f);
	assert_int_equal(stats(f).connections, 0);

	/* The guest does not want to hear any more. */
	fd = connect_to(f, &g);
	send_op(f, &g, OP(SHUTDOWN), RCV);
	turns(f);
	assert_int_equal(send(fd, "x", 1, MSG_NOSIGNAL), -1);
	assert_int_equal(errno, EPIPE);
	send_data(f, &g, "still", 5);
	turns(f);
	assert_int_equal(read(fd, buf, sizeof(buf)), 5);
	close(fd);
	assert_int_equal(expect(f, &g, OP(SHUTDOWN)).flags, SEND | RCV);
	send_op(f, &g, OP(SHUTDOWN), SEND | RCV);
	expect(f, &g, OP(RST));
	assert_int_equal(stats(f).connections, 0);
	assert_int_equal(stats(f).resets, 0);
	assert_int_equal(stats(f).malformed, 0);
}

/* A host program that writes and closes at once: the guest gets every byte, then the end. */
static void write_and_close(void **state)
{
	struct fixture *f = *state;
	static uint8_t data[100000];
	struct virtio_vsock_hdr h;
	struct guest_conn g;
	size_t got = 0;
	int fd;

	boot(f, ALL);
	fd = connect_to(f, &g);
	assert_int_equal(write(fd, data, sizeof(data)), sizeof(data));
	close(fd);
	for (;;) {
		turns(f);
		assert_true(receive(f, &h, NULL));
		if (h.op == OP(SHUTDOWN))
			break;
		got += h.len;
		g.fwd_cnt += h.len;
		send_op(f, &g, OP(CREDIT_UPDATE), 0);
	}
	assert_int_equal(h.flags, SEND | RCV);
	assert_int_equal(got, sizeof(data));
	expect_nothing(f);
	send_op(f, &g, OP(RST), 0);
	turns(f);
	assert_int_equal(stats(f).connections, 0);
}

/* Fault 5: a guest that writes and is gone; a slow host still gets every byte. */
static void last_words(struct fixture *f, uint16_t op)
{
	enum { TOTAL = 448 << 10 };
	static uint8_t chunk[65536 - 64], got[65536];
	struct guest_conn g;
	size_t sent = 0, total = 0;
	int fd;

	fd = connect_to(f, &g);
	while (sent < TOTAL - sizeof(chunk)) {
		struct virtio_vsock_hdr h;

		turns(f);
		while (receive(f, &h, NULL))
			g.peer_fwd = h.fwd_cnt;
		if (g.peer_alloc - (g.tx_cnt - g.peer_fwd) < sizeof(chunk))
			break;
		send_data(f, &g, chunk, sizeof(chunk));
		sent += sizeof(chunk);
	}
	assert_true(sent > 250000);
	send_op(f, &g, op, op == OP(SHUTDOWN) ? SEND | RCV : 0);
	expect_nothing(f);
	for (;;) {
		ssize_t n = read(fd, got, sizeof(got));

		turns(f);
		if (n == 0)
			break;
		assert_true(n > 0 || errno == EAGAIN);
		total += n > 0 ? (size_t)n : 0;
	}
	assert_int_equal(total, sent);
	close(fd);
}

static void output_at_exit_is_whole(void **state)
{
	struct fixture *f = *state;
	struct virtio_vsock_hdr h;

	boot(f, ALL);
	last_words(f, OP(SHUTDOWN));
	turns(f);
	assert_true(receive(f, &h, NULL)); /* once all was delivered */
	assert_int_equal(h.op, OP(RST));
	last_words(f, OP(RST));
	expect_nothing(f);
	assert_int_equal(stats(f).connections, 0);
}

/* Nobody reads at the host: the guest is told, and its bytes go nowhere. */
static void host_stops_reading(void **state)
{
	struct fixture *f = *state;
	struct guest_conn g;
	int fd;

	boot(f, ALL);
	fd = connect_to(f, &g);
	assert_int_equal(shutdown(fd, SHUT_RD), 0);
	send_data(f, &g, "lost", 4);
	assert_int_equal(expect(f, &g, OP(SHUTDOWN)).flags, RCV);
	assert_int_equal(write(fd, "ok", 2), 2);
	assert_int_equal(expect(f, &g, OP(RW)).len, 2);
	close(fd);
	assert_int_equal(expect(f, &g, OP(SHUTDOWN)).flags, SEND | RCV);
}

static void many_connections(void **state)
{
	enum { N = 200 };
	struct fixture *f = *state;
	static struct guest_conn g[N];
	struct virtio_vsock_hdr h;
	uint8_t data[RX_LEN];
	int fd[N];
	char c;

	boot(f, ALL);
	for (int i = 0; i < N; i++)
		fd[i] = connect_to(f, &g[i]);
	assert_int_equal(stats(f).connections, N);
	/* The budget for large buffers is shared out, then credit is small. */
	assert_int_equal(g[0].peer_alloc, VSOCK_BUF_LARGE);
	assert_int_equal(g[VSOCK_BUF_BUDGET / VSOCK_BUF_LARGE].peer_alloc, VSOCK_BUF_SMALL);
	for (int i = 0; i < N; i++) {
		c = (char)i;
		assert_int_equal(write(fd[i], &c, 1), 1);
	}
	for (int seen = 0; seen < N;) {
		turns(f);
		while (receive(f, &h, data)) {
			unsigned i = h.src_port - g[0].peer;

			assert_int_equal(h.op, OP(RW));
			assert_int_equal(h.src_port, g[i].peer);
			assert_int_equal(data[0], (uint8_t)i);
			send_data(f, &g[i], &data[0], 1);
			seen++;
		}
	}
	turns(f);
	for (int i = 0; i < N; i++) {
		assert_int_equal(read(fd[i], &c, 1), 1);
		assert_int_equal((uint8_t)c, (uint8_t)i);
		close(fd[i]);
	}
	for (int gone = 0; gone < N;) {
		turns(f);
		while (receive(f, &h, NULL)) {
			assert_int_equal(h.op, OP(SHUTDOWN));
			send_op(f, &g[h.src_port - g[0].peer], OP(RST), 0);
			gone++;
		}
	}
	turns(f);
	assert_int_equal(stats(f).connections, 0);
	assert_int_equal(stats(f).connected, N);
}

static void too_many(void **state)
{
	struct fixture *f = *state;
	static int fd[VSOCK_CONNECTIONS_MAX], result[VSOCK_CONNECTIONS_MAX];
	int sv[2];

	for (int i = 0; i < VSOCK_CONNECTIONS_MAX; i++)
		fd[i] = begin(f, PORT, 60000, &result[i]);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv), 0);
	assert_int_equal(virtio_vsock_connect(f->vsock, PORT, sv[1], 1, on_connected, NULL, NULL),
			 -EMFILE);
	assert_int_equal(write(sv[0], "x", 1), 1); /* sv[1] is still ours */
	close(sv[0]);
	close(sv[1]);
	for (int i = 0; i < VSOCK_CONNECTIONS_MAX; i++)
		close(fd[i]);
	for (int i = 0; i < 40; i++)
		turns(f);
	assert_int_equal(stats(f).connections, 0);
	for (int i = 0; i < VSOCK_CONNECTIONS_MAX; i++)
		assert_int_equal(result[i], -ECANCELED);
}

/* Every field of a header wrong in turn; the device stays whole and other streams untouched. */
static void hostile_headers(void **state)
{
	enum { GONE = 1, SILENT = 2, ANSWER = 4 };
	static const struct {
		const char *name;
		size_t field;
		uint64_t value;
		int outcome; /* GONE: RST for this stream; ANSWER: RST for what it names */
	} bad[] = {
#define F(field) offsetof(struct virtio_vsock_hdr, field)
		{ "another guest's", F(src_cid), CID + 1, SILENT },
		{ "from the host", F(src_cid), 2, SILENT },
		{ "to another guest", F(dst_cid), CID, SILENT },
		{ "to the hypervisor", F(dst_cid), 0, SILENT },
		{ "unknown source port", F(src_port), 1, ANSWER },
		{ "unknown port", F(dst_port), 1, ANSWER },
		{ "longer than its buffer", F(len), 101, SILENT },
		{ "very long", F(len), 0xffffffff, SILENT },
		{ "seqpacket", F(type), 2, GONE },
		{ "type 0", F(type), 0, GONE },
		{ "op 0", F(op), 0, GONE },
		{ "op 8", F(op), 8, GONE },
		{ "op 0xffff", F(op), 0xffff, GONE },
		{ "a second request", F(op), OP(REQUEST), GONE },
		{ "a second response", F(op), OP(RESPONSE), GONE },
		{ "shutdown with data", F(op), OP(SHUTDOWN), GONE },
		{ "credit with data", F(op), OP(CREDIT_UPDATE), GONE },
		{ "fwd_cnt in the future", F(fwd_cnt), 1, GONE },
#undef F
	};
	struct fixture *f = *state;
	struct guest_conn other;
	int other_fd;

	boot(f, ALL);
	other_fd = connect_to(f, &other);
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		uint8_t packet[sizeof(struct virtio_vsock_hdr) + 100] = { 0 };
		struct virtio_vsock_hdr h;
		struct guest_conn g;
		size_t width = bad[i].field < 16			  ? 8
			       : bad[i].field == 28 || bad[i].field == 30 ? 2
									  : 4;
		int fd = connect_to(f, &g);
		char c[128];

		print_message("%s\n", bad[i].name);
		h = guest_header(&g, OP(RW), 100);
		memcpy(packet, &h, sizeof(h));
		memcpy(packet + bad[i].field, &bad[i].value, width);
		send_raw(f, packet, sizeof(packet));
		turns(f);
		if (bad[i].outcome == GONE) {
			assert_eof(fd);
			expect(f, &g, OP(RST));
		} else {
			assert_open(fd);
			if (bad[i].outcome == ANSWER)
				expect(f, NULL, OP(RST));
			else
				expect_nothing(f);
			send_data(f, &g, packet, 100); /* as if nothing had been */
			turns(f);
			assert_int_equal(read(fd, c, sizeof(c)), 100);
			send_op(f, &g, OP(RST), 0);
			turns(f);
			assert_eof(fd);
		}
		close(fd);
	}
	/* Flags that do not exist, no header at all, and data after the end. */
	{
		struct guest_conn g;
		int fd = connect_to(f, &g);

		send_op(f, &g, OP(SHUTDOWN), 4);
		expect(f, &g, OP(RST));
		close(fd);
		fd = connect_to(f, &g);
		send_op(f, &g, OP(SHUTDOWN), SEND);
		send_data(f, &g, "x", 1);
		expect(f, &g, OP(RST));
		close(fd);
		send_raw(f, "short", 5);
		expect_nothing(f);
	}
	assert_int_equal(stats(f).connections, 1);
	send_data(f, &other, "fine", 4);
	turns(f);
	{
		char c[8];

		assert_int_equal(read(other_fd, c, sizeof(c)), 4);
	}
	close(other_fd);
	assert_false(virtio_mmio_is_broken(f->d.v));
}

/* The guest may not connect to the host, and its flood of requests is answered without bound. */
static void guest_requests_are_refused(void **state)
{
	struct fixture *f = *state;
	struct virtio_vsock_hdr h;
	unsigned answered = 0;

	boot(f, ALL);
	for (uint32_t i = 0; i < 1000; i++) {
		struct guest_conn g = { .local = i, .peer = 22 };

		send_op(f, &g, OP(REQUEST), 0);
		if (i % 300 == 0)
			turns(f);
		while (receive(f, &h, NULL)) {
			assert_int_equal(h.op, OP(RST));
			assert_int_equal(h.src_port, 22);
			assert_int_equal(h.dst_port, answered);
			answered++;
		}
	}
	for (int i = 0; i < 40; i++) {
		turns(f);
		while (receive(f, &h, NULL))
			answered++;
	}
	assert_int_equal(answered, 1000);
	/* An RST for nothing is not answered. */
	send_op(f, &(struct guest_conn){ .local = 5, .peer = 22 }, OP(RST), 0);
	expect_nothing(f);
}

/* Without buffers nothing is lost, and the sockets are not polled in vain. */
static void no_buffers(void **state)
{
	struct fixture *f = *state;
	struct virtio_vsock_hdr h;
	struct guest_conn g;
	size_t got = 0, want;
	int fd;

	boot(f, ALL);
	fd = connect_to(f, &g);
	f->no_refill = true;
	want = 0;
	{
		static uint8_t data[512 << 10];
		ssize_t n = write(fd, data, sizeof(data));

		assert_true(n > 0);
		want = (size_t)n;
	}
	g.fwd_cnt = 0;
	for (int round = 0; got < want && round < 10000; round++) {
		turns(f);
		while (receive(f, &h, NULL)) {
			got += h.len;
			g.fwd_cnt += h.len;
		}
		send_op(f, &g, OP(CREDIT_UPDATE), 0);
		turns(f);
		/* All buffers are with us now: one goes back. */
		add_rx(f, f->rx + (unsigned)(round % RX_BUFS) * RX_LEN);
		vdrv_kick(&f->d, RX);
	}
	assert_int_equal(got, want);
	close(fd);
}

static void tiny_buffers_break_the_device(void **state)
{
	struct fixture *f = *state;
	struct vdrv_buf b = { .len = sizeof(struct virtio_vsock_hdr), .in = true };
	int result, fd;

	f->d.heap = 1 << 20;
	b.gpa = vdrv_alloc(&f->d, 4096);
	vdrv_start(&f->d, 0, 8);
	vdrv_add(&f->d, RX, &b, 1);
	vdrv_kick(&f->d, RX);
	fd = begin(f, PORT, 60000, &result);
	turns(f);
	assert_true(virtio_mmio_is_broken(f->d.v));
	assert_int_equal(result, NOT_YET);
	boot(f, ALL);
	expect(f, NULL, OP(REQUEST));
	close(fd);
	turns(f);
	assert_int_equal(result, -ECANCELED);
}

/* A guest whose driver starts over loses its streams; what it had said still arrives. */
static void driver_reset(void **state)
{
	struct fixture *f = *state;
	struct guest_conn g[2];
	char c[8];
	int fd[2];

	boot(f, ALL);
	fd[0] = connect_to(f, &g[0]);
	fd[1] = connect_to(f, &g[1]);
	send_data(f, &g[0], "words", 5);
	turns(f);
	vdrv_set(&f->d, VIRTIO_MMIO_STATUS, 0);
	turns(f);
	assert_int_equal(read(fd[0], c, sizeof(c)), 5);
	assert_eof(fd[0]);
	assert_eof(fd[1]);
	close(fd[0]);
	close(fd[1]);
	assert_int_equal(stats(f).connections, 0);
	boot(f, ALL);
	fd[0] = connect_to(f, &g[0]);
	send_data(f, &g[0], "again", 5);
	turns(f);
	assert_int_equal(read(fd[0], c, sizeof(c)), 5);
	close(fd[0]);
}

/* A pause is not noticed by either side but in time. */
static void pause_and_resume(void **state)
{
	struct fixture *f = *state;
	struct guest_conn g;
	char c[8];
	int fd;

	boot(f, ALL);
	fd = connect_to(f, &g);
	virtio_mmio_pause(f->d.v);
	assert_int_equal(write(fd, "to", 2), 2);
	send_data(f, &g, "from", 4);
	expect_nothing(f);
	assert_open(fd);
	virtio_mmio_resume(f->d.v);
	assert_int_equal(expect(f, &g, OP(RW)).len, 2);
	assert_int_equal(read(fd, c, sizeof(c)), 4);
	close(fd);
}

/*
 * After a restore: TRANSPORT_RESET first, and nothing until the guest has dealt with it; ports go
 * on where they were, so that a new stream is never taken for an old one.
 */
static void restored_device(void **state)
{
	struct fixture *f = *state;
	_cleanup_buf_ struct buf b = { 0 };
	struct virtio_vsock *old = f->vsock;
	struct err e = { 0 };
	struct guest_conn g, g2 = { .local = PORT };
	struct vdrv d;
	uint32_t event = 99;
	int fd, fd2, result;

	boot(f, ALL);
	fd = connect_to(f, &g);
	virtio_mmio_pause(f->d.v);
	assert_int_equal(virtio_mmio_save(f->d.v, &b, &e), 0);
	vdrv_fini(&f->d);
	d = f->d;
	assert_int_equal(virtio_vsock_new(f->mem, CID, &f->vsock, NULL), 0);
	assert_int_equal(virtio_mmio_restore(virtio_vsock_mmio(f->vsock), b.data, b.len, &e), 0);
	assert_int_equal(virtio_mmio_attach(virtio_vsock_mmio(f->vsock), f->loop, NULL), 0);
	vdrv_init(&f->d, virtio_vsock_mmio(f->vsock), f->mem, f->loop, d.heap);
	memcpy(f->d.q, d.q, sizeof(d.q));
	virtio_vsock_free(old);
	assert_eof(fd);
	close(fd);

	guest_mem_write(f->mem, f->rx + RX_BUFS * RX_LEN, &event, 4);
	fd2 = begin(f, PORT, 60000, &result);
	virtio_mmio_resume(f->d.v);
	turns(f);
	assert_int_equal(vdrv_wait(&f->d, EVENT, NULL), 4);
	guest_mem_read(f->mem, f->rx + RX_BUFS * RX_LEN, &event, 4);
	assert_int_equal(event, VIRTIO_VSOCK_EVENT_TRANSPORT_RESET);
	expect_nothing(f); /* the request waits for the guest */
	add_event(f);
	g2.peer = expect(f, NULL, OP(REQUEST)).src_port;
	assert_int_equal(g2.peer, g.peer + 1);
	send_op(f, &g2, OP(RESPONSE), 0);
	turns(f);
	assert_int_equal(result, 0);
	/* The old stream is not known any more. */
	send_data(f, &g, "old", 3);
	expect(f, &g, OP(RST));
	close(fd2);
}

/* Freeing the device ends what is open and what is being opened. */
static void freed_in_the_middle(void **state)
{
	struct fixture *f = *state;
	struct guest_conn g;
	int result, fd, fd2;

	boot(f, ALL);
	fd = connect_to(f, &g);
	fd2 = begin(f, PORT, 60000, &result);
	vdrv_fini(&f->d);
	virtio_vsock_free(f->vsock);
	assert_int_equal(result, -ECANCELED);
	assert_eof(fd);
	assert_eof(fd2);
	close(fd);
	close(fd2);
	make(f);
}

#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(configuration),
		T(connect_refused_and_timed_out),
		T(connect_waits_for_driver),
		T(echo_plain),
		T(echo_all_features),
		T(slow_reader_and_flood),
		T(guest_without_room),
		T(half_close),
		T(write_and_close),
		T(output_at_exit_is_whole),
		T(host_stops_reading),
		T(many_connections),
		T(too_many),
		T(hostile_headers),
		T(guest_requests_are_refused),
		T(no_buffers),
		T(tiny_buffers_break_the_device),
		T(driver_reset),
		T(pause_and_resume),
		T(restored_device),
		T(freed_in_the_middle),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
