/*
 * Opening a database. A new one is made under another name, complete with its schema, and renamed
 * into place, so the file under the real name is always a whole database: an empty or short file
 * there is damage, and is refused rather than filled anew. Nothing is written to an existing file
 * before its identity, its version and its integrity are known.
 */
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/err.h"
#include "store/internal.h"

#define BUSY_MS 5000

static int damaged(struct err *e, const char *path, const char *why)
{
	int r = err_set(e, "store_damaged", EIO, "database %s: %s", path, why);

	err_fix(e, "Restore the file from a backup, or move it away to start with an empty one.");
	return r;
}

static int pragma_int(struct store *s, const char *sql, int64_t *out, struct err *e)
{
	sqlite3_stmt *stmt = NULL;
	int r;

	if (sqlite3_prepare_v2(s->db, sql, -1, &stmt, NULL))
		return store_fail(s, e, sql);
	r = store_step(s, stmt, e);
	if (r == 1)
		*out = sqlite3_column_int64(stmt, 0);
	sqlite3_finalize(stmt);
	return r < 0 ? r : 0;
}

static int check_integrity(struct store *s, const char *path, struct err *e)
{
	sqlite3_stmt *stmt = NULL;
	const char *text;
	int r;

	if (sqlite3_prepare_v2(s->db, "PRAGMA quick_check(1)", -1, &stmt, NULL))
		return store_fail(s, e, "check the database");
	r = store_step(s, stmt, e);
	text = r == 1 ? (const char *)sqlite3_column_text(stmt, 0) : NULL;
	if (r >= 0)
		r = text && strcmp(text, "ok") == 0 ? 0
						    : damaged(e, path, text ? text : "no answer");
	sqlite3_finalize(stmt);
	return r;
}

static int check_identity(struct store *s, const char *path, int64_t *version, struct err *e)
{
	int64_t application = 0;
	int r;

	if (pragma_int(s, "PRAGMA application_id", &application, e) ||
	    pragma_int(s, "PRAGMA user_version", version, e))
		return err_wrap(e, "database %s", path);
	if (application != STORE_APPLICATION_ID)
		return damaged(e, path, "is not a database of this program");
	if (*version > store_migrations_n) {
		r = err_set(e, "store_newer", EINVAL,
			    "database %s has schema %lld; this program knows up to %d", path,
			    (long long)*version, store_migrations_n);
		err_fix(e, "Run the newer version of the daemon again, or restore an older "
			   "database.");
		return r;
	}
	return 0;
}

static int migrate(struct store *s, int64_t from, struct err *e)
{
	_cleanup_tx_ struct store_tx tx = { 0 };
	char pragma[64];
	int r = store_begin(s, &tx, e);

	for (int64_t i = from; r == 0 && i < store_migrations_n; i++) {
		r = store_exec(s, store_migrations[i], e);
		if (r)
			err_wrap(e, "schema step %lld", (long long)i + 1);
	}
	if (r)
		return r;
	snprintf(pragma, sizeof(pragma), "PRAGMA user_version = %d", store_migrations_n);
	r = store_exec(s, pragma, e);
	return r ? r : store_commit(&tx, e);
}

static int connect_file(struct store *s, const char *path, int flags, struct err *e)
{
	if (sqlite3_open_v2(path, &s->db,
			    SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE |
				    flags,
			    NULL)) {
		if (!s->db)
			return err_set(e, "store_failed", ENOMEM, "open %s: out of memory", path);
		store_fail(s, e, "open");
		return err_wrap(e, "database %s", path);
	}
	sqlite3_busy_timeout(s->db, BUSY_MS);
	return store_exec(s, "PRAGMA synchronous = FULL; PRAGMA trusted_schema = OFF", e);
}

static int sync_folder_of(const char *path, struct err *e)
{
	_cleanup_free_ char *copy = strdup(path);
	_cleanup_close_ int fd = -1;

	if (!copy)
		return err_set(e, "store_failed", ENOMEM, "out of memory");
	fd = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0 || fsync(fd) < 0)
		return err_errno(e, errno, "sync the folder of %s", path);
	return 0;
}

/* Makes a complete database beside path and moves it there. */
static int create_file(const char *path, struct err *e)
{
	struct store fresh = { 0 };
	char temp[4096], pragma[64];
	int r;

	if ((size_t)snprintf(temp, sizeof(temp), "%s.new", path) >= sizeof(temp))
		return err_set(e, "store_failed", ENAMETOOLONG, "database path too long");
	if (unlink(temp) < 0 && errno != ENOENT)
		return err_errno(e, errno, "remove %s", temp);
	r = connect_file(&fresh, temp, SQLITE_OPEN_CREATE, e);
	snprintf(pragma, sizeof(pragma), "PRAGMA application_id = %d", STORE_APPLICATION_ID);
	if (r == 0 && chmod(temp, 0600) < 0)
		r = err_errno(e, errno, "chmod %s", temp);
	if (r == 0)
		r = store_exec(&fresh, pragma, e);
	if (r == 0)
		r = migrate(&fresh, 0, e);
	if (sqlite3_close(fresh.db) && r == 0)
		r = err_set(e, "store_failed", EIO, "close %s", temp);
	if (r == 0 && rename(temp, path) < 0)
		r = err_errno(e, errno, "rename %s", temp);
	return r ? r : sync_folder_of(path, e);
}

static int open_existing(struct store *s, const char *path, struct err *e)
{
	int64_t version = 0;
	int r = connect_file(s, path, 0, e);

	if (r == 0)
		r = check_identity(s, path, &version, e);
	if (r == 0)
		r = check_integrity(s, path, e);
	if (r == 0)
		r = store_exec(s, "PRAGMA journal_mode = WAL", e);
	if (r == 0 && version < store_migrations_n)
		r = migrate(s, version, e);
	/* What was being carried out when the last daemon ended has an outcome nobody knows. */
	if (r == 0)
		r = store_exec(s, "UPDATE idempotency SET status = -1 WHERE status = 0", e);
	return r;
}

int store_open(const char *path, struct store **out, struct err *e)
{
	struct store *s;
	struct stat st;
	int r;

	if (stat(path, &st) < 0) {
		if (errno != ENOENT)
			return err_errno(e, errno, "database %s", path);
		r = create_file(path, e);
		if (r)
			return r;
	} else if (st.st_size == 0) {
		return damaged(e, path, "is empty");
	}
	s = calloc(1, sizeof(*s));
	if (!s)
		return err_set(e, "store_failed", ENOMEM, "out of memory");
	pthread_mutex_init(&s->lock, NULL);
	r = open_existing(s, path, e);
	if (r) {
		store_close(s);
		return r;
	}
	*out = s;
	return 0;
}

void store_close(struct store *s)
{
	if (!s)
		return;
	for (size_t i = 0; i < s->n_cached; i++)
		sqlite3_finalize(s->cached[i].stmt);
	sqlite3_close(s->db);
	pthread_mutex_destroy(&s->lock);
	free(s);
}
