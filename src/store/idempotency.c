/*
 * Answers kept for repeated requests. A row is claimed before the work starts, so two requests
 * with the same key never both do it; the claim of a daemon that died is not forgotten but turned
 * to "interrupted" when the database is next opened, since its outcome is unknown.
 */
#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "store/internal.h"

#define STATUS_RUNNING 0
#define STATUS_INTERRUPTED (-1)

static int read_claim(sqlite3_stmt *stmt, const uint8_t hash[STORE_HASH_LEN],
		      enum idempotency_state *state, struct idempotency_answer *answer,
		      struct err *e)
{
	int64_t status = sqlite3_column_int64(stmt, 1);

	if (sqlite3_column_bytes(stmt, 0) != STORE_HASH_LEN ||
	    memcmp(sqlite3_column_blob(stmt, 0), hash, STORE_HASH_LEN) != 0) {
		*state = IDEMPOTENCY_MISMATCH;
		return 0;
	}
	if (status == STATUS_RUNNING || status == STATUS_INTERRUPTED) {
		*state = status == STATUS_RUNNING ? IDEMPOTENCY_RUNNING : IDEMPOTENCY_INTERRUPTED;
		return 0;
	}
	*state = IDEMPOTENCY_DONE;
	answer->status = (int)status;
	return store_column_dup(stmt, 2, &answer->body, e);
}

int store_idempotency_begin(struct store *s, const char *key_id, const char *idem,
			    const uint8_t hash[STORE_HASH_LEN], enum idempotency_state *state,
			    struct idempotency_answer *answer, struct err *e)
{
	static const char insert[] =
		"INSERT INTO idempotency (key_id, idem, hash, status, body, created_ms) "
		"VALUES (?, ?, ?, 0, '', ?) ON CONFLICT DO NOTHING";
	static const char select[] =
		"SELECT hash, status, body FROM idempotency WHERE key_id = ? AND idem = ?";
	STORE_LOCKED(s);
	_cleanup_stmt_ sqlite3_stmt *put = NULL;
	_cleanup_stmt_ sqlite3_stmt *get = NULL;
	int r;

	put = store_query(s, e, insert, "tthi", key_id, idem, hash, clock_wall_ms());
	r = put ? store_run(s, put, e) : -EIO;
	if (r)
		return r;
	if (sqlite3_changes(s->db) == 1) {
		*state = IDEMPOTENCY_NEW;
		return 0;
	}
	get = store_query(s, e, select, "tt", key_id, idem);
	r = get ? store_step(s, get, e) : -EIO;
	if (r == 0)
		return err_set(e, "store_failed", EPROTO, "an idempotency record vanished");
	return r < 0 ? r : read_claim(get, hash, state, answer, e);
}

int store_idempotency_finish(struct store *s, const char *key_id, const char *idem, int status,
			     const char *body, struct err *e)
{
	static const char sql[] =
		"UPDATE idempotency SET status = ?, body = ? WHERE key_id = ? AND idem = ?";
	STORE_LOCKED(s);
	_cleanup_stmt_ sqlite3_stmt *stmt =
		store_query(s, e, sql, "ittt", (int64_t)status, body, key_id, idem);

	return stmt ? store_run(s, stmt, e) : -EIO;
}

int store_idempotency_abandon(struct store *s, const char *key_id, const char *idem, struct err *e)
{
	static const char sql[] = "DELETE FROM idempotency WHERE key_id = ? AND idem = ?";
	STORE_LOCKED(s);
	_cleanup_stmt_ sqlite3_stmt *stmt = store_query(s, e, sql, "tt", key_id, idem);

	return stmt ? store_run(s, stmt, e) : -EIO;
}

int store_idempotency_expire(struct store *s, int64_t before_ms, struct err *e)
{
	static const char sql[] = "DELETE FROM idempotency WHERE created_ms < ? AND status != 0";
	STORE_LOCKED(s);
	_cleanup_stmt_ sqlite3_stmt *stmt = store_query(s, e, sql, "i", before_ms);

	return stmt ? store_run(s, stmt, e) : -EIO;
}
