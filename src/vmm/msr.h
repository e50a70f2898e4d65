/* Model-specific registers: which ones this KVM has, and the values a processor starts with. */
#ifndef CLOCHE_VMM_MSR_H
#define CLOCHE_VMM_MSR_H

#include <stdint.h>

struct err;

/*
 * Sets the boot values on a vCPU. A register that this KVM does not offer is left out: it then
 * reads as the same default. Error code kvm_failed.
 */
int msr_set_boot(int vcpu_fd, struct err *e);

#endif
