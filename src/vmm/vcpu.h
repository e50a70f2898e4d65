/*
 * The virtual processors. Each has a thread that runs it and hands its exits to the devices. The
 * set of them starts parked; the machine lets them run, parks them again at a known point, or ends
 * them.
 *
 * Parked means: the thread is outside KVM_RUN, the last exit is completed (registers and memory
 * are as after the instruction), and the thread waits without holding any lock.
 */
#ifndef CLOCHE_VMM_VCPU_H
#define CLOCHE_VMM_VCPU_H

#include <stdint.h>

#include "proto/vmm.h"

struct bus;
struct cpuid;
struct err;
struct kvm;
struct vcpu_set;

enum vcpu_event {
	VCPU_TRIPLE_FAULT, /* the processor shut down */
	VCPU_RESET,	   /* KVM asks for a reset on the guest's behalf */
	VCPU_POWEROFF,
	VCPU_FAILED, /* KVM cannot go on; the log says why */
};

struct vcpu_hooks {
	const struct bus *ports, *memory;
	/*
	 * Called on each vCPU's thread when it is let run for the first time (the sandbox is
	 * applied here). Negative: the vCPU reports VCPU_FAILED and never runs.
	 */
	int (*thread_start)(void *ctx);
	/* Called on the vCPU's thread; the vCPU parks itself afterwards until told otherwise. */
	void (*event)(void *ctx, enum vcpu_event event);
	void *ctx;
};

enum vcpu_exit_class {
	VCPU_EXIT_IO,
	VCPU_EXIT_MMIO,
	VCPU_EXIT_INTERRUPTED, /* by a signal of ours */
	VCPU_EXIT_OTHER,
	VCPU_EXIT_CLASSES,
};

struct vcpu_stats {
	uint64_t cpu_ns; /* time the thread ran, guest and VMM */
	uint64_t exits[VCPU_EXIT_CLASSES];
	uint64_t unclaimed; /* of those, accesses that no device answered */
};

/*
 * Creates n vCPUs on k with their threads, parked; hooks is copied. The first is the boot
 * processor. Without a baseline they are left as KVM makes them, to get a saved state. Error code
 * kvm_failed, or system when a thread cannot be made.
 */
int vcpu_set_new(const struct kvm *k, const struct cpuid *baseline, unsigned n,
		 const struct vcpu_hooks *hooks, struct vcpu_set **out, struct err *e);

/* Ends the threads and frees everything. NULL-safe. */
void vcpu_set_free(struct vcpu_set *s);

/* The PVH boot state of the boot processor; the others wait for INIT. Before the first run. */
int vcpu_set_boot(struct vcpu_set *s, uint32_t rip, uint64_t start_info, struct err *e);

/* From the owner's thread. Park returns when no vCPU runs any more. */
void vcpu_set_run(struct vcpu_set *s);
void vcpu_set_park(struct vcpu_set *s);

/*
 * Tells each guest processor's clock that it was stopped, so that watchdogs in it stay quiet. While
 * parked, before it runs again.
 */
void vcpu_set_note_pause(struct vcpu_set *s);

/* The KVM descriptor of vCPU i, for its state while parked; stays the set's. */
int vcpu_set_fd(const struct vcpu_set *s, unsigned i);

/* Counters of vCPU i; any time until the set is freed. */
void vcpu_set_stats(struct vcpu_set *s, unsigned i, struct vcpu_stats *out);

#endif
