/*
 * The whole state of a vCPU as plain data, taken from KVM and put back in the orders that KVM
 * needs. The vCPU must be parked (vcpu.h).
 */
#ifndef CLOCHE_VMM_STATE_CPU_H
#define CLOCHE_VMM_STATE_CPU_H

#include <linux/kvm.h>
#include <stdint.h>

#include "vmm/cpuid.h"

struct err;
struct kvm;

#define STATE_MSRS_MAX 160
#define STATE_XSAVE_WORDS 1024

struct vcpu_state {
	struct kvm_mp_state mp;
	uint32_t tsc_khz;
	struct kvm_regs regs;
	struct kvm_sregs sregs;
	struct kvm_xcrs xcrs;
	struct kvm_debugregs debug;
	struct kvm_lapic_state lapic;
	struct kvm_vcpu_events events;
	uint32_t nmsrs, reserved;
	struct kvm_msr_entry msrs[STATE_MSRS_MAX];
	uint32_t xsave[STATE_XSAVE_WORDS]; /* struct kvm_xsave */
	struct cpuid cpuid;
};

_Static_assert(sizeof(uint32_t[STATE_XSAVE_WORDS]) == sizeof(struct kvm_xsave), "XSAVE layout");

/* The registers a vCPU of this KVM keeps; found once and used for all vCPUs. */
struct msr_list {
	uint32_t n;
	uint32_t index[STATE_MSRS_MAX];
};

/*
 * Asks KVM which MSRs it saves and tries each on a vCPU, dropping those it refuses. Error code
 * kvm_failed.
 */
int msr_list_probe(const struct kvm *k, int vcpu_fd, struct msr_list *out, struct err *e);

/* Error code kvm_failed. */
int vcpu_state_get(int vcpu_fd, const struct msr_list *msrs, struct vcpu_state *out, struct err *e);

/*
 * Checks that a state from a file is one that this host's processor and KVM can run. host is the
 * baseline of this host for the same number of vCPUs. Error codes: state_invalid, state_mismatch.
 */
int vcpu_state_check(const struct vcpu_state *s, const struct cpuid *host, struct err *e);

/* Puts it into a fresh vCPU. Error codes: kvm_failed, state_mismatch (TSC frequency). */
int vcpu_state_set(const struct kvm *k, int vcpu_fd, const struct vcpu_state *s, struct err *e);

#endif
