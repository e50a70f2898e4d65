/*
 * Building goes memory, devices, VM, vCPUs, boot data, and a failure on the way takes down what
 * was built. Taking down goes the other way round: vCPU threads first, then the VM, then the
 * devices, whose memory comes last.
 *
 * The guest can end itself on any vCPU thread. That thread only leaves the reason in an atomic and
 * wakes the loop; the first reason wins; the loop's thread does the rest.
 */
#include "vmm/machine.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/loop.h"
#include "vmm/boot/load.h"
#include "vmm/bus.h"
#include "vmm/cpuid.h"
#include "vmm/kvm.h"
#include "vmm/layout.h"
#include "vmm/mem.h"
#include "vmm/power.h"
#include "vmm/sandbox.h"
#include "vmm/serial.h"
#include "vmm/virtio/blk_backend.h"
#include "vmm/virtio/mmio.h"
#include "vmm/virtio/rng.h"

struct machine {
	struct loop *loop;
	void (*ended)(void *ctx);
	void *ended_ctx;

	enum machine_state state;
	enum machine_reason reason;    /* once stopped */
	_Atomic int ending;	       /* enum machine_reason, left by a vCPU thread */
	uint64_t started_ns, ended_ns; /* monotonic */
	struct machine_config config;
	struct sandbox *sandbox;

	/* What machine_start builds. */
	struct guest_mem *mem;
	struct kvm kvm;
	struct bus ports, memory;
	struct power power;
	struct serial serial;
	struct blk_backend *backends[VMM_DISKS_MAX];
	struct virtio_blk *blk[VMM_DISKS_MAX];
	struct virtio_vsock *vsock;
	struct virtio_rng *rng;
	struct virtio_mmio *virtio[LAYOUT_VIRTIO_MAX];
	unsigned nvirtio;
	struct vcpu_set *vcpus;
};

static void request_end(struct machine *m, enum machine_reason reason)
{
	int none = MACHINE_NOT_ENDED;

	if (atomic_compare_exchange_strong(&m->ending, &none, (int)reason))
		loop_wake(m->loop);
}

static void on_power(void *ctx, enum power_event event)
{
	request_end(ctx, event == POWER_OFF ? MACHINE_POWEROFF : MACHINE_RESET);
}

static void on_vcpu_event(void *ctx, enum vcpu_event event)
{
	static const enum machine_reason reasons[] = {
		[VCPU_TRIPLE_FAULT] = MACHINE_TRIPLE_FAULT,
		[VCPU_RESET] = MACHINE_RESET,
		[VCPU_POWEROFF] = MACHINE_POWEROFF,
		[VCPU_FAILED] = MACHINE_ERROR,
	};

	request_end(ctx, reasons[event]);
}

/* Stops the vCPUs where they are; what stats and serial say stays until the process ends. */
static void end_guest(struct machine *m, enum machine_reason reason)
{
	vcpu_set_park(m->vcpus);
	m->ended_ns = clock_mono_ns();
	m->reason = reason;
	m->state = MACHINE_STOPPED;
	log_event(LOG_INFO, "guest ended", "reason", machine_reason(m), NULL);
}

/* The loop was woken: a vCPU thread may have left a reason. */
static void on_wake(void *ctx)
{
	struct machine *m = ctx;
	int reason = atomic_load(&m->ending);

	if (m->state != MACHINE_RUNNING || reason == MACHINE_NOT_ENDED)
		return;
	end_guest(m, (enum machine_reason)reason);
	m->ended(m->ended_ctx);
}

int machine_new(struct loop *loop, void (*ended)(void *ctx), void *ctx, struct machine **out,
		struct err *e)
{
	struct machine *m = calloc(1, sizeof(*m));
	int r;

	if (!m)
		return err_errno(e, ENOMEM, "machine");
	m->loop = loop;
	m->ended = ended;
	m->ended_ctx = ctx;
	machine_config_init(&m->config);
	r = sandbox_new(&m->sandbox, e);
	if (r < 0) {
		free(m);
		return r;
	}
	loop_on_wake(loop, on_wake, m);
	*out = m;
	return 0;
}

int machine_configure(struct machine *m, struct machine_config *c, struct err *e)
{
	struct kvm kvm;
	int r;

	if (m->state != MACHINE_CREATED)
		return err_set(e, "wrong_state", EBUSY, "the machine is already configured");
	r = kvm_probe(c->kvm_fd, &kvm, e);
	if (r < 0)
		return r;
	m->config = *c;
	machine_config_init(c);
	m->kvm = kvm;
	m->state = MACHINE_CONFIGURED;
	return 0;
}

