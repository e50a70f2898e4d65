/*
 * The sandboxes of this host: create, stop, start, delete, lease, and connections to the agent in
 * the guest. One manager per daemon, made in the unprivileged api child.
 *
 * What a sandbox *is* stands in the store (struct store_sandbox): callers read rows there. What
 * changes one goes through here. Each change of state and its event are one write to the store
 * before the call returns; rows of other hosts are not touched.
 *
 * Threads: every function may be called from any thread at any time and blocks until its work is
 * done. Operations on one sandbox take turns, on different ones they run side by side;
 * sandbox_connect() never waits for a running operation.
 *
 * `actor` is the id of the API key that asked, for the events; "" is the daemon itself.
 *
 * Error codes (struct err code; the API's catalogue gives each its status and fix), besides the
 * store's own:
 *	sandbox_not_found    no such sandbox on this host, or deleted
 *	sandbox_wrong_state  the operation does not fit the state; msg names both
 *	sandbox_not_running  a connection to a sandbox that has no running guest
 *	image_not_found      msg lists the images there are
 *	image_corrupt        a digest, size or the manifest is wrong; fix says to import it again
 *	value_out_of_range   vcpus, memory or disk; msg names the field and the range
 *	capacity_memory      not enough free memory on the host (retryable)
 *	capacity_disk        not enough free disk on the host (retryable)
 *	capacity_sandboxes   the host's limit of live sandboxes is reached (retryable)
 *	boot_failed          the guest ended before its agent answered; details has the serial tail
 *	boot_timeout         the agent did not answer in time; details has the serial tail
 *	guest_unreachable    the agent of a running guest does not accept connections
 *	not_available        not part of this version (onLeaseEnd "pause")
 *	vmm_failed           the virtual machine monitor could not be started or broke
 *	system               an operating system call failed; msg says which
 */
#ifndef CLOCHE_SANDBOX_SANDBOX_H
#define CLOCHE_SANDBOX_SANDBOX_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "store/store.h"

struct broker_client;
struct err;
struct sandbox_manager;

#define SANDBOX_VCPUS_MAX 32
#define SANDBOX_MEMORY_MIN_MIB 64
#define SANDBOX_MEMORY_MAX_MIB 65536
#define SANDBOX_DISK_MAX_MIB (1024 * 1024)
#define SANDBOX_IMAGE_DEFAULT "base"

/* Strings, and the array of them, must outlive the manager. */
struct sandbox_config {
	const char *state_dir;	 /* sandboxes/ and images/ are below */
	const char *run_dir;	 /* vmm/ID.sock is below */
	const char *libexec_dir; /* agent.cpio */
	const char *const *import_dirs;
	size_t import_dirs_n;
	struct broker_client *broker;
	struct store *store;
	const char *host; /* this host's id, kept in rows */
	unsigned default_vcpus, default_memory_mib, default_disk_mib; /* 0: 2, 4096, 10240 */
	unsigned memory_reserve_mib; /* of the host's memory, never given to guests */
	unsigned disk_reserve_mib;   /* of the state folder's file system, never given to disks */
	unsigned boot_timeout_ms;    /* 0: 60 000 */
	unsigned sandboxes_max;	     /* live ones; 0: 1000 */
};

/*
 * Makes the manager and takes over what a former daemon left: live guests that the store knows
 * are adopted, others are killed and cleaned away, rows whose guest is gone become stopped, half
 * made sandboxes are rolled back.
 */
int sandbox_manager_new(const struct sandbox_config *c, struct sandbox_manager **out,
			struct err *e);

/* Stops the manager's threads and drops its connections; guests go on. NULL-safe. */
void sandbox_manager_free(struct sandbox_manager *m);

/*
 * Creates a sandbox and waits until its agent has answered and adopted it.
 *
 * In row the caller fills name, image ("": the default), vcpus, memory_mib, disk_mib (0: the
 * default), timeout_s, on_lease_end, idle_s, no_env, max_cost_micros, owner_key and the JSON
 * texts, and may choose an id; the rest is ignored. On success the whole row is as stored. On
 * failure nothing of the sandbox is left but its row, "deleted"; row then keeps what the caller put
 * in, and *details (may be NULL) is NULL or an object for the caller to show and release, for
 * example
 * {"reason":"panic","serialTail":["…"]}.
 */
int sandbox_create(struct sandbox_manager *m, struct store_sandbox *row, const char *actor,
		   json_t **details, struct err *e);

/*
 * stop: orderly through the agent for timeout_ms (0: 10 000), then by force; the disk is kept.
 * Stopping a stopped one is success. start: a cold boot from its own disk with a fresh lease.
 * Starting a running one is success. details as for sandbox_create().
 */
int sandbox_stop(struct sandbox_manager *m, const char *id, const char *actor, const char *reason,
		 unsigned timeout_ms, struct err *e);
int sandbox_start(struct sandbox_manager *m, const char *id, const char *actor, json_t **details,
		  struct err *e);

/*
 * Stops every running sandbox, all at once, each in order and then by force; for a host that goes
 * down. Returns when all have ended; what fails is logged.
 */
void sandbox_stop_all(struct sandbox_manager *m, const char *reason);

/* From every state; interrupts an operation under way. The second time: sandbox_not_found. */
int sandbox_delete(struct sandbox_manager *m, const char *id, const char *actor, struct err *e);

/* The lease ends timeout_s from now (0: never). Only a running sandbox has a lease. */
int sandbox_renew(struct sandbox_manager *m, const char *id, const char *actor, int64_t timeout_s,
		  struct err *e);

/*
 * A connected, blocking stream socket to the agent for one operation (proto/frame.h), owned by
 * the caller. It reads end of file when the guest goes away.
 */
int sandbox_connect(struct sandbox_manager *m, const char *id, int *fd, struct err *e);

/* The last bytes of the guest's serial console, the former one's when none runs; to be freed. */
int sandbox_serial(struct sandbox_manager *m, const char *id, char **text, struct err *e);

/*
 * What it used up to this moment, the running stretch included, from its ticks in the store and
 * the live VMM. For a sandbox of this host that is not deleted; else use store_usage_sum().
 */
int sandbox_usage(struct sandbox_manager *m, const char *id, int64_t from_ms,
		  struct store_usage *out, struct err *e);

/*
 * The images of this host: an array of {"name","kernelVersion","diskMiB","importedAt"} for the
 * caller to release.
 */
int sandbox_images(struct sandbox_manager *m, json_t **out, struct err *e);

#endif
