/*
 * What processor the guest sees: the host's, cut down to a baseline so that state moves between
 * hosts of one vendor, with a topology of one package of single-threaded cores.
 */
#ifndef CLOCHE_VMM_CPUID_H
#define CLOCHE_VMM_CPUID_H

#include <linux/kvm.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct kvm;

#define CPUID_ENTRIES_MAX 256

/* Laid out as struct kvm_cpuid2, which has no length of its own. */
struct cpuid {
	uint32_t nent, padding;
	struct kvm_cpuid_entry2 entries[CPUID_ENTRIES_MAX];
};

_Static_assert(offsetof(struct cpuid, entries) == sizeof(struct kvm_cpuid2), "CPUID layout");

/* What KVM supports on this host, normalised for a guest of `vcpus`. Error code kvm_failed. */
int cpuid_baseline(const struct kvm *k, unsigned vcpus, struct cpuid *out, struct err *e);

/* The pure part of it, for entries that came from elsewhere. */
void cpuid_normalise(struct cpuid *c, unsigned vcpus, bool tsc_deadline);

/* Makes a copy of the baseline one vCPU's own: fills in its APIC id. */
void cpuid_personalise(struct cpuid *c, unsigned apic_id);

/*
 * Whether a guest that was given `saved` can go on where the baseline is `host`: same vendor and
 * no feature that is missing. Error code state_mismatch, naming the leaf.
 */
int cpuid_check_runs_on(const struct cpuid *saved, const struct cpuid *host, struct err *e);

#endif
