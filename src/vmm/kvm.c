/* Order matters to KVM: TSS and identity map addresses, interrupt controller, then vCPUs. */
#include "vmm/kvm.h"

#include <errno.h>
#include <linux/kvm.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "vmm/layout.h"
#include "vmm/mem.h"

#define KVM_API 12

int kvm_ioctl(int fd, unsigned long request, void *arg)
{
	int r;

	do {
		r = ioctl(fd, request, arg);
	} while (r < 0 && errno == EINTR);
	return r < 0 ? -errno : r;
}

static int kvm_check(int fd, unsigned long cap)
{
	int r = ioctl(fd, KVM_CHECK_EXTENSION, cap);

	return r < 0 ? 0 : r;
}

static int failed(struct err *e, int r, const char *what)
{
	return err_set(e, "kvm_failed", -r, "KVM: %s: %s", what, strerror(-r));
}

int kvm_probe(int dev, struct kvm *out, struct err *e)
{
	static const struct {
		unsigned long cap;
		const char *name;
	} needed[] = {
		{ KVM_CAP_IRQCHIP, "an interrupt controller" },
		{ KVM_CAP_USER_MEMORY, "user memory" },
		{ KVM_CAP_SET_TSS_ADDR, "a TSS address" },
		{ KVM_CAP_EXT_CPUID, "CPUID" },
		{ KVM_CAP_IRQFD, "irqfd" },
		{ KVM_CAP_IRQ_ROUTING, "interrupt routing" },
		{ KVM_CAP_IMMEDIATE_EXIT, "immediate exit" },
		{ KVM_CAP_MP_STATE, "MP state" },
	};
	int r = ioctl(dev, KVM_GET_API_VERSION, 0);

	if (r != KVM_API)
		return err_set(e, "kvm_unavailable", r < 0 ? errno : ENOTSUP,
			       "the kvm descriptor answers no KVM API of version %d", KVM_API);
	for (size_t i = 0; i < ARRAY_SIZE(needed); i++)
		if (!kvm_check(dev, needed[i].cap))
			return err_set(e, "kvm_unavailable", ENOTSUP, "this host's KVM lacks %s",
				       needed[i].name);
	r = ioctl(dev, KVM_GET_VCPU_MMAP_SIZE, 0);
	if (r < 0)
		return err_set(e, "kvm_unavailable", errno, "KVM_GET_VCPU_MMAP_SIZE: %s",
			       strerror(errno));
	*out = (struct kvm){
		.dev = dev,
		.vm = -1,
		.run_size = (size_t)r,
		.ioeventfd = kvm_check(dev, KVM_CAP_IOEVENTFD),
		.tsc_deadline = kvm_check(dev, KVM_CAP_TSC_DEADLINE_TIMER),
		.tsc_control = kvm_check(dev, KVM_CAP_TSC_CONTROL),
		.xsave2 = kvm_check(dev, KVM_CAP_XSAVE2),
	};
	return 0;
}

/*
 * KVM's interrupt controller includes an i8259 pair that our machine does not have: by default it
 * would pass the first 16 interrupts to the boot processor as vectors 0 to 15 until a guest that
 * knows of it masks it. Routing every GSI to the IOAPIC alone leaves it without inputs.
 */
static int route_interrupts(const struct kvm *k)
{
	_cleanup_free_ struct kvm_irq_routing *r =
		calloc(1, sizeof(*r) + LAYOUT_GSIS * sizeof(r->entries[0]));

	if (!r)
		return -ENOMEM;
	r->nr = LAYOUT_GSIS;
	for (unsigned i = 0; i < LAYOUT_GSIS; i++) {
		r->entries[i].gsi = i;
		r->entries[i].type = KVM_IRQ_ROUTING_IRQCHIP;
		r->entries[i].u.irqchip.irqchip = KVM_IRQCHIP_IOAPIC;
		r->entries[i].u.irqchip.pin = i;
	}
	return kvm_ioctl(k->vm, KVM_SET_GSI_ROUTING, r);
}

