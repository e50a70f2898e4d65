/* Asking whether an API answers. */
#ifndef CLOCHE_MACHINE_HEALTH_H
#define CLOCHE_MACHINE_HEALTH_H

#include <stdbool.h>
#include <stdint.h>

/* Whether http://127.0.0.1:port/healthz answers 200 within timeout_ms. */
bool health_ok(uint16_t port, unsigned timeout_ms);

/* Whether something listens on 127.0.0.1:port (or the port cannot be bound for another reason). */
bool health_port_taken(uint16_t port);

#endif
