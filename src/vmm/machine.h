/*
 * The guest machine: memory, devices, vCPUs, and its life from configuration to its end. All
 * functions belong to the I/O loop's thread.
 */
#ifndef CLOCHE_VMM_MACHINE_H
#define CLOCHE_VMM_MACHINE_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/vmm.h"
#include "vmm/machine_config.h"
#include "vmm/vcpu.h"
#include "vmm/virtio/balloon.h"
#include "vmm/virtio/blk.h"
#include "vmm/virtio/net.h"
#include "vmm/virtio/vsock.h"

struct buf;
struct err;
struct loop;
struct machine;

enum machine_state {
	MACHINE_CREATED,
	MACHINE_CONFIGURED,
	MACHINE_RUNNING,
	MACHINE_PAUSED,
	MACHINE_STOPPED
};

enum machine_reason {
	MACHINE_NOT_ENDED,
	MACHINE_POWEROFF,
	MACHINE_RESET,
	MACHINE_TRIPLE_FAULT,
	MACHINE_STOP,
	MACHINE_ERROR,
};

struct machine_stats {
	enum machine_state state;
	uint64_t uptime_ms;
	unsigned memory_mib, vcpus, disks;
	struct vcpu_stats cpu[VMM_VCPUS_MAX];
	struct virtio_blk_stats blk[VMM_DISKS_MAX];
	struct virtio_net_stats net; /* zero without a network card */
	struct virtio_balloon_stats balloon;
	struct virtio_vsock_stats vsock;
};

/* ended: the guest ended by itself; called on the loop, once. */
int machine_new(struct loop *loop, void (*ended)(void *ctx), void *ctx, struct machine **out,
		struct err *e);

/* Ends the guest if it runs and frees everything. NULL-safe. */
void machine_free(struct machine *m);

/*
 * Takes the configuration over (its descriptors are then the machine's, and c holds none).
 * Error codes: wrong_state, kvm_unavailable.
 */
int machine_configure(struct machine *m, struct machine_config *c, struct err *e);

/*
 * Builds the machine, loads the guest, applies the sandbox and runs. On failure the machine is
 * configured as before. Error codes: wrong_state, kernel_invalid, memory_unavailable, kvm_failed,
 * bad_request, system.
 */
int machine_start(struct machine *m, struct err *e);

/*
 * Builds the machine that was saved, from c's state and memory files; it is then paused. The
 * memory file is mapped privately and must never change afterwards. Takes c over as
 * machine_configure() does. Error codes: wrong_state, kvm_unavailable, kvm_failed,
 * memory_unavailable, bad_request, state_invalid, state_version, state_mismatch, system.
 */
int machine_restore(struct machine *m, struct machine_config *c, struct err *e);

/* Stops the guest at a point where all is at rest, and lets it go on. Error code wrong_state. */
int machine_pause(struct machine *m, struct err *e);
int machine_resume(struct machine *m, struct err *e);

/*
 * Writes a paused machine to two empty files, which stay the caller's; *written gets the bytes of
 * memory that were not zero. The machine is unchanged, also on failure. Error codes: wrong_state,
 * kvm_failed, bad_request, system.
 */
int machine_save(struct machine *m, int state_fd, int memory_fd, uint64_t *written, struct err *e);

/* Asks the guest for that much of its memory; 0 gives all back. Error code wrong_state. */
int machine_set_balloon(struct machine *m, uint64_t bytes, struct err *e);

/* Ends the guest at once; does nothing when it has ended. */
void machine_stop(struct machine *m);

/* See virtio_vsock_connect(); besides its errors, code wrong_state. */
int machine_connect(struct machine *m, uint32_t port, int fd, unsigned timeout_ms,
		    virtio_vsock_connected_fn cb, void *ctx, struct err *e);

/* The last bytes (at most max) of serial output; see ring_read_tail(). */
int machine_serial(struct machine *m, size_t max, struct buf *out, uint64_t *dropped);

void machine_stats(struct machine *m, struct machine_stats *out);

enum machine_state machine_state(const struct machine *m);
const char *machine_state_name(enum machine_state s);

/* "poweroff", "reset", …; NULL while it has not ended. */
const char *machine_reason(const struct machine *m);

#endif
