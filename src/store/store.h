/*
 * The store: what must outlive the daemon. Sandboxes, API keys, audit events, idempotent answers,
 * metering ticks. SQLite behind it; another engine would implement this same header.
 *
 * Threads: every function may be called from any thread; calls are serialised inside. A function
 * that changes something returns only when the change is on disk, unless said otherwise.
 * Errors: "store_failed" (the engine), "store_newer", "store_damaged" (store_open only), and the
 * codes named at each function. Rows are filled completely or not at all; what a row owns is
 * released with its …_free function, which is safe on a zeroed row and leaves it zeroed.
 *
 * The store does not know which state follows which: src/sandbox holds a sandbox's lock around
 * read, decide, update.
 */
#ifndef CLOCHE_STORE_STORE_H
#define CLOCHE_STORE_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/id.h"

struct err;
struct store;

#define STORE_NAME_LEN 64   /* "" or [a-z0-9][a-z0-9-]{0,62}, and NUL */
#define STORE_IMAGE_LEN 128 /* image name, and NUL */
#define STORE_REASON_LEN 64
#define STORE_HOST_LEN 64
#define STORE_HASH_LEN 32 /* SHA-256 */

/*
 * Opens or creates the database file and brings its schema up to date in one transaction. The
 * folder must exist. A database of a newer version ("store_newer") or one that fails its
 * integrity check ("store_damaged") is refused and left as it is.
 */
int store_open(const char *path, struct store **out, struct err *e);
void store_close(struct store *s); /* NULL-safe */

/* ---- sandboxes ---- */

enum sandbox_state {
	SANDBOX_CREATING,
	SANDBOX_RUNNING,
	SANDBOX_PAUSING,
	SANDBOX_PAUSED,
	SANDBOX_STOPPING,
	SANDBOX_STOPPED,
	SANDBOX_FAILED,
	SANDBOX_DELETED,
	SANDBOX_STATES, /* their number */
};

enum lease_end { LEASE_END_STOP, LEASE_END_PAUSE, LEASE_END_DELETE };

/* The names of api.md ("creating", …; "stop", …). The parsers return -1 for an unknown word. */
const char *sandbox_state_name(enum sandbox_state s);
int sandbox_state_parse(const char *name);
const char *lease_end_name(enum lease_end l);
int lease_end_parse(const char *name);

/*
 * One sandbox. Times are clock_wall_ms() values, 0 meaning never. The JSON texts are objects
 * (secrets: an array), owned by the row; NULL is stored as the empty one and read back as such.
 */
struct store_sandbox {
	int64_t seq; /* order of creation, set by the store */
	char id[ID_LEN];
	char name[STORE_NAME_LEN];
	enum sandbox_state state;
	char image[STORE_IMAGE_LEN];
	char host[STORE_HOST_LEN];
	int64_t vcpus, memory_mib, disk_mib;
	int64_t created_ms, started_ms;
	int64_t timeout_s;     /* length of a lease; 0: never ends */
	int64_t lease_ends_ms; /* 0: never */
	enum lease_end on_lease_end;
	int64_t idle_s; /* 0: no idle rule */
	bool no_env;
	int64_t max_cost_micros; /* -1: no cap of its own */
	char stop_reason[STORE_REASON_LEN];
	char *env_json, *network_json, *metadata_json, *secrets_json;
	char last_snapshot[ID_LEN]; /* "" none */
	int64_t last_snapshot_ms;
	bool last_snapshot_quiesced;
	char parent[ID_LEN];	/* "" none */
	char owner_key[ID_LEN]; /* the key that created it */
	int64_t generation;
	/* The live VMM process: pid 0 when none. start is field 22 of /proc/PID/stat. */
	int64_t vmm_pid;
	uint64_t vmm_start;
	int64_t uid_slot; /* -1: none; unique among live rows */
};

void store_sandbox_free(struct store_sandbox *row);

/* An audit record. type is "sandbox.created"-like; actor, sandbox: an id or "" (the daemon). */
struct store_event {
	int64_t seq; /* set by the store */
	char id[ID_LEN];
	int64_t at_ms; /* 0: now */
	char type[64];
	char actor[ID_LEN];
	char sandbox[ID_LEN];
	char *data_json; /* object, owned; NULL: {} */
};

void store_event_free(struct store_event *ev);

/*
 * Insert and update write the row and, when ev is not NULL, its event in one transaction. Update
 * writes every field but seq, id, created_ms and owner_key. A row set to SANDBOX_DELETED stays for
 * the books, and its name and uid slot become free.
 * Codes: "name_taken", "uid_slot_taken"; update also "sandbox_not_found".
 */
int store_sandbox_insert(struct store *s, const struct store_sandbox *row,
			 const struct store_event *ev, struct err *e);
