/*
 * A saved machine is two files: the state (state_file.h) and the memory, byte for byte as the guest
 * sees it with the MMIO hole left out. Restoring maps the memory file privately: pages are read as
 * the guest touches them and shared with every other guest of the same file until written.
 */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/log.h"
#include "vmm/machine_internal.h"
#include "vmm/mem.h"
#include "vmm/state/state_file.h"
#include "vmm/state/state_memory.h"

/* What must be the same for the saved devices to fit. */
struct shape {
	uint32_t vcpus, memory_mib, cid, disks, has_net, nvirtio;
	uint8_t read_only[VMM_DISKS_MAX];
	uint32_t device_ids[LAYOUT_VIRTIO_MAX];
};

static struct shape shape_of(const struct machine *m)
{
	struct shape s = { .vcpus = m->config.vcpus,
			   .memory_mib = m->config.memory_mib,
			   .cid = m->config.cid,
			   .disks = m->config.disks,
			   .has_net = m->config.has_net,
			   .nvirtio = m->nvirtio };

	for (unsigned i = 0; i < VMM_DISKS_MAX; i++)
		s.read_only[i] = m->config.read_only[i];
	for (unsigned i = 0; i < m->nvirtio; i++)
		s.device_ids[i] = virtio_mmio_device_id(m->virtio[i]);
	return s;
}

static int save_vcpu(struct machine *m, unsigned i, struct buf *b, struct err *e)
{
	_cleanup_free_ struct vcpu_state *v = malloc(sizeof(*v));
	int r;

	if (!v)
		return err_errno(e, ENOMEM, "save a vCPU");
	r = vcpu_state_get(vcpu_set_fd(m->vcpus, i), &m->msrs, v, e);
	if (r < 0)
		return r;
	r = state_add(b, STATE_VCPU, i, v, sizeof(*v));
	return r < 0 ? err_errno(e, -r, "save a vCPU") : 0;
}

static int save_devices(struct machine *m, struct buf *b, struct err *e)
{
	int r = state_add(b, STATE_SERIAL, 0, &m->serial.regs, sizeof(m->serial.regs));

	if (r < 0)
		return err_errno(e, -r, "save devices");
	for (unsigned i = 0; i < m->nvirtio; i++) {
		_cleanup_buf_ struct buf device = { 0 };

		r = virtio_mmio_save(m->virtio[i], &device, e);
		if (r < 0)
			return r;
		r = state_add(b, STATE_VIRTIO, i, device.data, device.len);
		if (r < 0)
			return err_errno(e, -r, "save devices");
	}
	return 0;
}

/* The whole state but the memory, into an empty buffer. */
static int collect(struct machine *m, struct buf *b, struct err *e)
{
	struct shape shape = shape_of(m);
	struct kvm_vm_state vm;
	int r = 0;

	if (m->msrs.n == 0)
		r = msr_list_probe(&m->kvm, vcpu_set_fd(m->vcpus, 0), &m->msrs, e);
	if (r < 0)
		return r;
	if (state_begin(b) < 0 || state_add(b, STATE_SHAPE, 0, &shape, sizeof(shape)) < 0)
		return err_errno(e, ENOMEM, "save");
	for (unsigned i = 0; r == 0 && i < m->config.vcpus; i++)
		r = save_vcpu(m, i, b, e);
	if (r == 0)
		r = kvm_get_vm_state(&m->kvm, &vm, e);
	if (r == 0 && state_add(b, STATE_VM, 0, &vm, sizeof(vm)) < 0)
		r = err_errno(e, ENOMEM, "save");
	if (r == 0)
		r = save_devices(m, b, e);
	if (r == 0)
		state_finish(b);
	return r;
}

int machine_save(struct machine *m, int state_fd, int memory_fd, uint64_t *written, struct err *e)
{
	_cleanup_buf_ struct buf b = { 0 };
	int r;

	if (m->state != MACHINE_PAUSED)
		return err_set(e, "wrong_state", EBUSY, "the machine is %s",
			       machine_state_name(m->state));
	r = collect(m, &b, e);
	if (r == 0)
		r = memory_save(m->mem, memory_fd, written, e);
	if (r < 0)
		return r;
	r = fd_write_full(state_fd, b.data, b.len);
	return r < 0 ? err_errno(e, -r, "write the state file") : 0;
}

