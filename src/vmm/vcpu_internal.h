/* What vcpu.c (threads), vcpu_exit.c (exits) and vcpu_setup.c (processor state) share. */
#ifndef CLOCHE_VMM_VCPU_INTERNAL_H
#define CLOCHE_VMM_VCPU_INTERNAL_H

#include <linux/kvm.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "vmm/vcpu.h"

enum wish { WISH_PARK, WISH_RUN, WISH_QUIT };
enum thread_state { THREAD_PARKED, THREAD_RUNNING, THREAD_ENDED };

struct vcpu {
	struct vcpu_set *set;
	unsigned id;
	int fd;
	struct kvm_run *run;
	pthread_t thread;
	bool has_thread;
	enum thread_state state; /* under the set's lock */
	bool started;		 /* thread_start was called. Its own thread's */
	bool halted;		 /* reported an event: runs no more. Its own thread's */
	uint64_t final_cpu_ns;	 /* once ENDED */
	_Atomic uint64_t exits[VCPU_EXIT_CLASSES];
	_Atomic uint64_t unclaimed;
};

struct vcpu_set {
	struct vcpu_hooks hooks;
	size_t run_size;
	pthread_mutex_t lock;
	pthread_cond_t changed; /* wish, or a thread's state */
	enum wish wish;
	unsigned n;
	struct vcpu vcpus[VMM_VCPUS_MAX];
};

/* Adds one to a counter of v's own; other threads read it. */
static inline void vcpu_count(_Atomic uint64_t *c)
{
	atomic_store_explicit(c, atomic_load_explicit(c, memory_order_relaxed) + 1,
			      memory_order_relaxed);
}

/* Hands the exit in v->run to the devices, on v's thread. */
void vcpu_dispatch_exit(struct vcpu *v);

/* Logs what KVM could not do, with the place in the guest. */
void vcpu_log_failure(const struct vcpu *v, const char *what, uint64_t detail);

/* Reports an event; v runs no more. On v's thread. */
void vcpu_report(struct vcpu *v, enum vcpu_event event);

/* Makes the KVM vCPU and gives it its CPUID and boot MSRs. */
int vcpu_setup(struct vcpu *v, const struct kvm *k, const struct cpuid *baseline, struct err *e);

/*
 * Once all are made. KVM finds the target of an interrupt in a map of local APICs that it builds
 * as each vCPU is made, just before that one counts: the last is missing until something changes
 * an APIC, and an INIT sent to it is lost. Writing one back unchanged builds the map anew.
 */
int vcpu_publish_apics(struct vcpu_set *s, struct err *e);

/* Undoes it; safe on one that was never made (fd -1). */
void vcpu_teardown(struct vcpu *v, size_t run_size);

#endif
