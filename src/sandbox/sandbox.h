/*
 * The sandboxes of this host: create, stop, start, delete, lease, and connections to the agent in
 * the guest. One manager per daemon, made in the unprivileged api child.
 *
 * Threads: every function may be called from any thread at any time and blocks until its work is
 * done. Operations on one sandbox take turns; operations on different ones run side by side.
 * sandbox_connect(), sandbox_get() and sandbox_list() never wait for a running operation.
 *
 * The store is written before a new state can be seen here, so the two never disagree for longer
 * than the write. Deleted sandboxes leave the manager; their rows stay in the store as "deleted".
 *
 * Error codes (struct err code; the API's catalogue gives each its status and fix):
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

#include "base/id.h"

struct broker_client;
struct err;
struct sandbox_manager;
struct store;

#define SANDBOX_NAME_MAX 63 /* bytes of a name or an image name, without the NUL */
#define SANDBOX_REASON_MAX 127
#define SANDBOX_VCPUS_MAX 32
#define SANDBOX_MEMORY_MIN_MIB 64
#define SANDBOX_MEMORY_MAX_MIB 65536
#define SANDBOX_DISK_MAX_MIB (1024 * 1024)
#define SANDBOX_IMAGE_DEFAULT "base"

enum sandbox_state {
	SANDBOX_CREATING,
	SANDBOX_RUNNING,
	SANDBOX_PAUSING,
	SANDBOX_PAUSED,
	SANDBOX_STOPPING,
	SANDBOX_STOPPED,
	SANDBOX_FAILED, /* could not be kept running; the disk is kept */
	SANDBOX_DELETED,
};

enum sandbox_lease_end { SANDBOX_LEASE_STOP, SANDBOX_LEASE_PAUSE, SANDBOX_LEASE_DELETE };

/* The words of api.md, "creating" … "deleted"; "stop", "pause", "delete". */
const char *sandbox_state_name(enum sandbox_state s);
int sandbox_state_parse(const char *name, enum sandbox_state *out); /* -EINVAL when unknown */
const char *sandbox_lease_end_name(enum sandbox_lease_end v);
int sandbox_lease_end_parse(const char *name, enum sandbox_lease_end *out);

/* What a create asks for. Strings and JSON stay the caller's. */
struct sandbox_spec {
	const char *org;	/* owning organisation's id, required */
	const char *created_by; /* id of the API key or member, required */
	const char *image;	/* NULL: SANDBOX_IMAGE_DEFAULT */
	const char *name;	/* NULL: none */
	unsigned vcpus;		/* 0: the default of the configuration, as the next two */
	unsigned memory_mib;
	unsigned disk_mib;
	int64_t timeout_ms; /* length of the lease; 0: never ends */
	enum sandbox_lease_end on_lease_end;
	const json_t *env;	 /* object of strings for every command in the guest, or NULL */
	const json_t *metadata;	 /* object of strings, or NULL */
	const json_t *network;	 /* kept and shown as given, or NULL */
	int64_t max_cost_micros; /* 0: no cap */
};

/* A sandbox as it was at one moment. Owns its memory: sandbox_info_clear(). */
struct sandbox_info {
	char id[ID_LEN];
	char org[ID_LEN];
	char created_by[ID_LEN];
	char name[SANDBOX_NAME_MAX + 1]; /* "" when it has none */
	char image[SANDBOX_NAME_MAX + 1];
	enum sandbox_state state;
	unsigned vcpus, memory_mib, disk_mib;
	int64_t created_ms, started_ms; /* wall clock; started_ms 0: never ran */
	int64_t lease_ends_ms;		/* 0: never, or not running */
	int64_t timeout_ms;
	enum sandbox_lease_end on_lease_end;
	char stop_reason[SANDBOX_REASON_MAX + 1]; /* "" while running */
	json_t *metadata, *network;		  /* owned; never NULL */
	int64_t max_cost_micros;
	uint64_t cpu_ns;     /* time its vCPU threads ran, over all its starts */
	uint64_t running_ms; /* time it ran, over all its starts; × memory_mib for GiB hours */
	unsigned generation; /* how often it was started or resumed */
};

