/*
 * Inside src/sandbox: the manager, its sandboxes, and what its parts offer each other.
 *
 * Locks, in this order: sandbox.op, manager.lock, the store's own.
 *	sandbox.op    held through one whole operation on a sandbox; its holder alone changes row,
 *		      vmm and meter
 *	manager.lock  held for moments; guards the list, reference counts, workers, and the fields
 *		      that others than the holder of op read: row, live, deleting, and the watches
 */
#ifndef CLOCHE_SANDBOX_MANAGER_H
#define CLOCHE_SANDBOX_MANAGER_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "broker/client.h"
#include "sandbox/sandbox.h"
#include "sandbox/usage.h"

struct images;
struct loop;
struct loop_source;
struct watch;

/* A live VMM. */
struct guest {
	int pidfd; /* -1: none */
	int log;   /* its stderr, -1 when lost */
};

struct sandbox {
	struct sandbox *next;
	unsigned refs; /* the list's one included */
	pthread_mutex_t op;
	struct store_sandbox row;
	struct guest guest;
	bool live;	/* connections may be made */
	unsigned epoch; /* grows with every VMM, so that late news of a former one is known as such
			 */
	bool deleting;	/* an operation under way is to give up */
	bool unsaved;	/* the store refused a write of row; the tick tries again */
	bool lease_handed; /* a worker ends its lease */
	bool lease_warned;
	struct meter meter;
};

struct sandbox_manager {
	struct sandbox_config config;
	struct images *images;
	pthread_mutex_t lock;
	pthread_cond_t idle; /* workers became 0 */
	struct sandbox *first;
	unsigned workers;
	uint64_t booting_mib; /* memory promised to guests that are being started */
	bool ending, ticking;
	/* the watcher */
	pthread_t thread;
	bool has_thread;
	struct loop *loop;
	struct loop_source *lease_timer, *tick_timer;
	struct watch *watches, *new_watches;
};

/* ---- manager.c ---- */

/* A reference, or NULL with "sandbox_not_found". */
struct sandbox *manager_get(struct sandbox_manager *m, const char *id, struct err *e);
void manager_put(struct sandbox_manager *m, struct sandbox *s);

/* manager_get() and its op lock; manager_unlock() gives both back. A deleted one is not found. */
struct sandbox *manager_lock(struct sandbox_manager *m, const char *id, struct err *e);
void manager_unlock(struct sandbox_manager *m, struct sandbox *s);

/*
 * A sandbox for row (whose memory it takes over), in the list, with a reference and the op lock
 * for the caller: manager_unlock().
 */
struct sandbox *manager_add(struct sandbox_manager *m, struct store_sandbox *row, struct err *e);
void manager_remove(struct sandbox_manager *m, struct sandbox *s); /* from the list */

/* References to all *n of them, each to be put back, in an array to be freed; NULL without memory.
 */
struct sandbox **manager_all(struct sandbox_manager *m, size_t *n);

/* How many have a guest, or are about to. */
unsigned manager_live(struct sandbox_manager *m);

/* Runs fn(m, s, arg) on a thread of its own; fn frees arg. s is kept meanwhile. */
typedef void (*manager_work_fn)(struct sandbox_manager *m, struct sandbox *s, void *arg);
int manager_work(struct sandbox_manager *m, struct sandbox *s, manager_work_fn fn, void *arg,
		 struct err *e);

/* STATE/sandboxes/ID, or a file in it. */
int manager_path(const struct sandbox_manager *m, const char *id, const char *file, char *out,
		 size_t n, struct err *e);

/* ---- change.c: writing rows ---- */

/* What to say of a change besides the new row. */
struct change {
	const char *event; /* "sandbox.stopped", or NULL */
	const char *actor; /* "" the daemon */
	json_t *data;	   /* of the event; consumed; may be NULL */
};

/*
 * Writes next (same JSON texts as s->row) with its event, then makes it visible. When the world
 * has already changed (`must`), a store that fails leaves the row unsaved and the change visible.
 */
int change_row(struct sandbox_manager *m, struct sandbox *s, const struct store_sandbox *next,
	       struct change c, bool must, struct err *e);

