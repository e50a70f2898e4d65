/*
 * Each register is set by a call of its own, because KVM stops a list at the first one it refuses
 * and which ones it refuses differs from host to host.
 */
#include "vmm/msr.h"

#include <errno.h>
#include <linux/kvm.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/log.h"
#include "vmm/kvm.h"

enum {
	MSR_TSC = 0x10,
	MSR_SYSENTER_CS = 0x174,
	MSR_SYSENTER_ESP = 0x175,
	MSR_SYSENTER_EIP = 0x176,
	MSR_MISC_ENABLE = 0x1a0,
	MSR_MTRR_DEF_TYPE = 0x2ff,
};

#define MSR_STAR 0xc0000081U
#define MSR_LSTAR 0xc0000082U
#define MSR_CSTAR 0xc0000083U
#define MSR_SFMASK 0xc0000084U
#define MSR_KERNEL_GS_BASE 0xc0000102U
#define MISC_ENABLE_FAST_STRING 1U
#define MTRR_ENABLE_WRITE_BACK ((1U << 11) | 6U)

static const struct {
	uint32_t index;
	uint64_t value;
} boot_msrs[] = {
	{ MSR_SYSENTER_CS, 0 },
	{ MSR_SYSENTER_ESP, 0 },
	{ MSR_SYSENTER_EIP, 0 },
	{ MSR_STAR, 0 },
	{ MSR_LSTAR, 0 },
	{ MSR_CSTAR, 0 },
	{ MSR_SFMASK, 0 },
	{ MSR_KERNEL_GS_BASE, 0 },
	{ MSR_TSC, 0 },
	{ MSR_MISC_ENABLE, MISC_ENABLE_FAST_STRING },
	{ MSR_MTRR_DEF_TYPE, MTRR_ENABLE_WRITE_BACK },
};

/* Laid out as struct kvm_msrs with one entry. */
struct one_msr {
	uint32_t n, padding;
	struct kvm_msr_entry entry;
};

_Static_assert(offsetof(struct one_msr, entry) == sizeof(struct kvm_msrs), "MSR layout");

int msr_set_boot(int vcpu_fd, struct err *e)
{
	for (size_t i = 0; i < ARRAY_SIZE(boot_msrs); i++) {
		struct one_msr m = {
			.n = 1,
			.entry = { .index = boot_msrs[i].index, .data = boot_msrs[i].value },
		};
		int r = kvm_ioctl(vcpu_fd, KVM_SET_MSRS, &m);

		if (r < 0)
			return err_set(e, "kvm_failed", -r, "KVM_SET_MSRS: %s", strerror(-r));
		if (r == 0)
			log_debug("KVM has no MSR 0x%x", boot_msrs[i].index);
	}
	return 0;
}
