/*
 * A table lists the leaves a guest may see and, for the registers that hold feature bits, which
 * of them. What is not listed is not there: a feature that a newer host adds stays hidden until it
 * is put into the table. AVX-512, AMX, PKU, MPX, nested virtualisation, LA57, WAITPKG, SGX,
 * processor trace and the performance counters are left out on purpose.
 */
#include "vmm/cpuid.h"

#include <errno.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "vmm/kvm.h"

#define ANY_INDEX UINT32_MAX
#define ALL 0xffffffffU
#define BIT(n) (1U << (n))
#define KVM_LEAF 0x40000000U
#define EXT_LEAF 0x80000000U
#define LAST_BASIC_LEAF 0x0dU
#define LAST_EXT_LEAF 0x80000021U
#define XCR0_X87_SSE_AVX 7U
#define XSAVE_AREA_MAX 832U /* legacy 512, header 64, AVX 256 */

enum reg { EAX, EBX, ECX, EDX };

struct leaf_rule {
	uint32_t leaf, index;
	uint32_t keep[4]; /* bits of eax, ebx, ecx, edx that pass */
};

static const struct leaf_rule rules[] = {
	{ 0x0, ANY_INDEX, { ALL, ALL, ALL, ALL } },
	/*
	 * ecx: SSE3 PCLMUL SSSE3 FMA CX16 PCID SSE4.1 SSE4.2 x2APIC MOVBE POPCNT TSC_DEADLINE AES
	 * XSAVE AVX F16C RDRAND HYPERVISOR. edx: all but PSN, DS, ACPI, TM, IA64, PBE.
	 */
	{ 0x1, ANY_INDEX, { ALL, 0x0000ff00, 0xf7fa3203, 0x1f8bfbff } },
	{ 0x2, ANY_INDEX, { ALL, ALL, ALL, ALL } },
	{ 0x4, ANY_INDEX, { ALL, ALL, ALL, ALL } },
	{ 0x6, ANY_INDEX, { BIT(2), 0, 0, 0 } }, /* ARAT: the APIC timer never stops */
	/*
	 * ebx: FSGSBASE TSC_ADJUST BMI1 AVX2 FDP_EXCPTN SMEP BMI2 ERMS INVPCID FPU-CS RDSEED ADX
	 * SMAP CLFLUSHOPT CLWB SHA. ecx: UMIP GFNI VAES VPCLMUL RDPID. edx: FSRM MD_CLEAR IBRS
	 * STIBP ARCH_CAPABILITIES SSBD.
	 */
	{ 0x7, 0, { 0, 0x219c27eb, 0x00400704, 0xac000410 } },
	{ 0xd, 0, { XCR0_X87_SSE_AVX, ALL, ALL, 0 } },
	{ 0xd, 1, { 0xf, ALL, 0, 0 } }, /* XSAVEOPT XSAVEC XGETBV1 XSAVES, no supervisor state */
	{ 0xd, 2, { ALL, ALL, ALL, 0 } },
	{ KVM_LEAF, ANY_INDEX, { ALL, ALL, ALL, ALL } },
	{ KVM_LEAF + 1, ANY_INDEX, { ALL, 0, 0, ALL } },
	{ EXT_LEAF, ANY_INDEX, { ALL, ALL, ALL, ALL } },
	/*
	 * ecx: LAHF CMP_LEGACY CR8 ABM SSE4A MISALIGNSSE 3DNOWPREFETCH TOPOEXT. edx: all but the
	 * reserved ones and 3DNOW.
	 */
	{ EXT_LEAF + 1, ANY_INDEX, { ALL, 0, 0x004001f3, 0x2fd3fbff } },
	{ EXT_LEAF + 2, ANY_INDEX, { ALL, ALL, ALL, ALL } },
	{ EXT_LEAF + 3, ANY_INDEX, { ALL, ALL, ALL, ALL } },
	{ EXT_LEAF + 4, ANY_INDEX, { ALL, ALL, ALL, ALL } },
	{ EXT_LEAF + 5, ANY_INDEX, { ALL, ALL, ALL, ALL } },
	{ EXT_LEAF + 6, ANY_INDEX, { ALL, ALL, ALL, ALL } },
	{ EXT_LEAF + 7, ANY_INDEX, { 0, 0, 0, BIT(8) } }, /* invariant TSC */
	/* ebx: CLZERO XSAVEERPTR WBNOINVD IBPB IBRS STIBP IBRS_ALWAYS STIBP_ALWAYS SSBD VIRT_SSBD.
	 */
	{ EXT_LEAF + 8, ANY_INDEX, { ALL, 0x0303d205, 0, 0 } },
	{ EXT_LEAF + 0x1d, ANY_INDEX, { ALL, ALL, ALL, ALL } },
	{ EXT_LEAF + 0x1e, ANY_INDEX, { ALL, ALL, ALL, 0 } },
	/* eax: LFENCE always serialising, NULL selector clears base, automatic IBRS. */
	{ EXT_LEAF + 0x21, ANY_INDEX, { BIT(2) | BIT(6) | BIT(8), 0, 0, 0 } },
};

