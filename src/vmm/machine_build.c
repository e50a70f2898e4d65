/*
 * Building goes memory, devices, VM, vCPUs, and then the guest or its saved state; a failure on the
 * way takes down what was built. Taking down goes the other way round: vCPU threads first, then
 * the VM, then the devices, whose memory comes last.
 *
 * A device takes its saved state before it is attached to the loop, and paused it stays.
 */
#include <errno.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/log.h"
#include "vmm/boot/load.h"
#include "vmm/cpuid.h"
#include "vmm/machine_internal.h"
#include "vmm/mem.h"
#include "vmm/sandbox.h"
#include "vmm/state/state_file.h"

void machine_teardown(struct machine *m)
{
	vcpu_set_free(steal_ptr(m->vcpus));
	kvm_close(&m->kvm);
	virtio_vsock_free(steal_ptr(m->vsock));
	virtio_rng_free(steal_ptr(m->rng));
	virtio_net_free(steal_ptr(m->net));
	virtio_balloon_free(steal_ptr(m->balloon));
	for (unsigned i = 0; i < VMM_DISKS_MAX; i++) {
		virtio_blk_free(steal_ptr(m->blk[i]));
		blk_backend_free(steal_ptr(m->backends[i]));
	}
	m->nvirtio = 0;
	serial_destroy(&m->serial);
	m->ports.n = m->memory.n = 0;
	guest_mem_free(steal_ptr(m->mem));
}

static void on_power(void *ctx, enum power_event event)
{
	machine_request_end(ctx, event == POWER_OFF ? MACHINE_POWEROFF : MACHINE_RESET);
}

static void on_vcpu_event(void *ctx, enum vcpu_event event)
{
	static const enum machine_reason reasons[] = {
		[VCPU_TRIPLE_FAULT] = MACHINE_TRIPLE_FAULT,
		[VCPU_RESET] = MACHINE_RESET,
		[VCPU_POWEROFF] = MACHINE_POWEROFF,
		[VCPU_FAILED] = MACHINE_ERROR,
	};

	machine_request_end(ctx, reasons[event]);
}

static void virtio_bus_read(void *ctx, uint64_t offset, void *data, size_t len)
{
	virtio_mmio_read(ctx, offset, data, len);
}

static void virtio_bus_write(void *ctx, uint64_t offset, const void *data, size_t len)
{
	virtio_mmio_write(ctx, offset, data, len);
}

/* Gives a device the next window. */
static int add_virtio(struct machine *m, struct virtio_mmio *v, struct err *e)
{
	static const struct bus_ops ops = { virtio_bus_read, virtio_bus_write };
	uint64_t base = LAYOUT_VIRTIO_BASE + m->nvirtio * LAYOUT_VIRTIO_SIZE;

	if (m->nvirtio == LAYOUT_VIRTIO_MAX)
		return err_set(e, "internal", ENOSPC, "no room for another device");
	m->virtio[m->nvirtio++] = v;
	return bus_add(&m->memory, base, VIRTIO_MMIO_SIZE, &ops, v, e);
}

static int add_disk(struct machine *m, unsigned i, struct err *e)
{
	struct virtio_blk_setup c = { 0 };
	int r = blk_raw_new(m->config.disk_fds[i], m->config.read_only[i], &m->backends[i], e);

	if (r < 0)
		return err_wrap(e, "disk %u", i);
	c.backend = m->backends[i];
	memcpy(c.serial, "disk0", 5);
	c.serial[4] = (char)('0' + i);
	r = virtio_blk_new(m->mem, &c, &m->blk[i], e);
	return r < 0 ? r : add_virtio(m, virtio_blk_mmio(m->blk[i]), e);
}

static int add_net(struct machine *m, struct err *e)
{
	struct virtio_net_setup setup = { .fd = m->config.tap_fd, .mtu = m->config.mtu };
	int r;

	if (!m->config.has_net)
		return 0;
	memcpy(setup.mac, m->config.mac, sizeof(setup.mac));
	r = virtio_net_new(m->mem, &setup, &m->net, e);
	return r < 0 ? r : add_virtio(m, virtio_net_mmio(m->net), e);
}

/* Disks first: the first window is /dev/vda. */
static int build_devices(struct machine *m, struct err *e)
{
	int r = serial_init(&m->serial, m->config.serial_bytes, e);

	if (r == 0)
		r = serial_attach(&m->serial, &m->ports, e);
	m->power = (struct power){ on_power, m };
	if (r == 0)
		r = power_attach(&m->power, &m->ports, e);
	for (unsigned i = 0; r == 0 && i < m->config.disks; i++)
		r = add_disk(m, i, e);
	if (r == 0)
		r = add_net(m, e);
	if (r == 0)
		r = virtio_vsock_new(m->mem, m->config.cid, &m->vsock, e);
	if (r == 0)
		r = add_virtio(m, virtio_vsock_mmio(m->vsock), e);
	if (r == 0)
		r = virtio_rng_new(m->mem, &m->rng, e);
	if (r == 0)
		r = add_virtio(m, virtio_rng_mmio(m->rng), e);
	if (r == 0)
		r = virtio_balloon_new(m->mem, &m->balloon, e);
	return r < 0 ? r : add_virtio(m, virtio_balloon_mmio(m->balloon), e);
}

