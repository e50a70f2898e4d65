/*
 * Inside the store: one SQLite connection, its lock, its cached statements. Everything here is
 * called with the lock held (STORE_LOCKED).
 */
#ifndef CLOCHE_STORE_INTERNAL_H
#define CLOCHE_STORE_INTERNAL_H

#include <pthread.h>
#include <sqlite3.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "store/store.h"

#define STORE_STATEMENTS_MAX 48

struct store {
	sqlite3 *db;
	pthread_mutex_t lock;
	struct {
		const char *sql; /* a literal; its address is the key */
		sqlite3_stmt *stmt;
	} cached[STORE_STATEMENTS_MAX];
	size_t n_cached;
};

static inline struct store *store_lock(struct store *s)
{
	pthread_mutex_lock(&s->lock);
	return s;
}

static inline void store_unlockp(struct store **s)
{
	pthread_mutex_unlock(&(*s)->lock);
}

/* Holds the store's lock until the end of the scope. */
#define STORE_LOCKED(s) \
	_cleanup_(store_unlockp) __attribute__((unused)) struct store *locked_ = store_lock(s)

/* A statement in use; leaving the scope makes it ready for the next use. */
#define _cleanup_stmt_ _cleanup_(store_stmt_resetp)
static inline void store_stmt_resetp(sqlite3_stmt **stmt)
{
	if (!*stmt)
		return;
	sqlite3_reset(*stmt);
	sqlite3_clear_bindings(*stmt);
}

/*
 * The cached statement for a literal, bound to the arguments that `kinds` names, one letter each:
 * 't' const char * (NULL allowed), 'i' int64_t, 'h' const uint8_t[STORE_HASH_LEN]. Texts must
 * stay until the statement is reset. NULL and e on failure.
 */
sqlite3_stmt *store_query(struct store *s, struct err *e, const char *sql, const char *kinds, ...);

/* 1: a row; 0: done; negative and e on failure. */
int store_step(struct store *s, sqlite3_stmt *stmt, struct err *e);

/* store_step() that expects no row. */
int store_run(struct store *s, sqlite3_stmt *stmt, struct err *e);

/* Fills e from the connection's last error. */
int store_fail(struct store *s, struct err *e, const char *doing);

/* Whether the last error is a UNIQUE violation that names this column, as in "keys.name". */
bool store_failed_unique(struct store *s, const char *column);

int store_exec(struct store *s, const char *sql, struct err *e);

/* BEGIN IMMEDIATE; leaving the scope without store_commit() rolls back. */
struct store_tx {
	struct store *s; /* NULL: no transaction open */
};

void store_tx_end(struct store_tx *tx);
#define _cleanup_tx_ _cleanup_(store_tx_end)
int store_begin(struct store *s, struct store_tx *tx, struct err *e);
int store_commit(struct store_tx *tx, struct err *e);

/* Copies a text column into a fixed array; a longer text than fits means a damaged row. */
int store_column_str(sqlite3_stmt *stmt, int column, char *out, size_t size, struct err *e);
/* A copy of a text column, "" for NULL. */
int store_column_dup(sqlite3_stmt *stmt, int column, char **out, struct err *e);

/* The event's insert, inside the caller's transaction. */
int store_event_put(struct store *s, const struct store_event *ev, struct err *e);

/*
 * Schema. The version a database has is its user_version; migrating from n runs entries n..,
 * inside the caller's transaction.
 */
#define STORE_APPLICATION_ID 0x434c4f43 /* "CLOC" */
extern const char *const store_migrations[];
extern const int store_migrations_n;

#endif