static uint32_t *entry_reg(struct kvm_cpuid_entry2 *e, enum reg r)
{
	uint32_t *const regs[] = { &e->eax, &e->ebx, &e->ecx, &e->edx };

	return regs[r];
}

static const struct leaf_rule *rule_find(const struct kvm_cpuid_entry2 *e)
{
	for (size_t i = 0; i < ARRAY_SIZE(rules); i++)
		if (rules[i].leaf == e->function &&
		    (rules[i].index == ANY_INDEX || rules[i].index == e->index))
			return &rules[i];
	return NULL;
}

/* Drops what no rule names and masks the rest. */
static void apply_rules(struct cpuid *c)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < c->nent; i++) {
		struct kvm_cpuid_entry2 e = c->entries[i];
		const struct leaf_rule *rule = rule_find(&e);

		if (!rule)
			continue;
		for (enum reg r = EAX; r <= EDX; r++)
			*entry_reg(&e, r) &= rule->keep[r];
		c->entries[n++] = e;
	}
	c->nent = n;
}

/* Bits of an APIC id that number `vcpus` cores. */
static uint32_t core_bits(unsigned vcpus)
{
	return vcpus > 1 ? 32 - (uint32_t)__builtin_clz(vcpus - 1) : 0;
}

/* How many cores share a cache, minus one, as leaves 4 and 0x8000001d hold it: level 3 only. */
static uint32_t cache_sharing(uint32_t eax, unsigned vcpus)
{
	uint32_t level = eax >> 5 & 7;

	return (eax & ~(0xfffU << 14)) | (level >= 3 ? (vcpus - 1) << 14 : 0);
}

static void fix_entry(struct kvm_cpuid_entry2 *e, unsigned vcpus, bool tsc_deadline)
{
	switch (e->function) {
	case 0x0:
		e->eax = e->eax < LAST_BASIC_LEAF ? e->eax : LAST_BASIC_LEAF;
		break;
	case 0x1:
		e->ebx |= (uint32_t)vcpus << 16;
		e->ecx = (e->ecx & ~BIT(24)) | BIT(31) | (tsc_deadline ? BIT(24) : 0);
		e->edx = (e->edx & ~BIT(28)) | (vcpus > 1 ? BIT(28) : 0);
		break;
	case 0x4:
		if (e->eax & 0x1f)
			e->eax = (cache_sharing(e->eax, vcpus) & 0x03ffffff) |
				 ((1U << core_bits(vcpus)) - 1) << 26;
		break;
	case 0xd:
		if (e->index == 0)
			e->ecx = e->ecx < XSAVE_AREA_MAX ? e->ecx : XSAVE_AREA_MAX;
		break;
	case EXT_LEAF:
		e->eax = e->eax < LAST_EXT_LEAF ? e->eax : LAST_EXT_LEAF;
		break;
	case EXT_LEAF + 8:
		e->ecx = (vcpus - 1) | core_bits(vcpus) << 12;
		break;
	case EXT_LEAF + 0x1d:
		if (e->eax & 0x1f)
			e->eax = cache_sharing(e->eax, vcpus);
		break;
	default:
		break;
	}
}

static void add_entry(struct cpuid *c, const struct kvm_cpuid_entry2 *e)
{
	if (c->nent < CPUID_ENTRIES_MAX)
		c->entries[c->nent++] = *e;
}

