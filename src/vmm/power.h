/*
 * The guest's power switches, in ports of their own (and the two a PC is also reset by): the ACPI
 * sleep control, sleep status and reset registers, and the keyboard controller's reset command.
 */
#ifndef CLOCHE_VMM_POWER_H
#define CLOCHE_VMM_POWER_H

#include "vmm/layout.h"

#define POWER_SLEEP_CONTROL_PORT (LAYOUT_POWER_PORT + 0)
#define POWER_SLEEP_STATUS_PORT (LAYOUT_POWER_PORT + 1)
#define POWER_RESET_PORT (LAYOUT_POWER_PORT + 2)
#define POWER_RESET_VALUE 0x01
#define POWER_SLEEP_TYPE_S5 5

struct bus;
struct err;

enum power_event { POWER_OFF, POWER_RESET };

typedef void (*power_fn)(void *ctx, enum power_event event);

struct power {
	power_fn fn; /* called on the vCPU thread that wrote */
	void *ctx;
};

/* Puts the registers on the port bus; p must outlive the bus. */
int power_attach(struct power *p, struct bus *ports, struct err *e);

#endif
