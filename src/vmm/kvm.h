/*
 * A KVM virtual machine: its descriptors, what the host's KVM can do, and the wiring of memory,
 * interrupts and doorbells. The full interrupt controller (IOAPIC and local APICs) is in the
 * kernel; there is no timer chip.
 */
#ifndef CLOCHE_VMM_KVM_H
#define CLOCHE_VMM_KVM_H

#include <linux/kvm.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct guest_mem;

struct kvm {
	int dev; /* /dev/kvm, given to us; stays the caller's */
	int vm;
	size_t run_size;   /* bytes of a vCPU's shared page */
	bool ioeventfd;	   /* doorbells without an exit to us */
	bool tsc_deadline; /* the local APIC timer has deadline mode */
	bool tsc_control;  /* a vCPU's TSC frequency can be set */
	bool xsave2;
};

/* Checks dev for what we need. Error code kvm_unavailable. */
int kvm_probe(int dev, struct kvm *out, struct err *e);

/* Makes the VM with its interrupt controller. Error code kvm_failed. */
int kvm_create_vm(struct kvm *k, struct err *e);
void kvm_close(struct kvm *k); /* safe on a zeroed or closed one; dev stays open */

int kvm_map_memory(const struct kvm *k, const struct guest_mem *mem, struct err *e);

/* An edge on eventfd `fd` raises the GSI. */
int kvm_wire_irq(const struct kvm *k, int fd, unsigned gsi, struct err *e);

/* A guest's 4-byte write of value at gpa counts up eventfd `fd` and does not exit. */
int kvm_wire_doorbell(const struct kvm *k, int fd, uint64_t gpa, uint32_t value, struct err *e);

/* What the VM itself keeps: the paravirtual clock (nanoseconds) and the IOAPIC. kvm_failed. */
struct kvm_vm_state {
	uint64_t clock_ns;
	struct kvm_ioapic_state ioapic;
};

int kvm_get_vm_state(const struct kvm *k, struct kvm_vm_state *out, struct err *e);
int kvm_set_vm_state(const struct kvm *k, const struct kvm_vm_state *s, struct err *e);

/* ioctl(2) that retries EINTR and reports a negative errno. */
int kvm_ioctl(int fd, unsigned long request, void *arg);

#endif
