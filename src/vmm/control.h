/*
 * The control server: accepts connections on the listening socket and carries out the requests of
 * proto/vmm.h on the machine. All on the loop's thread.
 */
#ifndef CLOCHE_VMM_CONTROL_H
#define CLOCHE_VMM_CONTROL_H

struct control;
struct err;
struct loop;

/* listen_fd, a listening SOCK_SEQPACKET socket, becomes the server's. Stops the loop at the end. */
int control_new(struct loop *loop, int listen_fd, struct control **out, struct err *e);
void control_free(struct control *c); /* NULL-safe; ends the machine too */

#endif
