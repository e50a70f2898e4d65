/*
 * What a vCPU stopped for, by table. Devices are found on the bus of ports or of memory; everything
 * else ends the guest.
 */
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "vmm/bus.h"
#include "vmm/kvm.h"
#include "vmm/vcpu_internal.h"

void vcpu_report(struct vcpu *v, enum vcpu_event event)
{
	v->halted = true;
	v->set->hooks.event(v->set->hooks.ctx, event);
}

/* A string instruction hands over several elements at once. */
static void exit_io(struct vcpu *v)
{
	struct kvm_run *run = v->run;
	uint8_t *data = (uint8_t *)run + run->io.data_offset;
	const struct bus *bus = v->set->hooks.ports;
	bool claimed = true;

	vcpu_count(&v->exits[VCPU_EXIT_IO]);
	for (uint32_t i = 0; i < run->io.count; i++, data += run->io.size) {
		if (run->io.direction == KVM_EXIT_IO_IN)
			claimed = bus_read(bus, run->io.port, data, run->io.size) && claimed;
		else
			claimed = bus_write(bus, run->io.port, data, run->io.size) && claimed;
	}
	if (!claimed)
		vcpu_count(&v->unclaimed);
}

static void exit_mmio(struct vcpu *v)
{
	struct kvm_run *run = v->run;
	const struct bus *bus = v->set->hooks.memory;
	size_t len = run->mmio.len;
	bool claimed;

	vcpu_count(&v->exits[VCPU_EXIT_MMIO]);
	if (len > sizeof(run->mmio.data))
		return;
	if (run->mmio.is_write)
		claimed = bus_write(bus, run->mmio.phys_addr, run->mmio.data, len);
	else
		claimed = bus_read(bus, run->mmio.phys_addr, run->mmio.data, len);
	if (!claimed)
		vcpu_count(&v->unclaimed);
}

static void exit_shutdown(struct vcpu *v)
{
	vcpu_report(v, VCPU_TRIPLE_FAULT);
}

static void exit_system_event(struct vcpu *v)
{
	vcpu_report(v, v->run->system_event.type == KVM_SYSTEM_EVENT_SHUTDOWN ? VCPU_POWEROFF
									      : VCPU_RESET);
}

void vcpu_log_failure(const struct vcpu *v, const char *what, uint64_t detail)
{
	char id[12], detail_hex[24], rip[24] = "unknown";
	struct kvm_regs regs;

	snprintf(id, sizeof(id), "%u", v->id);
	snprintf(detail_hex, sizeof(detail_hex), "0x%llx", (unsigned long long)detail);
	if (kvm_ioctl(v->fd, KVM_GET_REGS, &regs) == 0)
		snprintf(rip, sizeof(rip), "0x%llx", (unsigned long long)regs.rip);
	log_event(LOG_ERROR, what, "vcpu", id, "detail", detail_hex, "rip", rip, NULL);
}

static void exit_fail_entry(struct vcpu *v)
{
	vcpu_log_failure(v, "KVM could not enter the guest",
			 v->run->fail_entry.hardware_entry_failure_reason);
	vcpu_report(v, VCPU_FAILED);
}

static void exit_internal_error(struct vcpu *v)
{
	vcpu_log_failure(v, "KVM gave up on an instruction", v->run->internal.suberror);
	vcpu_report(v, VCPU_FAILED);
}

static void exit_unexpected(struct vcpu *v)
{
	vcpu_log_failure(v, "unexpected exit from KVM", v->run->exit_reason);
	vcpu_report(v, VCPU_FAILED);
}

static void exit_nothing(struct vcpu *v)
{
	vcpu_count(&v->exits[VCPU_EXIT_OTHER]);
}

typedef void (*exit_fn)(struct vcpu *v);

static const exit_fn exit_table[] = {
	[KVM_EXIT_IO] = exit_io,
	[KVM_EXIT_MMIO] = exit_mmio,
	[KVM_EXIT_INTR] = exit_nothing,
	[KVM_EXIT_SHUTDOWN] = exit_shutdown,
	[KVM_EXIT_FAIL_ENTRY] = exit_fail_entry,
	[KVM_EXIT_INTERNAL_ERROR] = exit_internal_error,
	[KVM_EXIT_SYSTEM_EVENT] = exit_system_event,
};

void vcpu_dispatch_exit(struct vcpu *v)
{
	uint32_t reason = v->run->exit_reason;
	exit_fn fn = reason < ARRAY_SIZE(exit_table) ? exit_table[reason] : NULL;

	if (fn)
		fn(v);
	else
		exit_unexpected(v);
}