/* Takes down everything that machine_start built; safe at any stage of it. */
static void teardown(struct machine *m)
{
	vcpu_set_free(steal_ptr(m->vcpus));
	kvm_close(&m->kvm);
	virtio_vsock_free(steal_ptr(m->vsock));
	virtio_rng_free(steal_ptr(m->rng));
	for (unsigned i = 0; i < VMM_DISKS_MAX; i++) {
		virtio_blk_free(steal_ptr(m->blk[i]));
		blk_backend_free(steal_ptr(m->backends[i]));
	}
	m->nvirtio = 0;
	serial_destroy(&m->serial);
	m->ports.n = m->memory.n = 0;
	guest_mem_free(steal_ptr(m->mem));
}

void machine_free(struct machine *m)
{
	if (!m)
		return;
	loop_on_wake(m->loop, NULL, NULL);
	teardown(m);
	machine_config_close(&m->config);
	sandbox_free(m->sandbox);
	free(m);
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
		r = virtio_vsock_new(m->mem, m->config.cid, &m->vsock, e);
	if (r == 0)
		r = add_virtio(m, virtio_vsock_mmio(m->vsock), e);
	if (r == 0)
		r = virtio_rng_new(m->mem, &m->rng, e);
	return r < 0 ? r : add_virtio(m, virtio_rng_mmio(m->rng), e);
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

static int build_vcpus(struct machine *m, struct err *e)
{
	struct vcpu_hooks hooks = { .ports = &m->ports,
				    .memory = &m->memory,
				    .thread_start = on_vcpu_start,
				    .event = on_vcpu_event,
				    .ctx = m };
	struct cpuid cpuid;
	int r = cpuid_baseline(&m->kvm, m->config.vcpus, &cpuid, e);

	return r < 0 ? r : vcpu_set_new(&m->kvm, &cpuid, m->config.vcpus, &hooks, &m->vcpus, e);
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

static int build(struct machine *m, struct err *e)
{
	int r = guest_mem_new((uint64_t)m->config.memory_mib * LAYOUT_MIB, GUEST_MEM_HUGE, &m->mem,
			      e);

	if (r == 0)
		r = build_devices(m, e);
	if (r == 0)
		r = build_vm(m, e);
	if (r == 0)
		r = build_vcpus(m, e);
	if (r == 0)
		r = load_guest(m, e);
	return r < 0 ? r : sandbox_seal_process(m->sandbox, e);
}

int machine_start(struct machine *m, struct err *e)
{
	uint64_t begin = clock_mono_ns();
	int r;

	if (m->state != MACHINE_CONFIGURED)
		return err_set(e, "wrong_state", EBUSY, "the machine is %s",
			       machine_state_name(m->state));
	r = build(m, e);
	if (r < 0) {
		teardown(m);
		return r;
	}
	machine_config_close_boot(&m->config);
	m->state = MACHINE_RUNNING;
	m->started_ns = clock_mono_ns();
	vcpu_set_run(m->vcpus);
	log_info("guest started after %llu us: %u vCPUs, %u MiB, %u devices",
		 (unsigned long long)((m->started_ns - begin) / 1000), m->config.vcpus,
		 m->config.memory_mib, m->nvirtio);
	return 0;
}

void machine_stop(struct machine *m)
{
	if (m->state == MACHINE_RUNNING)
		end_guest(m, MACHINE_STOP);
}

int machine_connect(struct machine *m, uint32_t port, int fd, unsigned timeout_ms,
		    virtio_vsock_connected_fn cb, void *ctx, struct err *e)
{
	if (m->state != MACHINE_RUNNING)
		return err_set(e, "wrong_state", EBUSY, "the machine is %s",
			       machine_state_name(m->state));
	return virtio_vsock_connect(m->vsock, port, fd, timeout_ms, cb, ctx, e);
}

int machine_serial(struct machine *m, size_t max, struct buf *out, uint64_t *dropped)
{
	*dropped = 0;
	return m->serial.ready ? ring_read_tail(&m->serial.output, max, out, dropped) : 0;
}

void machine_stats(struct machine *m, struct machine_stats *out)
{
	uint64_t until = m->state == MACHINE_RUNNING ? clock_mono_ns() : m->ended_ns;

	memset(out, 0, sizeof(*out));
	out->state = m->state;
	out->memory_mib = m->config.memory_mib;
	if (!m->vcpus)
		return;
	out->uptime_ms = (until - m->started_ns) / NSEC_PER_MSEC;
	out->vcpus = m->config.vcpus;
	out->disks = m->config.disks;
	for (unsigned i = 0; i < out->vcpus; i++)
		vcpu_set_stats(m->vcpus, i, &out->cpu[i]);
	for (unsigned i = 0; i < out->disks; i++)
		virtio_blk_stats(m->blk[i], &out->blk[i]);
	virtio_vsock_stats(m->vsock, &out->vsock);
}

enum machine_state machine_state(const struct machine *m)
{
	return m->state;
}

const char *machine_state_name(enum machine_state s)
{
	static const char *const names[] = { "created", "configured", "running", "stopped" };

	return names[s];
}

const char *machine_reason(const struct machine *m)
{
	static const char *const names[] = { NULL,	     "poweroff", "reset",
					     "triple_fault", "stop",	 "error" };

	return names[m->reason];
}