/* As change_row() to another state, checked against the table of transitions. */
int change_state(struct sandbox_manager *m, struct sandbox *s, enum sandbox_state to,
		 const char *reason, struct change c, bool must, struct err *e);

/* ---- boot.c: a guest from nothing to adopted ---- */

/*
 * Starts the guest of s from its disk and waits until its agent has adopted it. On success
 * s->guest is open and *wait_fd is a control connection on which a wait is pending. On failure
 * nothing is left of the guest, and *details may hold what to show. e is not NULL.
 */
int boot_guest(struct sandbox_manager *m, struct sandbox *s, int *wait_fd, json_t **details,
	       struct err *e);

/* A stream to the agent; deadline in ms. "connection_refused" and "timeout" may be tried again. */
int boot_connect(struct sandbox_manager *m, const char *id, int timeout_ms, int *fd, struct err *e);

/* A control connection on which a wait is pending; it becomes readable when the guest ends. */
int boot_wait_open(struct sandbox_manager *m, const struct sandbox *s, int *wait_fd, struct err *e);

/* ---- guest.c: the end of a guest ---- */

/* Waits at most timeout_ms for the VMM's end. */
bool guest_wait_end(const struct guest *g, int timeout_ms);

/*
 * Ends the VMM whatever it does, removes what belongs to it, keeps its log beside the disk and
 * closes s->guest. oom tells whether the kernel killed it for lack of memory. Failures are
 * logged: the next start of the sandbox or of the daemon tries again.
 */
void guest_end(struct sandbox_manager *m, struct sandbox *s, bool *oom);

/* What the VMM wrote to its stderr so far, to be freed; NULL when that is lost. */
char *guest_log(const struct sandbox *s);

/* The serial console's last bytes, to be freed; NULL when there are none. */
char *guest_serial(struct sandbox_manager *m, const char *id);

/* ---- watch.c: the watcher thread ---- */

int watch_start(struct sandbox_manager *m, struct err *e);
void watch_stop(struct sandbox_manager *m);

/* Follows the guest of s, which now runs; takes over wait_fd (-1: none). */
int watch_add(struct sandbox_manager *m, struct sandbox *s, int wait_fd, struct err *e);

/* The leases changed: look again. Any thread. */
void watch_leases(struct sandbox_manager *m);

/* ---- lease.c ---- */

/* When the lease of a row that runs from now ends, 0: never. */
int64_t lease_end_from_now(int64_t timeout_s);

/* Hands leases that ended to workers, warns of those that soon will; the next time to look, wall
 * clock ms, 0: none. On the watcher's thread. */
int64_t lease_check(struct sandbox_manager *m);

/* ---- tick.c: every TICK on a worker's thread ---- */

#define TICK_MS 30000

/* Meters what runs and writes again what the store refused. */
void tick(struct sandbox_manager *m, struct sandbox *unused, void *arg);

/* ---- lifecycle.c: with s's op lock held ---- */

int lifecycle_stop(struct sandbox_manager *m, struct sandbox *s, const char *actor,
		   const char *reason, unsigned timeout_ms, struct err *e);
int lifecycle_delete(struct sandbox_manager *m, struct sandbox *s, const char *actor,
		     const char *reason, struct err *e);

/* The guest ended by itself; vmm_reason is the VMM's word or NULL. */
void lifecycle_ended(struct sandbox_manager *m, struct sandbox *s, const char *vmm_reason);

/* ---- admit.c ---- */

/* Takes memory and a place for a guest about to be started; admit_done() when it runs or failed. */
int admit_begin(struct sandbox_manager *m, const struct store_sandbox *row, struct err *e);
void admit_done(struct sandbox_manager *m, const struct store_sandbox *row);

/* Whether a disk that takes `bytes` now fits. */
int admit_disk(struct sandbox_manager *m, uint64_t bytes, struct err *e);

/* ---- meter.c: with s's op lock held ---- */

/* Writes what was used since the last time to the store. */
void meter_tick(struct sandbox_manager *m, struct sandbox *s);
void meter_begin(struct sandbox *s);				/* at a start */
void meter_adopt(struct sandbox_manager *m, struct sandbox *s); /* of a guest found running */

/* ---- recover.c ---- */

int recover(struct sandbox_manager *m, struct err *e);

#endif
