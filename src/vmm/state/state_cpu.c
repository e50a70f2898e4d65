/*
 * Saving: the MP state comes first because reading it makes KVM accept pending INIT and SIPI, which
 * changes the local APIC; the events come last because the calls before may inject some.
 * Restoring: CPUID before everything that depends on it; the TSC deadline in a call of its own
 * after the TSC, since it arms a timer against it; the events last.
 *
 * A deadline of zero is put back as the present TSC: the timer had fired and its interrupt was on
 * its way, and one too many does no harm where one too few hangs a guest.
 */
#include "vmm/state/state_cpu.h"

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/log.h"
#include "vmm/kvm.h"

#define MSR_TSC 0x10
#define MSR_TSC_DEADLINE 0x6e0
#define TSC_SAME_PPM 250	  /* closer than this is the same frequency */
#define TSC_UNSCALED_MAX_PPM 5000 /* further off than this a guest's timers would be felt to be */

/*
 * MSRs that are not kept: what tells of the host (microcode, platform, capabilities), performance
 * counters, VMX and Hyper-V, none of which the baseline offers.
 */
static const struct {
	uint32_t first, last;
} msrs_not_kept[] = {
	{ 0x8b, 0x8b },
	{ 0xc1, 0xc8 },
	{ 0xce, 0xcf },
	{ 0x10a, 0x10a },
	{ 0x186, 0x197 },
	{ 0x309, 0x30c },
	{ 0x345, 0x345 },
	{ 0x38d, 0x390 },
	{ 0x3f1, 0x3f6 },
	{ 0x480, 0x4ff },
	{ 0x560, 0x58f },
	{ 0x40000000, 0x400001ff },
	{ 0xc0010000, 0xc0010007 },
	{ 0xc0010200, 0xc001020f },
	{ 0xc0000300, 0xc0000302 },
};

/* Kept although KVM does not list them: memory type ranges. */
static const uint32_t msrs_unlisted[] = {
	0x200, 0x201, 0x202, 0x203, 0x204, 0x205, 0x206, 0x207, 0x208, 0x209,
	0x20a, 0x20b, 0x20c, 0x20d, 0x20e, 0x20f, 0x250, 0x258, 0x259, 0x268,
	0x269, 0x26a, 0x26b, 0x26c, 0x26d, 0x26e, 0x26f, 0x2ff,
};

/* Laid out as struct kvm_msrs, which has no length of its own. */
struct msr_batch {
	uint32_t n, padding;
	struct kvm_msr_entry entries[STATE_MSRS_MAX];
};

_Static_assert(offsetof(struct msr_batch, entries) == sizeof(struct kvm_msrs), "MSR layout");

static int failed(struct err *e, int r, const char *what)
{
	return err_set(e, "kvm_failed", -r, "KVM: %s: %s", what, strerror(-r));
}

static bool msr_is_kept(uint32_t index)
{
	for (size_t i = 0; i < ARRAY_SIZE(msrs_not_kept); i++)
		if (index >= msrs_not_kept[i].first && index <= msrs_not_kept[i].last)
			return false;
	return true;
}

static int list_add(struct msr_list *l, uint32_t index, struct err *e)
{
	if (!msr_is_kept(index))
		return 0;
	for (uint32_t i = 0; i < l->n; i++)
		if (l->index[i] == index)
			return 0;
	if (l->n == STATE_MSRS_MAX)
		return err_set(e, "kvm_failed", E2BIG, "KVM lists more than %d MSRs",
			       STATE_MSRS_MAX);
	l->index[l->n++] = index;
	return 0;
}

/* Reads the MSRs of l; drops each that KVM refuses and goes on after it. */
static int read_msrs(int fd, struct msr_list *l, struct kvm_msr_entry *out, struct err *e)
{
	uint32_t done = 0;

	while (done < l->n) {
		struct msr_batch b = { .n = l->n - done };
		int r;

		for (uint32_t i = done; i < l->n; i++)
			b.entries[i - done].index = l->index[i];
		r = kvm_ioctl(fd, KVM_GET_MSRS, &b);
		if (r < 0)
			return failed(e, r, "read MSRs");
		memcpy(out + done, b.entries, (size_t)r * sizeof(b.entries[0]));
		done += (uint32_t)r;
		if (done == l->n)
			break;
		log_debug("KVM does not read MSR 0x%x", l->index[done]);
		memmove(l->index + done, l->index + done + 1,
			(l->n - done - 1) * sizeof(l->index[0]));
		l->n--;
	}
	return 0;
}

