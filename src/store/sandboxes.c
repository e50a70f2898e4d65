/*
 * Sandbox rows. One list of columns makes the SQL and the table that binds and reads them: a
 * column has its member's name, so neither can drift from the other.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "store/internal.h"

/* What update writes. id, created_ms and owner_key are written once. */
#define COLUMNS(X)                      \
	X(name, STR)                    \
	X(state, STATE)                 \
	X(image, STR)                   \
	X(host, STR)                    \
	X(vcpus, INT)                   \
	X(memory_mib, INT)              \
	X(disk_mib, INT)                \
	X(started_ms, INT)              \
	X(timeout_s, INT)               \
	X(lease_ends_ms, INT)           \
	X(on_lease_end, LEASE)          \
	X(idle_s, INT)                  \
	X(no_env, BOOL)                 \
	X(max_cost_micros, INT)         \
	X(stop_reason, STR)             \
	X(env_json, OBJECT)             \
	X(network_json, OBJECT)         \
	X(metadata_json, OBJECT)        \
	X(secrets_json, LIST)           \
	X(last_snapshot, STR)           \
	X(last_snapshot_ms, INT)        \
	X(last_snapshot_quiesced, BOOL) \
	X(parent, STR)                  \
	X(generation, INT)              \
	X(vmm_pid, INT)                 \
	X(vmm_start, INT)               \
	X(uid_slot, INT)