void sandbox_info_clear(struct sandbox_info *i); /* frees what it owns; NULL-safe */

/*
 * Told after each change of state, from the thread that made it; must not call back into the
 * manager. event: "sandbox.created", "sandbox.started", "sandbox.stopped", "sandbox.failed",
 * "sandbox.deleted", "sandbox.renewed", "sandbox.lease_warning".
 */
typedef void (*sandbox_event_fn)(void *ctx, const char *event, const struct sandbox_info *info);

/* Strings and objects must outlive the manager. */
struct sandbox_config {
	const char *state_dir;	 /* sandboxes/ and images/ are below */
	const char *run_dir;	 /* vmm/ID.sock is below */
	const char *libexec_dir; /* agent.cpio */
	const char *const *import_dirs;
	size_t import_dirs_n;
	struct broker_client *broker;
	struct store *store;
	const char *host;					      /* this host's id */
	unsigned default_vcpus, default_memory_mib, default_disk_mib; /* 0: 2, 4096, 10240 */
	unsigned memory_reserve_mib; /* of the host's memory, never given to guests */
	unsigned disk_reserve_mib;
	unsigned boot_timeout_ms; /* 0: 60 000 */
	unsigned sandboxes_max;	  /* live ones; 0: 1000 */
	sandbox_event_fn on_event;
	void *event_ctx;
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
 * Creates a sandbox and waits until its agent has answered and adopted it; id tells which. On
 * failure nothing of it is left, and *details (may be NULL) is NULL or an object for the caller
 * to show and release, for example {"serialTail":["…"],"reason":"…"}.
 */
int sandbox_create(struct sandbox_manager *m, const struct sandbox_spec *spec, char id[ID_LEN],
		   json_t **details, struct err *e);

/* out is to be cleared with sandbox_info_clear() after success. */
int sandbox_get(struct sandbox_manager *m, const char *id, struct sandbox_info *out, struct err *e);

/*
 * The sandboxes of an organisation (NULL: of all), oldest first, ties by id. *out is an array of
 * *n to be released with sandbox_list_free().
 */
int sandbox_list(struct sandbox_manager *m, const char *org, struct sandbox_info **out, size_t *n,
		 struct err *e);
void sandbox_list_free(struct sandbox_info *list, size_t n);

/*
 * stop: orderly through the agent for timeout_ms (0: 10 000), then by force; the disk is kept.
 * Stopping a stopped one is success. start: a cold boot from its own disk; a fresh lease of its
 * timeout_ms. Starting a running one is success. details as for sandbox_create().
 */
int sandbox_stop(struct sandbox_manager *m, const char *id, const char *reason, unsigned timeout_ms,
		 struct err *e);
int sandbox_start(struct sandbox_manager *m, const char *id, json_t **details, struct err *e);

/* From every state; interrupts an operation that is under way. sandbox_not_found the second time.
 */
int sandbox_delete(struct sandbox_manager *m, const char *id, struct err *e);

/* The lease ends timeout_ms from now (0: never). Only a running sandbox has a lease. */
int sandbox_renew(struct sandbox_manager *m, const char *id, int64_t timeout_ms, struct err *e);

/*
 * A connected, blocking stream socket to the agent for one operation (proto/frame.h), owned by
 * the caller. It reads end of file when the guest goes away.
 */
int sandbox_connect(struct sandbox_manager *m, const char *id, int *fd, struct err *e);

/* The last bytes of the guest's serial console, as text to be freed. */
int sandbox_serial(struct sandbox_manager *m, const char *id, char **text, struct err *e);

/*
 * The images of this host: an array of {"name","kernelVersion","diskMiB","importedAt"…} for the
 * caller to release.
 */
int sandbox_images(struct sandbox_manager *m, json_t **out, struct err *e);

/* Checks names for sandboxes: 1..63 of [A-Za-z0-9._-], the first a letter or digit. */
bool sandbox_name_valid(const char *name);

#endif