static int check_shape(const struct shape *s, const struct machine_config *c, struct err *e)
{
	if (s->vcpus < 1 || s->vcpus > VMM_VCPUS_MAX || s->memory_mib < VMM_MEMORY_MIN_MIB ||
	    s->memory_mib > VMM_MEMORY_MAX_MIB || s->nvirtio > LAYOUT_VIRTIO_MAX)
		return err_set(e, "state_invalid", EBADMSG, "saved state: impossible sizes");
	if (s->disks != c->disks || s->has_net != c->has_net)
		return err_set(e, "state_mismatch", EINVAL,
			       "saved state: %u disks and %u network cards; given are %u and %d",
			       s->disks, s->has_net, c->disks, c->has_net);
	for (unsigned i = 0; i < c->disks; i++)
		if (s->read_only[i] != c->read_only[i])
			return err_set(e, "state_mismatch", EINVAL, "saved state: disk %u was %s",
				       i, s->read_only[i] ? "read-only" : "writable");
	return 0;
}

/* Reads the state file and takes the machine's sizes from it. */
static int read_state(struct machine *m, struct buf *b, struct state_view *view, struct err *e)
{
	struct machine_config *c = &m->config;
	struct shape shape;
	const void *p;
	size_t n;
	int r = fd_read_all(c->state_fd, b, STATE_BYTES_MAX);

	if (r < 0)
		return err_errno(e, -r, "read the state file");
	r = state_open(b->data, b->len, view, e);
	if (r == 0)
		r = state_section(view, STATE_SHAPE, 0, sizeof(shape), &p, &n, e);
	if (r < 0)
		return r;
	memcpy(&shape, p, sizeof(shape));
	r = check_shape(&shape, c, e);
	if (r < 0)
		return r;
	c->vcpus = shape.vcpus;
	c->memory_mib = shape.memory_mib;
	c->cid = shape.cid;
	return 0;
}

static int check_memory_file(const struct machine_config *c, struct err *e)
{
	uint64_t want = (uint64_t)c->memory_mib * LAYOUT_MIB;
	struct stat st;

	if (fstat(c->memory_fd, &st) < 0)
		return err_errno(e, errno, "memory file");
	if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size != want)
		return err_set(e, "state_mismatch", EINVAL,
			       "the memory file is not a file of the guest's %llu bytes",
			       (unsigned long long)want);
	return 0;
}

static int restore(struct machine *m, struct err *e)
{
	_cleanup_buf_ struct buf b = { 0 };
	struct state_view view;
	int r = read_state(m, &b, &view, e);

	if (r == 0)
		r = check_memory_file(&m->config, e);
	if (r == 0)
		r = guest_mem_new_file(m->config.memory_fd,
				       (uint64_t)m->config.memory_mib * LAYOUT_MIB, 0, &m->mem, e);
	return r < 0 ? r : machine_build_saved(m, &view, e);
}

int machine_restore(struct machine *m, struct machine_config *c, struct err *e)
{
	uint64_t begin = clock_mono_ns();
	int r;

	if (m->state != MACHINE_CREATED)
		return err_set(e, "wrong_state", EBUSY, "the machine is %s",
			       machine_state_name(m->state));
	r = kvm_probe(c->kvm_fd, &m->kvm, e);
	if (r < 0)
		return r;
	m->config = *c;
	r = restore(m, e);
	if (r < 0) {
		machine_teardown(m);
		machine_config_init(&m->config); /* the descriptors are still c's */
		return r;
	}
	machine_config_init(c);
	machine_config_close_boot(&m->config);
	m->state = MACHINE_PAUSED;
	m->started_ns = clock_mono_ns();
	log_info("guest restored after %llu us: %u vCPUs, %u MiB, %u devices",
		 (unsigned long long)((m->started_ns - begin) / 1000), m->config.vcpus,
		 m->config.memory_mib, m->nvirtio);
	return 0;
}
