/*
 * A 16550A serial port whose transmitter is always ready. What the guest writes goes to a ring;
 * it never receives anything. Accessed by any vCPU thread.
 */
#ifndef CLOCHE_VMM_SERIAL_H
#define CLOCHE_VMM_SERIAL_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "vmm/ring.h"

struct bus;
struct err;

/* All that a guest can see of the port; plain data, so that it can be saved. */
struct serial_regs {
	uint8_t ier, lcr, mcr, scr, fcr;
	uint8_t dll, dlm;
	bool thre_pending; /* transmitter-empty interrupt not acknowledged yet */
};

struct serial {
	pthread_mutex_t lock;
	struct serial_regs regs;
	struct ring output;
	int irq_fd; /* eventfd, edge triggered; made here */
	bool ready; /* serial_init succeeded */
};

/* Keeps the last ring_bytes of output. */
int serial_init(struct serial *s, size_t ring_bytes, struct err *e);
void serial_destroy(struct serial *s); /* safe on a zeroed one */

/* After a pause or restore: an interrupt that is pending is raised again. */
void serial_resume(struct serial *s);

/* Puts the port on the bus at LAYOUT_SERIAL_PORT; s must outlive the bus. */
int serial_attach(struct serial *s, struct bus *ports, struct err *e);

#endif
