/*
 * virtio-vsock: stream connections from the host to ports in the guest, each joined to a unix
 * stream socket. A connection that the guest starts is refused with RST. Host CID 2.
 *
 * Everything runs on the I/O loop; all functions here belong to its thread.
 */
#ifndef CLOCHE_VMM_VIRTIO_VSOCK_H
#define CLOCHE_VMM_VIRTIO_VSOCK_H

#include <stdint.h>

#include "base/cleanup.h"

struct err;
struct guest_mem;
struct virtio_mmio;
struct virtio_vsock;

#define VSOCK_CONNECTIONS_MAX 1024
#define VSOCK_BUF_LARGE (256u << 10) /* bytes a guest may have in flight on one connection… */
#define VSOCK_BUF_SMALL (32u << 10)  /* …and once the large ones are used up */
#define VSOCK_BUF_BUDGET (32u << 20) /* bytes granted in large buffers in all */

struct virtio_vsock_stats {
	uint32_t connections;	     /* now */
	uint64_t connected;	     /* ever */
	uint64_t refused, timed_out; /* connects that failed */
	uint64_t bytes_to_guest, bytes_from_guest;
	uint64_t resets;    /* connections that one side tore down */
	uint64_t malformed; /* packets no correct driver sends */
};

/* cid: the guest's context id, above 2. */
int virtio_vsock_new(struct guest_mem *mem, uint64_t cid, struct virtio_vsock **out, struct err *e);
void virtio_vsock_free(struct virtio_vsock *s); /* NULL-safe; closes every stream, calls cb's */
CLEANUP_DEFINE(struct virtio_vsock *, cleanup_virtio_vsock, virtio_vsock_free)
#define _cleanup_virtio_vsock_ _cleanup_(cleanup_virtio_vsock)

struct virtio_mmio *virtio_vsock_mmio(struct virtio_vsock *s);

/*
 * How a connect ended: 0, -ECONNREFUSED (nobody listens there, or the guest answered RST),
 * -ETIMEDOUT, -ECANCELED (the device was freed, or fd's other end closed). Called once, on the
 * loop, never from inside the virtio_vsock_connect() it belongs to. May call this module, but not
 * free.
 */
typedef void (*virtio_vsock_connected_fn)(void *ctx, int result);

/*
 * Connects fd, a connected stream socket that becomes the device's, to a port in the guest. When
 * the guest has not set up its driver yet, or resets it, the connect waits for it within
 * timeout_ms. On a result other than 0 fd is closed before the callback. A stream ends by its
 * socket: bytes that the guest sent are delivered before the end of file, also after a reset.
 * Returns 0, -EMFILE (VSOCK_CONNECTIONS_MAX) or -ENOMEM; then fd stays the caller's.
 */
int virtio_vsock_connect(struct virtio_vsock *s, uint32_t port, int fd, unsigned timeout_ms,
			 virtio_vsock_connected_fn cb, void *ctx, struct err *e);

void virtio_vsock_stats(struct virtio_vsock *s, struct virtio_vsock_stats *out);

#endif