#define X_NAME(c, k) ", " #c
#define X_MARK(c, k) ", ?"
#define X_SET(c, k) ", " #c " = ?"
#define X_TABLE(c, k) \
	{ COLUMN_##k, offsetof(struct store_sandbox, c), sizeof(((struct store_sandbox *)0)->c) },

#define SELECT "SELECT seq, id, created_ms, owner_key" COLUMNS(X_NAME) " FROM sandboxes "
#define FIXED_COLUMNS 4

enum column_kind {
	COLUMN_STR,    /* char[] */
	COLUMN_INT,    /* 64-bit */
	COLUMN_BOOL,   /* bool */
	COLUMN_OBJECT, /* char *, JSON object */
	COLUMN_LIST,   /* char *, JSON array */
	COLUMN_STATE,
	COLUMN_LEASE,
};

static const struct column {
	enum column_kind kind;
	size_t offset, size;
} columns[] = { COLUMNS(X_TABLE) };

static const char *const state_names[SANDBOX_STATES] = {
	[SANDBOX_CREATING] = "creating", [SANDBOX_RUNNING] = "running",
	[SANDBOX_PAUSING] = "pausing",	 [SANDBOX_PAUSED] = "paused",
	[SANDBOX_STOPPING] = "stopping", [SANDBOX_STOPPED] = "stopped",
	[SANDBOX_FAILED] = "failed",	 [SANDBOX_DELETED] = "deleted",
};

static const char *const lease_names[] = {
	[LEASE_END_STOP] = "stop",
	[LEASE_END_PAUSE] = "pause",
	[LEASE_END_DELETE] = "delete",
};

static int word_find(const char *const *words, size_t n, const char *word)
{
	for (size_t i = 0; i < n; i++)
		if (strcmp(words[i], word) == 0)
			return (int)i;
	return -1;
}

const char *sandbox_state_name(enum sandbox_state s)
{
	return state_names[s];
}

int sandbox_state_parse(const char *name)
{
	return word_find(state_names, SANDBOX_STATES, name);
}

const char *lease_end_name(enum lease_end l)
{
	return lease_names[l];
}

int lease_end_parse(const char *name)
{
	return word_find(lease_names, ARRAY_SIZE(lease_names), name);
}

void store_sandbox_free(struct store_sandbox *row)
{
	free(row->env_json);
	free(row->network_json);
	free(row->metadata_json);
	free(row->secrets_json);
	memset(row, 0, sizeof(*row));
}

void store_sandboxes_free(struct store_sandbox *rows, size_t n)
{
	for (size_t i = 0; i < n; i++)
		store_sandbox_free(&rows[i]);
	free(rows);
}

static int bind_column(sqlite3_stmt *stmt, int at, const struct column *c, const char *member)
{
	const char *text;

	switch (c->kind) {
	case COLUMN_STR:
		text = member;
		break;
	case COLUMN_INT:
		return sqlite3_bind_int64(stmt, at, *(const int64_t *)member);
	case COLUMN_BOOL:
		return sqlite3_bind_int64(stmt, at, *(const bool *)member);
	case COLUMN_STATE:
		text = state_names[*(const enum sandbox_state *)member];
		break;
	case COLUMN_LEASE:
		text = lease_names[*(const enum lease_end *)member];
		break;
	default:
		text = *(char *const *)member;
		if (!text)
			text = c->kind == COLUMN_LIST ? "[]" : "{}";
	}
	return sqlite3_bind_text(stmt, at, text, -1, SQLITE_STATIC);
}

static int bind_columns(struct store *s, sqlite3_stmt *stmt, int first,
			const struct store_sandbox *row, struct err *e)
{
	for (size_t i = 0; i < ARRAY_SIZE(columns); i++)
		if (bind_column(stmt, first + (int)i, &columns[i],
				(const char *)row + columns[i].offset))
			return store_fail(s, e, "bind a sandbox's column");
	return 0;
}

static int read_word(sqlite3_stmt *stmt, int at, const char *const *words, size_t n, struct err *e)
{
	const char *text = (const char *)sqlite3_column_text(stmt, at);
	int v = text ? word_find(words, n, text) : -1;

	if (v < 0)
		return err_set(e, "store_damaged", EIO, "column %s holds an unknown word",
			       sqlite3_column_name(stmt, at));
	return v;
}

static int read_column(sqlite3_stmt *stmt, int at, const struct column *c, char *member,
		       struct err *e)
{
	int v;

	switch (c->kind) {
	case COLUMN_STR:
		return store_column_str(stmt, at, member, c->size, e);
	case COLUMN_INT:
		*(int64_t *)member = sqlite3_column_int64(stmt, at);
		return 0;
	case COLUMN_BOOL:
		*(bool *)member = sqlite3_column_int64(stmt, at) != 0;
		return 0;
	case COLUMN_STATE:
		v = read_word(stmt, at, state_names, SANDBOX_STATES, e);
		if (v >= 0)
			*(enum sandbox_state *)member = (enum sandbox_state)v;
		return v < 0 ? v : 0;
	case COLUMN_LEASE:
		v = read_word(stmt, at, lease_names, ARRAY_SIZE(lease_names), e);
		if (v >= 0)
			*(enum lease_end *)member = (enum lease_end)v;
		return v < 0 ? v : 0;
	default:
		return store_column_dup(stmt, at, (char **)member, e);
	}
}

/* out is empty on failure. */
static int read_row(sqlite3_stmt *stmt, struct store_sandbox *out, struct err *e)
{
	int r;

	memset(out, 0, sizeof(*out));
	out->seq = sqlite3_column_int64(stmt, 0);
	r = store_column_str(stmt, 1, out->id, sizeof(out->id), e);
	out->created_ms = sqlite3_column_int64(stmt, 2);
	if (r == 0)
		r = store_column_str(stmt, 3, out->owner_key, sizeof(out->owner_key), e);
	for (size_t i = 0; r == 0 && i < ARRAY_SIZE(columns); i++)
		r = read_column(stmt, FIXED_COLUMNS + (int)i, &columns[i],
				(char *)out + columns[i].offset, e);
	if (r)
		store_sandbox_free(out);
	return r;
}

/* Runs the write with its event as one; tells the two kinds of collision apart. */
static int write_row(struct store *s, sqlite3_stmt *stmt, const struct store_sandbox *row,
		     const struct store_event *ev, struct store_tx *tx, struct err *e)
{
	int r = store_run(s, stmt, e);

	if (r && store_failed_unique(s, "sandboxes.name")) {
		r = err_set(e, "name_taken", EEXIST, "a sandbox named \"%s\" exists", row->name);
		err_fix(e, "Choose another name, or delete the sandbox that has it.");
		return r;
	}
	if (r && store_failed_unique(s, "sandboxes.uid_slot"))
		return err_set(e, "uid_slot_taken", EEXIST, "uid slot %lld is in use",
			       (long long)row->uid_slot);
	if (r)
		return r;
	if (sqlite3_changes(s->db) != 1)
		return err_set(e, "sandbox_not_found", ENOENT, "no sandbox %s", row->id);
	r = ev ? store_event_put(s, ev, e) : 0;
	return r ? r : store_commit(tx, e);
}

int store_sandbox_insert(struct store *s, const struct store_sandbox *row,
			 const struct store_event *ev, struct err *e)
{
	static const char sql[] = "INSERT INTO sandboxes (id, created_ms, owner_key" COLUMNS(
		X_NAME) ") VALUES (?, ?, ?" COLUMNS(X_MARK) ")";
	STORE_LOCKED(s);
	_cleanup_tx_ struct store_tx tx = { 0 };
	_cleanup_stmt_ sqlite3_stmt *stmt = NULL;
	int r = store_begin(s, &tx, e);

	if (r)
		return r;
	stmt = store_query(s, e, sql, "tit", row->id, row->created_ms, row->owner_key);
	if (!stmt)
		return -EIO;
	r = bind_columns(s, stmt, 4, row, e);
	return r ? r : write_row(s, stmt, row, ev, &tx, e);
}

int store_sandbox_update(struct store *s, const struct store_sandbox *row,
			 const struct store_event *ev, struct err *e)
{
	static const char sql[] = "UPDATE sandboxes SET id = ?1" COLUMNS(X_SET) " WHERE id = ?1";
	STORE_LOCKED(s);
	_cleanup_tx_ struct store_tx tx = { 0 };
	_cleanup_stmt_ sqlite3_stmt *stmt = NULL;
	int r = store_begin(s, &tx, e);

	if (r)
		return r;
	stmt = store_query(s, e, sql, "t", row->id);
	if (!stmt)
		return -EIO;
	r = bind_columns(s, stmt, 2, row, e);
	return r ? r : write_row(s, stmt, row, ev, &tx, e);
}

int store_sandbox_get(struct store *s, const char *id_or_name, struct store_sandbox *out,
		      struct err *e)
{
	static const char sql[] = SELECT "WHERE id = ?1 OR (name = ?1 AND ?1 != '' AND "
					 "state != 'deleted') ORDER BY id = ?1 DESC LIMIT 1";
	STORE_LOCKED(s);
	_cleanup_stmt_ sqlite3_stmt *stmt = store_query(s, e, sql, "t", id_or_name);
	int r;

	if (!stmt)
		return -EIO;
	r = store_step(s, stmt, e);
	if (r == 1)
		return read_row(stmt, out, e);
	if (r == 0) {
		r = err_set(e, "sandbox_not_found", ENOENT, "no sandbox \"%.100s\"", id_or_name);
		err_fix(e, "List the sandboxes with GET /v1/sandboxes.");
	}
	return r;
}

/* ",running,stopped," for SQL's instr(), which then needs no dynamic statement. */
static void states_text(unsigned states, char out[128])
{
	size_t n = 1;

	out[0] = ',';
	out[1] = '\0';
	for (int i = 0; i < SANDBOX_STATES; i++)
		if (states & (1U << i))
			n += (size_t)snprintf(out + n, 128 - n, "%s,", state_names[i]);
}

static char *metadata_text(const struct store_sandbox_filter *f)
{
	_cleanup_json_ json_t *obj = json_array();

	for (size_t i = 0; i < f->n_metadata; i++)
		if (json_array_append_new(
			    obj, json_pack("[s,s]", f->metadata[i].key, f->metadata[i].value)))
			return NULL;
	return json_dumps(obj, JSON_COMPACT);
}

static int read_rows(struct store *s, sqlite3_stmt *stmt, struct store_sandbox **out, size_t *n,
		     struct err *e)
{
	struct store_sandbox *rows = NULL;
	size_t used = 0, cap = 0;
	int r;

	while ((r = store_step(s, stmt, e)) == 1) {
		if (used == cap) {
			size_t want = cap ? cap * 2 : 16;
			struct store_sandbox *more = reallocarray(rows, want, sizeof(*rows));

			if (!more) {
				r = err_set(e, "store_failed", ENOMEM, "out of memory");
				break;
			}
			rows = more;
			cap = want;
		}
		r = read_row(stmt, &rows[used], e);
		if (r)
			break;
		used++;
	}
	if (r) {
		store_sandboxes_free(rows, used);
		return r;
	}
	*out = rows;
	*n = used;
	return 0;
}

#define FILTER                                                                         \
	"AND seq < ?1 AND NOT EXISTS (SELECT 1 FROM json_each(?2) f WHERE NOT EXISTS " \
	"(SELECT 1 FROM json_each(metadata_json) m WHERE m.key = f.value->>0 AND "     \
	"m.value = f.value->>1)) AND (?3 = ',' OR instr(?3, ',' || state || ',')) "    \
	"ORDER BY seq DESC LIMIT ?4"

int store_sandbox_list(struct store *s, const struct store_sandbox_filter *f,
		       struct store_sandbox **out, size_t *n, struct err *e)
{
	static const char live[] = SELECT "WHERE state != 'deleted' " FILTER;
	static const char any[] = SELECT "WHERE 1 " FILTER;
	_cleanup_free_ char *metadata = metadata_text(f);
	char states[128];
	STORE_LOCKED(s);
	_cleanup_stmt_ sqlite3_stmt *stmt = NULL;

	if (!metadata)
		return err_set(e, "store_failed", EINVAL, "metadata filter is not UTF-8");
	states_text(f->states, states);
	stmt = store_query(s, e, f->states & (1U << SANDBOX_DELETED) ? any : live, "itti",
			   f->before_seq ? f->before_seq : INT64_MAX, metadata, states,
			   f->limit ? (int64_t)f->limit : (int64_t)-1);
	return stmt ? read_rows(s, stmt, out, n, e) : -EIO;
}

int store_uid_slot_free(struct store *s, int64_t max, int64_t *slot, struct err *e)
{
	static const char sql[] =
		"WITH taken AS (SELECT uid_slot AS n FROM sandboxes"
		" WHERE uid_slot >= 0 AND state != 'deleted')"
		" SELECT min(c) FROM (SELECT 0 AS c UNION ALL SELECT n + 1 FROM taken)"
		" WHERE c NOT IN (SELECT n FROM taken)";
	STORE_LOCKED(s);
	_cleanup_stmt_ sqlite3_stmt *stmt = store_query(s, e, sql, "");
	int r = stmt ? store_step(s, stmt, e) : -EIO;

	if (r < 0)
		return r;
	*slot = sqlite3_column_int64(stmt, 0);
	if (*slot < max)
		return 0;
	r = err_set(e, "capacity_exhausted", EBUSY, "all %lld sandbox slots of this host are taken",
		    (long long)max);
	err_fix(e, "Delete sandboxes that are no longer needed.");
	return r;
}