/* Leaf 0xb: a thread level of one and a core level of all; their ids are filled in later. */
static void add_topology(struct cpuid *c, unsigned vcpus)
{
	struct kvm_cpuid_entry2 levels[] = {
		{ .index = 0, .eax = 0, .ebx = 1, .ecx = 0x100 },
		{ .index = 1, .eax = core_bits(vcpus), .ebx = vcpus, .ecx = 0x201 },
		{ .index = 2, .eax = 0, .ebx = 0, .ecx = 2 },
	};

	for (size_t i = 0; i < ARRAY_SIZE(levels); i++) {
		levels[i].function = 0xb;
		levels[i].flags = KVM_CPUID_FLAG_SIGNIFCANT_INDEX;
		add_entry(c, &levels[i]);
	}
}

void cpuid_normalise(struct cpuid *c, unsigned vcpus, bool tsc_deadline)
{
	apply_rules(c);
	for (uint32_t i = 0; i < c->nent; i++)
		fix_entry(&c->entries[i], vcpus, tsc_deadline);
	add_topology(c, vcpus);
}

void cpuid_personalise(struct cpuid *c, unsigned apic_id)
{
	for (uint32_t i = 0; i < c->nent; i++) {
		struct kvm_cpuid_entry2 *e = &c->entries[i];

		switch (e->function) {
		case 0x1:
			e->ebx = (e->ebx & 0x00ffffff) | (uint32_t)apic_id << 24;
			break;
		case 0xb:
			e->edx = apic_id;
			break;
		case EXT_LEAF + 0x1e:
			e->eax = apic_id;
			e->ebx = apic_id & 0xff; /* core id; one thread a core */
			e->ecx = 0;
			break;
		default:
			break;
		}
	}
}

int cpuid_baseline(const struct kvm *k, unsigned vcpus, struct cpuid *out, struct err *e)
{
	int r;

	memset(out, 0, sizeof(*out));
	out->nent = CPUID_ENTRIES_MAX;
	r = kvm_ioctl(k->dev, KVM_GET_SUPPORTED_CPUID, out);
	if (r < 0)
		return err_set(e, "kvm_failed", -r, "KVM_GET_SUPPORTED_CPUID: %s", strerror(-r));
	cpuid_normalise(out, vcpus, k->tsc_deadline);
	return 0;
}

static const struct kvm_cpuid_entry2 *entry_find(const struct cpuid *c, uint32_t leaf,
						 uint32_t index)
{
	for (uint32_t i = 0; i < c->nent; i++)
		if (c->entries[i].function == leaf && c->entries[i].index == index)
			return &c->entries[i];
	return NULL;
}

/* A register whose rule picks single bits, and the KVM features, hold feature bits. */
static bool holds_features(const struct leaf_rule *rule, enum reg r)
{
	if (rule->leaf == KVM_LEAF + 1)
		return r == EAX;
	return rule->keep[r] != ALL && rule->keep[r] != 0 && rule->leaf != 0xd &&
	       !(rule->leaf == 0x1 && r == EBX);
}

int cpuid_check_runs_on(const struct cpuid *saved, const struct cpuid *host, struct err *e)
{
	static const struct kvm_cpuid_entry2 nothing;
	const struct kvm_cpuid_entry2 *a = entry_find(saved, 0, 0), *b = entry_find(host, 0, 0);

	if (!a || !b || a->ebx != b->ebx || a->ecx != b->ecx || a->edx != b->edx)
		return err_set(e, "state_mismatch", ENOTSUP,
			       "saved state: from a processor of another vendor");
	for (uint32_t i = 0; i < saved->nent; i++) {
		struct kvm_cpuid_entry2 s = saved->entries[i], h;
		const struct leaf_rule *rule = rule_find(&s);

		b = entry_find(host, s.function, s.index);
		h = b ? *b : nothing;
		for (enum reg r = EAX; rule && r <= EDX; r++) {
			uint32_t missing = *entry_reg(&s, r) & ~*entry_reg(&h, r);

			if (missing && holds_features(rule, r))
				return err_set(e, "state_mismatch", ENOTSUP,
					       "saved state: this processor lacks features 0x%x of "
					       "CPUID leaf 0x%x register %d",
					       missing, s.function, (int)r);
		}
	}
	return 0;
}
