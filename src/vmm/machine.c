/*
 * The machine's life. The guest can end itself on any vCPU thread: that thread only leaves the
 * reason in an atomic and wakes the loop; the first reason wins; the loop's thread does the rest.
 * A reason that comes while the machine is paused waits for it to go on.
 */
#include "vmm/machine.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/loop.h"
#include "vmm/machine_internal.h"
#include "vmm/sandbox.h"

void machine_request_end(struct machine *m, enum machine_reason reason)
{
	int none = MACHINE_NOT_ENDED;

	if (atomic_compare_exchange_strong(&m->ending, &none, (int)reason))
		loop_wake(m->loop);
}

/* Stops the vCPUs where they are; what stats and serial say stays until the process ends. */
static void end_guest(struct machine *m, enum machine_reason reason)
{
	if (m->vcpus)
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

int machine_pause(struct machine *m, struct err *e)
{
	if (m->state != MACHINE_RUNNING)
		return err_set(e, "wrong_state", EBUSY, "the machine is %s",
			       machine_state_name(m->state));
	vcpu_set_park(m->vcpus);
	for (unsigned i = 0; i < m->nvirtio; i++)
		virtio_mmio_pause(m->virtio[i]);
	m->state = MACHINE_PAUSED;
	return 0;
}

int machine_resume(struct machine *m, struct err *e)
{
	if (m->state != MACHINE_PAUSED)
		return err_set(e, "wrong_state", EBUSY, "the machine is %s",
			       machine_state_name(m->state));
	vcpu_set_note_pause(m->vcpus);
	m->state = MACHINE_RUNNING;
	for (unsigned i = 0; i < m->nvirtio; i++)
		virtio_mmio_resume(m->virtio[i]);
	serial_resume(&m->serial);
	vcpu_set_run(m->vcpus);
	on_wake(m); /* it may have ended itself on the way into the pause */
	return 0;
}

void machine_free(struct machine *m)
{
	if (!m)
		return;
	loop_on_wake(m->loop, NULL, NULL);
	machine_teardown(m);
	machine_config_close(&m->config);
	sandbox_free(m->sandbox);
	free(m);
}

int machine_start(struct machine *m, struct err *e)
{
	uint64_t begin = clock_mono_ns();
	int r;

	if (m->state != MACHINE_CONFIGURED)
		return err_set(e, "wrong_state", EBUSY, "the machine is %s",
			       machine_state_name(m->state));
	r = machine_build_guest(m, e);
	if (r < 0) {
		machine_teardown(m);
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
	if (m->state != MACHINE_STOPPED)
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

int machine_set_balloon(struct machine *m, uint64_t bytes, struct err *e)
{
	if (m->state != MACHINE_RUNNING)
		return err_set(e, "wrong_state", EBUSY, "the machine is %s",
			       machine_state_name(m->state));
	virtio_balloon_set_target(m->balloon, bytes);
	return 0;
}

int machine_serial(struct machine *m, size_t max, struct buf *out, uint64_t *dropped)
{
	*dropped = 0;
	return m->serial.ready ? ring_read_tail(&m->serial.output, max, out, dropped) : 0;
}

void machine_stats(struct machine *m, struct machine_stats *out)
{
	uint64_t until = m->state != MACHINE_STOPPED ? clock_mono_ns() : m->ended_ns;

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
	if (m->net)
		virtio_net_stats(m->net, &out->net);
	virtio_balloon_stats(m->balloon, &out->balloon);
	virtio_vsock_stats(m->vsock, &out->vsock);
}

enum machine_state machine_state(const struct machine *m)
{
	return m->state;
}

const char *machine_state_name(enum machine_state s)
{
	static const char *const names[] = { "created", "configured", "running", "paused",
					     "stopped" };

	return names[s];
}

const char *machine_reason(const struct machine *m)
{
	static const char *const names[] = { NULL,	     "poweroff", "reset",
					     "triple_fault", "stop",	 "error" };

	return names[m->reason];
}