int store_sandbox_update(struct store *s, const struct store_sandbox *row,
			 const struct store_event *ev, struct err *e);

/* By id (deleted ones too) or by name (never a deleted one). "sandbox_not_found". */
int store_sandbox_get(struct store *s, const char *id_or_name, struct store_sandbox *out,
		      struct err *e);

struct store_match {
	const char *key, *value;
};

struct store_sandbox_filter {
	unsigned states;		    /* bit 1 << state; 0: every state but deleted */
	int64_t before_seq;		    /* only rows older than this one; 0: from the newest */
	size_t limit;			    /* 0: no limit */
	const struct store_match *metadata; /* all must match */
	size_t n_metadata;
};

/*
 * Rows, newest first. *out is an array of *n rows for store_sandboxes_free(); *out is NULL when
 * *n is 0.
 */
int store_sandbox_list(struct store *s, const struct store_sandbox_filter *f,
		       struct store_sandbox **out, size_t *n, struct err *e);
void store_sandboxes_free(struct store_sandbox *rows, size_t n);

/* The lowest uid slot in 0..max-1 that no live row holds. "capacity_exhausted". */
int store_uid_slot_free(struct store *s, int64_t max, int64_t *slot, struct err *e);

/* ---- events ---- */

int store_event_add(struct store *s, const struct store_event *ev, struct err *e);

/* Events with seq > after, oldest first, at most limit; optionally of one sandbox only. */
int store_event_list(struct store *s, int64_t after, size_t limit, const char *sandbox_or_null,
		     struct store_event **out, size_t *n, struct err *e);
void store_events_free(struct store_event *evs, size_t n);

/* ---- keys ---- */

enum key_role { KEY_READ_ONLY, KEY_MEMBER, KEY_ADMIN }; /* each may do what those before may */

const char *key_role_name(enum key_role r);
int key_role_parse(const char *name);

#define STORE_KEY_LEN 45 /* "clk_" + 40 + NUL */

struct store_key {
	char id[ID_LEN];
	char name[STORE_NAME_LEN];
	enum key_role role;
	int64_t created_ms, last_used_ms, revoked_ms;
};

/* Makes a key; the plain secret is given once and stored only as its SHA-256. */
int store_key_create(struct store *s, const char *name, enum key_role role, struct store_key *out,
		     char secret[STORE_KEY_LEN], struct err *e);

/*
 * The key of a secret; a revoked one is not found. "key_unknown". Notes the use, at most once a
 * minute. Looks up by hash, so that the time taken tells nothing about other keys.
 */
int store_key_find(struct store *s, const char *secret, struct store_key *out, struct err *e);

/* "key_not_found". A revoked key fails from the next store_key_find() on. */
int store_key_revoke(struct store *s, const char *id, struct err *e);
/* The keys that are valid, oldest first; *out is freed with free(). */
int store_key_list(struct store *s, struct store_key **out, size_t *n, struct err *e);
int store_key_count(struct store *s, int64_t *live, struct err *e);

/* ---- idempotency ---- */

enum idempotency_state {
	IDEMPOTENCY_NEW,	 /* ours to carry out, then finish or abandon */
	IDEMPOTENCY_RUNNING,	 /* another request with this key is being carried out */
	IDEMPOTENCY_DONE,	 /* status and body are the answer given then */
	IDEMPOTENCY_MISMATCH,	 /* the key was used for another request */
	IDEMPOTENCY_INTERRUPTED, /* the daemon died while carrying it out: outcome unknown */
};

struct idempotency_answer {
	int status;
	char *body; /* owned by the caller */
};

/* Claims (key id, idempotency key) for a request with this hash; fills answer when DONE. */
int store_idempotency_begin(struct store *s, const char *key_id, const char *idem,
			    const uint8_t hash[STORE_HASH_LEN], enum idempotency_state *state,
			    struct idempotency_answer *answer, struct err *e);
int store_idempotency_finish(struct store *s, const char *key_id, const char *idem, int status,
			     const char *body, struct err *e);
/* Nothing happened: the key may be used again. */
int store_idempotency_abandon(struct store *s, const char *key_id, const char *idem, struct err *e);
/* Drops records made before this time. */
int store_idempotency_expire(struct store *s, int64_t before_ms, struct err *e);

/* ---- usage ---- */

struct store_usage {
	int64_t cpu_ns;
	int64_t memory_mib_ms; /* MiB times milliseconds */
	int64_t cost_micros;
};

/* Appends what a sandbox used up to at_ms since its last tick. */
int store_usage_add(struct store *s, const char *sandbox, int64_t at_ms,
		    const struct store_usage *u, struct err *e);
/* Sum of a sandbox's ticks at or after from_ms (0: all). */
int store_usage_sum(struct store *s, const char *sandbox, int64_t from_ms, struct store_usage *out,
		    struct err *e);

#endif
