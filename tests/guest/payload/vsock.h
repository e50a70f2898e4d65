/* A polled vsock driver that accepts every connection but those to port 9. */
#ifndef CLOCHE_TESTS_PAYLOAD_VSOCK_H
#define CLOCHE_TESTS_PAYLOAD_VSOCK_H

#include "virtio.h"

enum vsock_news { VSOCK_NOTHING, VSOCK_OPENED, VSOCK_CLOSED };

bool vsock_begin(void);

/* Handles what came, if anything; *port is the guest's of the connection in the news. */
enum vsock_news vsock_poll(uint32_t *port);

#endif
