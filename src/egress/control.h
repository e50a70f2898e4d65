/* The control socket of cloche-egress (proto/egress.h): requests in, answers out, on the loop. */
#ifndef CLOCHE_EGRESS_CONTROL_H
#define CLOCHE_EGRESS_CONTROL_H

struct control;
struct egress;
struct err;

/* Serves connections to the listening socket listen_fd, which is taken over. */
int control_new(struct egress *eg, int listen_fd, struct control **out, struct err *e);
void control_free(struct control *c); /* NULL-safe */

#endif
