/* What machine.c (life), machine_build.c (parts) and machine_state.c (saved form) share. */
#ifndef CLOCHE_VMM_MACHINE_INTERNAL_H
#define CLOCHE_VMM_MACHINE_INTERNAL_H

#include <stdatomic.h>

#include "vmm/bus.h"
#include "vmm/kvm.h"
#include "vmm/layout.h"
#include "vmm/machine.h"
#include "vmm/power.h"
#include "vmm/serial.h"
#include "vmm/state/state_cpu.h"
#include "vmm/virtio/blk_backend.h"
#include "vmm/virtio/mmio.h"
#include "vmm/virtio/rng.h"

struct guest_mem;
struct sandbox;
struct state_view;

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
	struct virtio_net *net; /* NULL: the guest has no network card */
	struct virtio_balloon *balloon;
	struct virtio_mmio *virtio[LAYOUT_VIRTIO_MAX];
	unsigned nvirtio;
	struct vcpu_set *vcpus;
	struct msr_list msrs; /* what a save keeps; empty until the first */
};

/* Leaves the reason for the loop's thread, which is woken; the first one counts. Any thread. */
void machine_request_end(struct machine *m, enum machine_reason reason);

/* Memory, devices, VM and vCPUs of m->config for a guest that boots, and the guest in it. */
int machine_build_guest(struct machine *m, struct err *e);

/*
 * The same for a saved guest: m->mem is there, and what s holds goes into the parts. Devices are
 * paused.
 */
int machine_build_saved(struct machine *m, const struct state_view *s, struct err *e);

/* Takes down all that was built; safe at any stage of it. */
void machine_teardown(struct machine *m);

#endif
