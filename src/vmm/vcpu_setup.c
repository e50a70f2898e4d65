/*
 * The state a processor starts in. The boot processor is in 32-bit protected mode with flat
 * segments and paging off, as the PVH boot ABI wants it; the others stay as KVM makes them,
 * waiting for INIT and SIPI.
 */
#include <errno.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "vmm/cpuid.h"
#include "vmm/kvm.h"
#include "vmm/msr.h"
#include "vmm/vcpu_internal.h"

#define CR0_PE 0x01ULL
#define CR0_ET 0x10ULL
#define RFLAGS_FIXED 0x02ULL
#define SEGMENT_CODE 0x0b /* execute, read, accessed */
#define SEGMENT_DATA 0x03 /* read, write, accessed */
#define SEGMENT_TSS32_BUSY 0x0b
#define TSS_LIMIT 0x67

static int failed(struct err *e, int r, const char *what)
{
	return err_set(e, "kvm_failed", -r, "KVM: %s: %s", what, strerror(-r));
}

int vcpu_setup(struct vcpu *v, const struct kvm *k, const struct cpuid *baseline, struct err *e)
{
	struct cpuid cpuid;
	void *run;
	int r;

	v->fd = ioctl(k->vm, KVM_CREATE_VCPU, (unsigned long)v->id);
	if (v->fd < 0)
		return failed(e, -errno, "create a vCPU");
	run = mmap(NULL, k->run_size, PROT_READ | PROT_WRITE, MAP_SHARED, v->fd, 0);
	if (run == MAP_FAILED)
		return failed(e, -errno, "map a vCPU");
	v->run = run;
	if (!baseline)
		return 0;
	cpuid = *baseline;
	cpuid_personalise(&cpuid, v->id);
	r = kvm_ioctl(v->fd, KVM_SET_CPUID2, &cpuid); /* before the MSRs that depend on it */
	if (r < 0)
		return failed(e, r, "set CPUID");
	return msr_set_boot(v->fd, e);
}

int vcpu_publish_apics(struct vcpu_set *s, struct err *e)
{
	int fd = s->vcpus[s->n - 1].fd, r;
	struct kvm_lapic_state lapic;

	r = kvm_ioctl(fd, KVM_GET_LAPIC, &lapic);
	if (r == 0)
		r = kvm_ioctl(fd, KVM_SET_LAPIC, &lapic);
	return r < 0 ? failed(e, r, "refresh the local APICs") : 0;
}

void vcpu_teardown(struct vcpu *v, size_t run_size)
{
	if (v->run)
		munmap(v->run, run_size);
	v->run = NULL;
	close_fd(&v->fd);
}

static struct kvm_segment flat_segment(uint16_t selector, uint8_t type)
{
	return (struct kvm_segment){ .limit = 0xffffffff,
				     .selector = selector,
				     .type = type,
				     .present = 1,
				     .db = 1,
				     .s = 1,
				     .g = 1 };
}

int vcpu_set_boot(struct vcpu_set *s, uint32_t rip, uint64_t start_info, struct err *e)
{
	struct kvm_regs regs = { .rip = rip, .rbx = start_info, .rflags = RFLAGS_FIXED };
	int fd = s->vcpus[0].fd;
	struct kvm_sregs sregs;
	int r = kvm_ioctl(fd, KVM_GET_SREGS, &sregs);

	if (r < 0)
		return failed(e, r, "get segment registers");
	sregs.cr0 = CR0_PE | CR0_ET;
	sregs.cr4 = 0;
	sregs.efer = 0;
	sregs.cs = flat_segment(0x08, SEGMENT_CODE);
	sregs.ds = sregs.es = sregs.fs = sregs.gs = sregs.ss = flat_segment(0x10, SEGMENT_DATA);
	sregs.tr = (struct kvm_segment){
		.limit = TSS_LIMIT, .selector = 0x18, .type = SEGMENT_TSS32_BUSY, .present = 1
	};
	r = kvm_ioctl(fd, KVM_SET_SREGS, &sregs);
	if (r < 0)
		return failed(e, r, "set segment registers");
	r = kvm_ioctl(fd, KVM_SET_REGS, &regs);
	return r < 0 ? failed(e, r, "set registers") : 0;
}
