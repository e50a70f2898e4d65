/*
 * One vsock connection: credit in both directions, the bytes that its socket could not take yet,
 * and which packet to send to the guest next. Knows no queues; vsock.c moves its packets.
 */
#ifndef CLOCHE_VMM_VIRTIO_VSOCK_CONN_H
#define CLOCHE_VMM_VIRTIO_VSOCK_CONN_H

#include <linux/virtio_vsock.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "vmm/virtio/vsock.h"

#define VSOCK_HOST_CID 2
#define VSOCK_PACKET_MAX (64u << 10) /* payload bytes of one packet */

struct loop_source;
struct virtq_chain;

enum vsock_state {
	VSOCK_CONNECTING, /* until RESPONSE */
	VSOCK_OPEN,
	VSOCK_RESETTING, /* the socket is over; RST has to be sent */
	VSOCK_DRAINING,	 /* gone for the guest; its last bytes go to the socket */
	VSOCK_DONE,
};

enum vsock_pending {
	VSOCK_SEND_REQUEST = 1 << 0,
	VSOCK_SEND_RST = 1 << 1,
	VSOCK_SEND_SHUTDOWN = 1 << 2,
	VSOCK_SEND_CREDIT = 1 << 3,
};

/* Bytes from the guest that wait for the socket: a ring, allocated when first needed. */
struct vsock_ring {
	uint8_t *data;
	uint32_t at, len;
};

/* What the caller of connect waits for; outlives the connection until it was told. */
struct vsock_completion {
	virtio_vsock_connected_fn fn;
	void *ctx;
	int result;
	struct vsock_completion *next;
};

struct vsock_conn {
	struct virtio_vsock *dev;
	struct vsock_conn *next_in_bucket;
	struct vsock_conn *next_ready; /* in the list of those that have a packet to send */
	bool is_ready;
	enum vsock_state state;
	uint32_t local_port, peer_port;
	uint64_t guest_cid;
	int fd;
	struct loop_source *source;
	uint32_t watched;	/* events of source */
	uint64_t deadline;	/* clock_mono_ns(), 0: none */
	bool requested;		/* REQUEST was sent */
	unsigned pending;	/* enum vsock_pending */
	uint32_t said_shutdown; /* VIRTIO_VSOCK_SHUTDOWN_* that we (will) have told the guest */
	uint32_t got_shutdown;	/* and that it told us */
	/* To the guest. */
	bool readable; /* the socket may have bytes: it was not found empty since */
	bool hung_up;  /* the socket's other end is closed */
	uint32_t peer_buf_alloc, peer_fwd_cnt, tx_cnt;
	/* From the guest. */
	bool discard; /* the socket takes nothing any more */
	uint32_t buf_alloc, rx_cnt, fwd_cnt, told_fwd_cnt;
	struct vsock_ring ring;
	struct vsock_completion *completion; /* until it is due */
};

/* Whether the socket is still in use; if not, the caller stops to poll it and then closes it. */
bool vsock_conn_is_live(const struct vsock_conn *c);

/* Takes the header's credit; false when it acknowledges what was never sent. */
bool vsock_conn_take_credit(struct vsock_conn *c, const struct virtio_vsock_hdr *h);

/* Payload of an RW packet: len bytes of the chain behind its header. False: reset it. */
bool vsock_conn_receive(struct vsock_conn *c, const struct virtq_chain *chain, uint32_t len);

/* SHUTDOWN from the guest. */
void vsock_conn_shutdown(struct vsock_conn *c, uint32_t flags);

/* The socket can be written again. */
void vsock_conn_flush(struct vsock_conn *c);

/* The socket's other end is closed. */
void vsock_conn_hang_up(struct vsock_conn *c);

/* We give it up: RST for the guest unless it never heard of the connection. */
void vsock_conn_reset(struct vsock_conn *c);

/* The guest gave it up: what it sent before still goes to the socket. */
void vsock_conn_gone(struct vsock_conn *c);

/* Whether there is anything for the guest, data or not. */
bool vsock_conn_has_packet(const struct vsock_conn *c);

/* Bytes of the socket that may go to the guest next, 0 when none may or none are there. */
uint32_t vsock_conn_room(const struct vsock_conn *c);

/*
 * Reads at most vsock_conn_room() bytes from the socket; what came, 0 when there are none now or
 * will be none any more. Each packet they go in gets its header afterwards.
 */
uint32_t vsock_conn_read(struct vsock_conn *c, struct iovec *iov, unsigned n);
void vsock_conn_data_header(struct vsock_conn *c, struct virtio_vsock_hdr *h, uint32_t len);

/* The next packet without data: 1 and its header, or 0. */
int vsock_conn_packet(struct vsock_conn *c, struct virtio_vsock_hdr *h);

/* Which events of a live socket matter now; *any false: none, not even hang-ups. */
uint32_t vsock_conn_events(const struct vsock_conn *c, bool *any);

#endif