int kvm_create_vm(struct kvm *k, struct err *e)
{
	uint64_t identity = LAYOUT_KVM_IDENTITY;
	int r = kvm_ioctl(k->dev, KVM_CREATE_VM, NULL);

	if (r < 0)
		return failed(e, r, "create a VM");
	k->vm = r;
	/* Only some processors need either; a KVM that has no use for them may refuse them. */
	r = kvm_ioctl(k->vm, KVM_SET_IDENTITY_MAP_ADDR, &identity);
	if (r < 0 && r != -ENOTTY && r != -EINVAL)
		return failed(e, r, "set the identity map address");
	r = ioctl(k->vm, KVM_SET_TSS_ADDR, LAYOUT_KVM_TSS) < 0 ? -errno : 0;
	if (r < 0)
		return failed(e, r, "set the TSS address");
	r = kvm_ioctl(k->vm, KVM_CREATE_IRQCHIP, NULL);
	if (r < 0)
		return failed(e, r, "create the interrupt controller");
	r = route_interrupts(k);
	return r < 0 ? failed(e, r, "route interrupts") : 0;
}

void kvm_close(struct kvm *k)
{
	if (k->run_size)
		close_fd(&k->vm);
}

int kvm_map_memory(const struct kvm *k, const struct guest_mem *mem, struct err *e)
{
	size_t n;
	const struct guest_mem_region *regions = guest_mem_regions(mem, &n);

	for (size_t i = 0; i < n; i++) {
		struct kvm_userspace_memory_region slot = {
			.slot = (uint32_t)i,
			.guest_phys_addr = regions[i].gpa,
			.memory_size = regions[i].size,
			.userspace_addr = (uintptr_t)regions[i].host,
		};
		int r = kvm_ioctl(k->vm, KVM_SET_USER_MEMORY_REGION, &slot);

		if (r < 0)
			return failed(e, r, "map guest memory");
	}
	return 0;
}

int kvm_wire_irq(const struct kvm *k, int fd, unsigned gsi, struct err *e)
{
	struct kvm_irqfd irq = { .fd = (uint32_t)fd, .gsi = gsi };
	int r = kvm_ioctl(k->vm, KVM_IRQFD, &irq);

	return r < 0 ? failed(e, r, "wire an interrupt") : 0;
}

int kvm_wire_doorbell(const struct kvm *k, int fd, uint64_t gpa, uint32_t value, struct err *e)
{
	struct kvm_ioeventfd bell = { .datamatch = value,
				      .addr = gpa,
				      .len = sizeof(value),
				      .fd = fd,
				      .flags = KVM_IOEVENTFD_FLAG_DATAMATCH };
	int r = kvm_ioctl(k->vm, KVM_IOEVENTFD, &bell);

	return r < 0 ? failed(e, r, "wire a doorbell") : 0;
}

int kvm_get_vm_state(const struct kvm *k, struct kvm_vm_state *out, struct err *e)
{
	struct kvm_irqchip chip = { .chip_id = KVM_IRQCHIP_IOAPIC };
	struct kvm_clock_data clock = { 0 };
	int r = kvm_ioctl(k->vm, KVM_GET_CLOCK, &clock);

	if (r < 0)
		return failed(e, r, "get the clock");
	r = kvm_ioctl(k->vm, KVM_GET_IRQCHIP, &chip);
	if (r < 0)
		return failed(e, r, "get the IOAPIC");
	out->clock_ns = clock.clock;
	out->ioapic = chip.chip.ioapic;
	return 0;
}

/*
 * Flags stay clear: with the host's real time in it KVM would move the guest's monotonic clock by
 * the time it spent saved.
 */
int kvm_set_vm_state(const struct kvm *k, const struct kvm_vm_state *s, struct err *e)
{
	struct kvm_irqchip chip = { .chip_id = KVM_IRQCHIP_IOAPIC, .chip.ioapic = s->ioapic };
	struct kvm_clock_data clock = { .clock = s->clock_ns };
	int r = kvm_ioctl(k->vm, KVM_SET_CLOCK, &clock);

	if (r < 0)
		return failed(e, r, "set the clock");
	r = kvm_ioctl(k->vm, KVM_SET_IRQCHIP, &chip);
	return r < 0 ? failed(e, r, "set the IOAPIC") : 0;
}
