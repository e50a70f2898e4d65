/* Answers the api child's requests (proto/broker.h), one at a time. */
#ifndef CLOCHE_BROKER_SERVER_H
#define CLOCHE_BROKER_SERVER_H

struct err;
struct vmms;

struct broker_server {
	struct vmms *vmms;
	const char *kvm_path;
};

/*
 * Receives one request from sock, does it and answers. A bad request is answered as such. Returns
 * 1, 0 when the peer closed, negative when the socket is of no more use.
 */
int broker_serve_one(struct broker_server *s, int sock, struct err *e);

#endif