/* KVM's own list; the first call only tells how long it is. */
static struct kvm_msr_list *kvm_list(const struct kvm *k, struct err *e)
{
	struct kvm_msr_list probe = { 0 }, *l;
	int r = kvm_ioctl(k->dev, KVM_GET_MSR_INDEX_LIST, &probe);

	if (r < 0 && r != -E2BIG) {
		failed(e, r, "list MSRs");
		return NULL;
	}
	l = calloc(1, sizeof(*l) + probe.nmsrs * sizeof(l->indices[0]));
	if (!l) {
		err_errno(e, ENOMEM, "list MSRs");
		return NULL;
	}
	l->nmsrs = probe.nmsrs;
	r = kvm_ioctl(k->dev, KVM_GET_MSR_INDEX_LIST, l);
	if (r < 0) {
		failed(e, r, "list MSRs");
		free(l);
		return NULL;
	}
	return l;
}

int msr_list_probe(const struct kvm *k, int vcpu_fd, struct msr_list *out, struct err *e)
{
	struct kvm_msr_entry values[STATE_MSRS_MAX];
	_cleanup_free_ struct kvm_msr_list *l = kvm_list(k, e);
	int r = 0;

	if (!l)
		return -EIO;
	out->n = 0;
	for (uint32_t i = 0; r == 0 && i < l->nmsrs; i++)
		r = list_add(out, l->indices[i], e);
	for (size_t i = 0; r == 0 && i < ARRAY_SIZE(msrs_unlisted); i++)
		r = list_add(out, msrs_unlisted[i], e);
	return r < 0 ? r : read_msrs(vcpu_fd, out, values, e);
}

/* The calls whose order is free, between the MP state and the MSRs. */
static int get_plain(int fd, struct vcpu_state *s, struct err *e)
{
	const struct {
		unsigned long request;
		void *to;
		const char *what;
	} calls[] = {
		{ KVM_GET_REGS, &s->regs, "get registers" },
		{ KVM_GET_SREGS, &s->sregs, "get segment registers" },
		{ KVM_GET_XSAVE, s->xsave, "get extended state" },
		{ KVM_GET_XCRS, &s->xcrs, "get extended control registers" },
		{ KVM_GET_DEBUGREGS, &s->debug, "get debug registers" },
		{ KVM_GET_LAPIC, &s->lapic, "get the local APIC" },
	};

	for (size_t i = 0; i < ARRAY_SIZE(calls); i++) {
		int r = kvm_ioctl(fd, calls[i].request, calls[i].to);

		if (r < 0)
			return failed(e, r, calls[i].what);
	}
	return 0;
}

int vcpu_state_get(int fd, const struct msr_list *msrs, struct vcpu_state *s, struct err *e)
{
	struct msr_list list = *msrs;
	int r;

	memset(s, 0, sizeof(*s));
	r = kvm_ioctl(fd, KVM_GET_MP_STATE, &s->mp);
	if (r < 0)
		return failed(e, r, "get the MP state");
	r = get_plain(fd, s, e);
	if (r < 0)
		return r;
	r = kvm_ioctl(fd, KVM_GET_TSC_KHZ, NULL);
	s->tsc_khz = r > 0 ? (uint32_t)r : 0; /* unknown: not compared on restore */
	s->cpuid.nent = CPUID_ENTRIES_MAX;
	r = kvm_ioctl(fd, KVM_GET_CPUID2, &s->cpuid);
	if (r < 0)
		return failed(e, r, "get CPUID");
	r = read_msrs(fd, &list, s->msrs, e);
	if (r < 0)
		return r;
	s->nmsrs = list.n;
	r = kvm_ioctl(fd, KVM_GET_VCPU_EVENTS, &s->events);
	return r < 0 ? failed(e, r, "get events") : 0;
}

