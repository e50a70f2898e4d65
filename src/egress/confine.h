/* What the process gives up once it has opened everything. */
#ifndef CLOCHE_EGRESS_CONFINE_H
#define CLOCHE_EGRESS_CONFINE_H

struct err;

/*
 * Drops every capability and privilege gain, and loads the list of system calls that serving
 * needs; another one kills the process. Fails when the process still runs as root.
 */
int confine(struct err *e);

#endif
