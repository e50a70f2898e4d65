/*
 * The vsock device's insides, shared by its files: vsock.c (what the VMM and the transport call),
 * vsock_table.c (the connections' lives), vsock_packet.c (packets in both directions).
 */
#ifndef CLOCHE_VMM_VIRTIO_VSOCK_DEV_H
#define CLOCHE_VMM_VIRTIO_VSOCK_DEV_H

#include <linux/virtio_vsock.h>
#include <stdint.h>

#include "vmm/virtio/device.h"
#include "vmm/virtio/vsock.h"
#include "vmm/virtio/vsock_conn.h"

enum { VSOCK_RX, VSOCK_TX, VSOCK_EVENT, VSOCK_QUEUES };

#define VSOCK_RSTS_MAX 64
#define VSOCK_BATCH 8	   /* buffers of the guest that one read of a socket fills */
#define VSOCK_BUCKETS 1024 /* local ports count up, so buckets hold one connection each */
#define VSOCK_PORT_FIRST 1024u
#define VSOCK_PORT_LAST 0xfffffffeu
#define VSOCK_ALL_SHUT (VIRTIO_VSOCK_SHUTDOWN_RCV | VIRTIO_VSOCK_SHUTDOWN_SEND)

enum gate { GATE_OPEN, GATE_TO_SEND, GATE_SENT };

struct rst {
	uint32_t local_port, peer_port;
	uint16_t type;
};

struct virtio_vsock {
	struct virtio_mmio mmio;
	struct virtio_vsock_config config;
	struct loop *loop;
	struct loop_source *timer;
	uint64_t timer_at;
	struct vsock_conn *buckets[VSOCK_BUCKETS];
	struct vsock_conn *ready, **ready_end;
	struct rst rsts[VSOCK_RSTS_MAX];
	unsigned rst_at, rst_len;
	uint32_t next_port;
	uint32_t granted; /* bytes of credit in large buffers */
	unsigned epoch;	  /* counts forget() */
	enum gate gate;
	uint16_t gate_index; /* the event queue's available index when the event was sent */
	struct vsock_completion *done, **done_end;
	struct virtio_vsock_stats stats;
	struct virtq_chain chains[VSOCK_BATCH];
};

/* Where the connection's pointer is kept, or where it would be. */
struct vsock_conn **vsock_find(struct virtio_vsock *s, uint32_t local_port);

/* A local port that is free. */
uint32_t vsock_take_port(struct virtio_vsock *s);

/* Takes a connection out of the list of those with a packet. */
void vsock_ready_remove(struct virtio_vsock *s, struct vsock_conn *c);

/* After each touch of a connection, which it may free; see vsock.c. */
void vsock_settle(struct virtio_vsock *s, struct vsock_conn *c);
void vsock_free_conn(struct virtio_vsock *s, struct vsock_conn *c);

/* Calls f with every connection; f may free it. */
void vsock_each(struct virtio_vsock *s, void (*f)(struct virtio_vsock *, struct vsock_conn *));

/* The timer's callback. */
void vsock_on_timer(void *ctx);

/* Move what can be moved: to the guest, and from it. */
void vsock_serve_rx(struct virtio_vsock *s);
void vsock_serve_tx(struct virtio_vsock *s);

#endif