int vcpu_state_check(const struct vcpu_state *s, const struct cpuid *host, struct err *e)
{
	if (s->nmsrs > STATE_MSRS_MAX || s->cpuid.nent > CPUID_ENTRIES_MAX)
		return err_set(e, "state_invalid", EBADMSG, "saved state: impossible counts");
	for (uint32_t i = 0; i < s->nmsrs; i++)
		if (!msr_is_kept(s->msrs[i].index))
			return err_set(e, "state_invalid", EBADMSG, "saved state: MSR 0x%x",
				       s->msrs[i].index);
	return cpuid_check_runs_on(&s->cpuid, host, e);
}

static int set_tsc_khz(const struct kvm *k, int fd, uint32_t want, struct err *e)
{
	int have = kvm_ioctl(fd, KVM_GET_TSC_KHZ, NULL);
	uint64_t off;

	if (!want || have <= 0)
		return 0;
	off = (uint64_t)llabs((long long)have - (long long)want) * 1000000 / want;
	if (off <= TSC_SAME_PPM)
		return 0;
	if (k->tsc_control)
		return ioctl(fd, KVM_SET_TSC_KHZ, (unsigned long)want) < 0
			       ? failed(e, -errno, "set the TSC frequency")
			       : 0;
	if (off > TSC_UNSCALED_MAX_PPM)
		return err_set(e, "state_mismatch", ENOTSUP,
			       "saved state: its TSC ran at %u kHz, this host's runs at %d and "
			       "cannot be scaled",
			       want, have);
	log_warn("the saved TSC ran at %u kHz, this one at %d", want, have);
	return 0;
}

static int set_plain(int fd, const struct vcpu_state *s, struct err *e)
{
	const struct {
		unsigned long request;
		const void *from;
		const char *what;
	} calls[] = {
		{ KVM_SET_CPUID2, &s->cpuid, "set CPUID" },
		{ KVM_SET_MP_STATE, &s->mp, "set the MP state" },
		{ KVM_SET_REGS, &s->regs, "set registers" },
		{ KVM_SET_SREGS, &s->sregs, "set segment registers" },
		{ KVM_SET_XSAVE, s->xsave, "set extended state" },
		{ KVM_SET_XCRS, &s->xcrs, "set extended control registers" },
		{ KVM_SET_DEBUGREGS, &s->debug, "set debug registers" },
		{ KVM_SET_LAPIC, &s->lapic, "set the local APIC" },
	};

	for (size_t i = 0; i < ARRAY_SIZE(calls); i++) {
		int r = kvm_ioctl(fd, calls[i].request, (void *)(uintptr_t)calls[i].from);

		if (r < 0)
			return failed(e, r, calls[i].what);
	}
	return 0;
}

/* Writes all of b; a short write names the MSR that was refused. */
static int write_msrs(int fd, struct msr_batch *b, struct err *e)
{
	int r = b->n ? kvm_ioctl(fd, KVM_SET_MSRS, b) : 0;

	if (r < 0)
		return failed(e, r, "write MSRs");
	if ((uint32_t)r != b->n)
		return err_set(e, "kvm_failed", EINVAL, "KVM: write MSR 0x%x: refused",
			       b->entries[r].index);
	return 0;
}

static int set_msrs(int fd, const struct vcpu_state *s, struct err *e)
{
	struct msr_batch most = { 0 }, deadline = { 0 };
	uint64_t tsc = 0;
	int r;

	for (uint32_t i = 0; i < s->nmsrs; i++) {
		struct msr_batch *b = s->msrs[i].index == MSR_TSC_DEADLINE ? &deadline : &most;

		if (s->msrs[i].index == MSR_TSC)
			tsc = s->msrs[i].data;
		b->entries[b->n++] = s->msrs[i];
	}
	r = write_msrs(fd, &most, e);
	if (r < 0)
		return r;
	if (deadline.n && deadline.entries[0].data == 0)
		deadline.entries[0].data = tsc;
	return write_msrs(fd, &deadline, e);
}

int vcpu_state_set(const struct kvm *k, int fd, const struct vcpu_state *s, struct err *e)
{
	struct kvm_vcpu_events events = s->events;
	int r = set_tsc_khz(k, fd, s->tsc_khz, e);

	if (r == 0)
		r = set_plain(fd, s, e);
	if (r == 0)
		r = set_msrs(fd, s, e);
	if (r < 0)
		return r;
	r = kvm_ioctl(fd, KVM_SET_VCPU_EVENTS, &events);
	return r < 0 ? failed(e, r, "set events") : 0;
}
