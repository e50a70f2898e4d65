/*
 * Is the host's KVM fit to run guests? Answered by measuring: the device may be there and still run
 * a guest kernel a hundred times slower than the processor could.
 */
#ifndef CLOCHE_MACHINE_PROBE_H
#define CLOCHE_MACHINE_PROBE_H

#include <stdbool.h>
#include <stdint.h>

enum probe_kind {
	PROBE_ABSENT,	   /* no usable KVM; reason says why */
	PROBE_INTERPRETED, /* KVM interprets the guest's kernel: far too slow */
	PROBE_NESTED,	   /* fast, and the host is itself a virtual machine */
	PROBE_NATIVE,	   /* fast, on hardware */
};

/* What was found out; a test may make these up. */
struct probe_facts {
	int open_errnum;      /* of opening the device; 0 when it opened */
	int vm_errnum;	      /* of making and running a guest; 0 when that worked */
	int api_version;      /* 12 */
	double instr_per_s;   /* of a loop in the guest's ring 0 */
	bool hypervisor;      /* CPUID: we run under one */
	bool cpu_virt;	      /* /proc/cpuinfo names vmx or svm */
	bool guests_may_nest; /* the kvm module's `nested` is on */
};

struct probe {
	enum probe_kind kind;
	struct probe_facts facts;
	bool guests_may_nest;
	char reason[200]; /* one sentence for a person */
	char fix[200];	  /* what to change, "" if nothing */
};

/* From this speed on a guest's kernel runs on the processor, not in an interpreter. */
#define PROBE_FAST 100e6

/* Measures /dev/kvm of this host; takes up to about a second where KVM interprets. */
void probe_kvm(struct probe *p);

/* The judgement alone. */
void probe_classify(const struct probe_facts *f, struct probe *p);

/* "native", "nested", "interpreted", "absent". */
const char *probe_kind_name(enum probe_kind k);

#endif
