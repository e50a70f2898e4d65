/*
 * The thin layer over SQLite: cached statements, bound arguments, transactions, error words.
 *
 * One connection and one mutex serve all threads. Calls are short (indexed rows, one fsync), a
 * single writer is what SQLite gives anyhow, and one connection means one statement cache and no
 * SQLITE_BUSY between our own threads. The busy timeout covers other processes that look at the
 * file, such as a backup.
 */
#include "store/internal.h"

#include <errno.h>
#include <stdarg.h>
#include <string.h>

#include "base/err.h"

int store_fail(struct store *s, struct err *e, const char *doing)
{
	int rc = sqlite3_errcode(s->db);
	int r;

	switch (rc & 0xff) {
	case SQLITE_CORRUPT:
	case SQLITE_NOTADB:
		r = err_set(e, "store_damaged", EIO, "%s: %s", doing, sqlite3_errmsg(s->db));
		err_fix(e, "Stop the daemon and restore its database from a backup.");
		return r;
	case SQLITE_FULL:
		r = err_set(e, "store_failed", ENOSPC, "%s: %s", doing, sqlite3_errmsg(s->db));
		err_fix(e, "Free space on the disk that holds the state directory.");
		return r;
	case SQLITE_NOMEM:
		return err_set(e, "store_failed", ENOMEM, "%s: out of memory", doing);
	default:
		return err_set(e, "store_failed", EIO, "%s: %s", doing, sqlite3_errmsg(s->db));
	}
}

bool store_failed_unique(struct store *s, const char *column)
{
	return sqlite3_extended_errcode(s->db) == SQLITE_CONSTRAINT_UNIQUE &&
	       strstr(sqlite3_errmsg(s->db), column);
}

static sqlite3_stmt *statement_find(struct store *s, const char *sql, struct err *e)
{
	sqlite3_stmt *stmt;

	for (size_t i = 0; i < s->n_cached; i++)
		if (s->cached[i].sql == sql)
			return s->cached[i].stmt;
	if (s->n_cached == STORE_STATEMENTS_MAX) {
		err_set(e, "store_failed", ENOSPC, "more statements than STORE_STATEMENTS_MAX");
		return NULL;
	}
	if (sqlite3_prepare_v3(s->db, sql, -1, SQLITE_PREPARE_PERSISTENT, &stmt, NULL)) {
		store_fail(s, e, "prepare a statement");
		return NULL;
	}
	s->cached[s->n_cached].sql = sql;
	s->cached[s->n_cached++].stmt = stmt;
	return stmt;
}

sqlite3_stmt *store_query(struct store *s, struct err *e, const char *sql, const char *kinds, ...)
{
	sqlite3_stmt *stmt = statement_find(s, sql, e);
	int rc = SQLITE_OK;
	va_list ap;

	if (!stmt)
		return NULL;
	va_start(ap, kinds);
	for (int i = 0; kinds[i] && rc == SQLITE_OK; i++) {
		if (kinds[i] == 't')
			rc = sqlite3_bind_text(stmt, i + 1, va_arg(ap, const char *), -1,
					       SQLITE_STATIC);
		else if (kinds[i] == 'i')
			rc = sqlite3_bind_int64(stmt, i + 1, va_arg(ap, int64_t));
		else
			rc = sqlite3_bind_blob(stmt, i + 1, va_arg(ap, const uint8_t *),
					       STORE_HASH_LEN, SQLITE_STATIC);
	}
	va_end(ap);
	if (rc != SQLITE_OK) {
		store_fail(s, e, "bind a value");
		store_stmt_resetp(&stmt);
		return NULL;
	}
	return stmt;
}

int store_step(struct store *s, sqlite3_stmt *stmt, struct err *e)
{
	switch (sqlite3_step(stmt)) {
	case SQLITE_ROW:
		return 1;
	case SQLITE_DONE:
		return 0;
	default:
		return store_fail(s, e, "use the database");
	}
}

int store_run(struct store *s, sqlite3_stmt *stmt, struct err *e)
{
	int r = store_step(s, stmt, e);

	if (r == 1)
		return err_set(e, "store_failed", EPROTO, "a row where none was expected");
	return r;
}

int store_exec(struct store *s, const char *sql, struct err *e)
{
	return sqlite3_exec(s->db, sql, NULL, NULL, NULL) ? store_fail(s, e, sql) : 0;
}

int store_begin(struct store *s, struct store_tx *tx, struct err *e)
{
	int r = store_exec(s, "BEGIN IMMEDIATE", e);

	if (r == 0)
		tx->s = s;
	return r;
}

int store_commit(struct store_tx *tx, struct err *e)
{
	int r = store_exec(tx->s, "COMMIT", e);

	if (r == 0)
		tx->s = NULL;
	return r;
}

void store_tx_end(struct store_tx *tx)
{
	/* SQLite may have rolled back by itself (full disk); then there is nothing to end. */
	if (tx->s && !sqlite3_get_autocommit(tx->s->db))
		store_exec(tx->s, "ROLLBACK", NULL);
	tx->s = NULL;
}

int store_column_str(sqlite3_stmt *stmt, int column, char *out, size_t size, struct err *e)
{
	const char *text = (const char *)sqlite3_column_text(stmt, column);
	size_t n = text ? strlen(text) : 0;

	if (n >= size)
		return err_set(e, "store_damaged", EIO, "column %s holds %zu bytes, at most %zu",
			       sqlite3_column_name(stmt, column), n, size - 1);
	memcpy(out, text ? text : "", n + 1);
	return 0;
}

int store_column_dup(sqlite3_stmt *stmt, int column, char **out, struct err *e)
{
	const char *text = (const char *)sqlite3_column_text(stmt, column);

	*out = strdup(text ? text : "");
	return *out ? 0 : err_set(e, "store_failed", ENOMEM, "out of memory");
}