static int wire_device(struct machine *m, unsigned i, struct err *e)
{
	uint64_t bell = LAYOUT_VIRTIO_BASE + i * LAYOUT_VIRTIO_SIZE + VIRTIO_MMIO_QUEUE_NOTIFY;
	struct virtio_mmio *v = m->virtio[i];
	int r = kvm_wire_irq(&m->kvm, virtio_mmio_irq_fd(v), LAYOUT_VIRTIO_GSI + i, e);

	for (unsigned q = 0; r == 0 && m->kvm.ioeventfd && q < virtio_mmio_queues(v); q++)
		r = kvm_wire_doorbell(&m->kvm, virtio_mmio_kick_fd(v, q), bell, q, e);
	return r < 0 ? r : virtio_mmio_attach(v, m->loop, e);
}

static int build_vm(struct machine *m, struct err *e)
{
	int r = kvm_create_vm(&m->kvm, e);

	if (r == 0)
		r = kvm_map_memory(&m->kvm, m->mem, e);
	if (r == 0)
		r = kvm_wire_irq(&m->kvm, m->serial.irq_fd, LAYOUT_SERIAL_GSI, e);
	for (unsigned i = 0; r == 0 && i < m->nvirtio; i++)
		r = wire_device(m, i, e);
	return r;
}

/* On each vCPU's thread, as it is first let go. */
static int on_vcpu_start(void *ctx)
{
	struct machine *m = ctx;
	struct err e;
	int r = sandbox_seal_vcpu(m->sandbox, &e);

	if (r < 0)
		log_err(LOG_ERROR, &e, "vCPU thread");
	return r;
}

/* Without a baseline the vCPUs wait for a saved state. */
static int build_vcpus(struct machine *m, const struct cpuid *baseline, struct err *e)
{
	struct vcpu_hooks hooks = { .ports = &m->ports,
				    .memory = &m->memory,
				    .thread_start = on_vcpu_start,
				    .event = on_vcpu_event,
				    .ctx = m };

	return vcpu_set_new(&m->kvm, baseline, m->config.vcpus, &hooks, &m->vcpus, e);
}

static int load_guest(struct machine *m, struct err *e)
{
	struct boot_config boot = { .kernel_fd = m->config.kernel_fd,
				    .initrd_fds = m->config.initrd_fds,
				    .initrds = m->config.initrds,
				    .cmdline = m->config.cmdline,
				    .vcpus = m->config.vcpus,
				    .virtio = m->nvirtio };
	struct boot_entry entry;
	int r = boot_load(m->mem, &boot, &entry, e);

	return r < 0 ? r : vcpu_set_boot(m->vcpus, entry.rip, entry.start_info, e);
}

int machine_build_guest(struct machine *m, struct err *e)
{
	struct cpuid cpuid;
	int r = guest_mem_new((uint64_t)m->config.memory_mib * LAYOUT_MIB, GUEST_MEM_HUGE, &m->mem,
			      e);

	if (r == 0)
		r = build_devices(m, e);
	if (r == 0)
		r = build_vm(m, e);
	if (r == 0)
		r = cpuid_baseline(&m->kvm, m->config.vcpus, &cpuid, e);
	if (r == 0)
		r = build_vcpus(m, &cpuid, e);
	if (r == 0)
		r = load_guest(m, e);
	return r < 0 ? r : sandbox_seal_process(m->sandbox, e);
}

static int restore_devices(struct machine *m, const struct state_view *s, struct err *e)
{
	const void *p;
	size_t n;
	int r = state_section(s, STATE_SERIAL, 0, sizeof(m->serial.regs), &p, &n, e);

	if (r < 0)
		return r;
	memcpy(&m->serial.regs, p, sizeof(m->serial.regs));
	for (unsigned i = 0; i < m->nvirtio; i++) {
		r = state_section(s, STATE_VIRTIO, i, 0, &p, &n, e);
		if (r == 0)
			r = virtio_mmio_restore(m->virtio[i], p, n, e);
		if (r < 0)
			return r;
	}
	return 0;
}

static int restore_vcpu(struct machine *m, const struct state_view *s, unsigned i,
			const struct cpuid *host, struct err *e)
{
	_cleanup_free_ struct vcpu_state *v = malloc(sizeof(*v));
	const void *p;
	size_t n;
	int r;

	if (!v)
		return err_errno(e, ENOMEM, "restore a vCPU");
	r = state_section(s, STATE_VCPU, i, sizeof(*v), &p, &n, e);
	if (r < 0)
		return r;
	memcpy(v, p, sizeof(*v));
	r = vcpu_state_check(v, host, e);
	return r < 0 ? r : vcpu_state_set(&m->kvm, vcpu_set_fd(m->vcpus, i), v, e);
}

/* The VM's clock and IOAPIC come after all vCPUs. */
static int restore_cpus(struct machine *m, const struct state_view *s, struct err *e)
{
	struct kvm_vm_state vm;
	struct cpuid host;
	const void *p;
	size_t n;
	int r = cpuid_baseline(&m->kvm, m->config.vcpus, &host, e);

	for (unsigned i = 0; r == 0 && i < m->config.vcpus; i++)
		r = restore_vcpu(m, s, i, &host, e);
	if (r == 0)
		r = state_section(s, STATE_VM, 0, sizeof(vm), &p, &n, e);
	if (r < 0)
		return r;
	memcpy(&vm, p, sizeof(vm));
	return kvm_set_vm_state(&m->kvm, &vm, e);
}

int machine_build_saved(struct machine *m, const struct state_view *s, struct err *e)
{
	int r = build_devices(m, e);

	if (r == 0)
		r = restore_devices(m, s, e);
	if (r == 0)
		r = build_vm(m, e);
	if (r == 0)
		r = build_vcpus(m, NULL, e);
	if (r == 0)
		r = restore_cpus(m, s, e);
	return r < 0 ? r : sandbox_seal_process(m->sandbox, e);
}
