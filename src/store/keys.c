/*
 * API keys. A secret has 40 characters of 36, 206 bits: a plain SHA-256 is enough, no one can
 * search that space. Only the hash is stored; it is what the lookup compares.
 */
#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "store/internal.h"

#define NOTE_USE_MS 60000

static const char *const role_names[] = {
	[KEY_READ_ONLY] = "readOnly",
	[KEY_MEMBER] = "member",
	[KEY_ADMIN] = "admin",
};

const char *key_role_name(enum key_role r)
{
	return role_names[r];
}

int key_role_parse(const char *name)
{
	for (size_t i = 0; i < ARRAY_SIZE(role_names); i++)
		if (strcmp(role_names[i], name) == 0)
			return (int)i;
	return -1;
}

static void secret_new(char secret[STORE_KEY_LEN])
{
	char a[ID_LEN], b[ID_LEN];

	id_new("clk", a);
	id_new("clk", b);
	memcpy(secret, a, ID_LEN - 1);
	memcpy(secret + ID_LEN - 1, b + 4, ID_LEN - 4);
	OPENSSL_cleanse(a, sizeof(a));
	OPENSSL_cleanse(b, sizeof(b));
}

static void secret_hash(const char *secret, uint8_t hash[STORE_HASH_LEN])
{
	SHA256((const unsigned char *)secret, strlen(secret), hash);
}

int store_key_create(struct store *s, const char *name, enum key_role role, struct store_key *out,
		     char secret[STORE_KEY_LEN], struct err *e)
{
	static const char sql[] =
		"INSERT INTO keys (id, name, role, hash, created_ms, last_used_ms, revoked_ms) "
		"VALUES (?, ?, ?, ?, ?, 0, 0)";
	struct store_key key = { .role = role, .created_ms = clock_wall_ms() };
	char made[STORE_KEY_LEN];
	uint8_t hash[STORE_HASH_LEN];
	int r;

	id_new("key", key.id);
	if ((size_t)snprintf(key.name, sizeof(key.name), "%s", name) >= sizeof(key.name))
		return err_set(e, "bad_request", EINVAL, "key name too long");
	secret_new(made);
	secret_hash(made, hash);
	{
		STORE_LOCKED(s);
		_cleanup_stmt_ sqlite3_stmt *stmt =
			store_query(s, e, sql, "ttthi", key.id, key.name, role_names[role], hash,
				    key.created_ms);

		r = stmt ? store_run(s, stmt, e) : -EIO;
	}
	if (r == 0) {
		*out = key;
		memcpy(secret, made, sizeof(made));
	}
	OPENSSL_cleanse(made, sizeof(made));
	return r;
}

static int read_key(sqlite3_stmt *stmt, struct store_key *out, struct err *e)
{
	char role[16];
	int r;

	memset(out, 0, sizeof(*out));
	if (store_column_str(stmt, 0, out->id, sizeof(out->id), e) ||
	    store_column_str(stmt, 1, out->name, sizeof(out->name), e) ||
	    store_column_str(stmt, 2, role, sizeof(role), e))
		return -EIO;
	r = key_role_parse(role);
	if (r < 0)
		return err_set(e, "store_damaged", EIO, "key %s has an unknown role", out->id);
	out->role = (enum key_role)r;
	out->created_ms = sqlite3_column_int64(stmt, 3);
	out->last_used_ms = sqlite3_column_int64(stmt, 4);
	return 0;
}

static int note_use(struct store *s, struct store_key *key, struct err *e)
{
	static const char sql[] = "UPDATE keys SET last_used_ms = ? WHERE id = ?";
	_cleanup_stmt_ sqlite3_stmt *stmt = NULL;
	int64_t now = clock_wall_ms();

	if (now - key->last_used_ms < NOTE_USE_MS)
		return 0;
	key->last_used_ms = now;
	stmt = store_query(s, e, sql, "it", now, key->id);
	return stmt ? store_run(s, stmt, e) : -EIO;
}

int store_key_find(struct store *s, const char *secret, struct store_key *out, struct err *e)
{
	static const char sql[] = "SELECT id, name, role, created_ms, last_used_ms FROM keys "
				  "WHERE hash = ? AND revoked_ms = 0";
	uint8_t hash[STORE_HASH_LEN];
	int r;

	secret_hash(secret, hash);
	STORE_LOCKED(s);
	{
		_cleanup_stmt_ sqlite3_stmt *stmt = store_query(s, e, sql, "h", hash);

		r = stmt ? store_step(s, stmt, e) : -EIO;
		if (r == 0)
			return err_set(e, "key_unknown", EACCES, "this API key is not known");
		if (r == 1)
			r = read_key(stmt, out, e);
	}
	return r ? r : note_use(s, out, e);
}

int store_key_revoke(struct store *s, const char *id, struct err *e)
{
	static const char sql[] = "UPDATE keys SET revoked_ms = ? WHERE id = ? AND revoked_ms = 0";
	STORE_LOCKED(s);
	_cleanup_stmt_ sqlite3_stmt *stmt = store_query(s, e, sql, "it", clock_wall_ms(), id);
	int r = stmt ? store_run(s, stmt, e) : -EIO;

	if (r == 0 && sqlite3_changes(s->db) == 0)
		return err_set(e, "key_not_found", ENOENT, "no key %.64s", id);
	return r;
}

int store_key_list(struct store *s, struct store_key **out, size_t *n, struct err *e)
{
	static const char sql[] = "SELECT id, name, role, created_ms, last_used_ms FROM keys "
				  "WHERE revoked_ms = 0 ORDER BY seq";
	_cleanup_free_ struct store_key *keys = NULL;
	size_t used = 0;
	STORE_LOCKED(s);
	_cleanup_stmt_ sqlite3_stmt *stmt = store_query(s, e, sql, "");
	int r = stmt ? 1 : -EIO;

	while (r == 1 && (r = store_step(s, stmt, e)) == 1) {
		struct store_key *more = reallocarray(keys, used + 1, sizeof(*keys));

		if (!more)
			return err_set(e, "store_failed", ENOMEM, "out of memory");
		keys = more;
		if (read_key(stmt, &keys[used++], e))
			return -EIO;
	}
	if (r < 0)
		return r;
	*out = steal_ptr(keys);
	*n = used;
	return 0;
}

int store_key_count(struct store *s, int64_t *live, struct err *e)
{
	static const char sql[] = "SELECT count(*) FROM keys WHERE revoked_ms = 0";
	STORE_LOCKED(s);
	_cleanup_stmt_ sqlite3_stmt *stmt = store_query(s, e, sql, "");
	int r = stmt ? store_step(s, stmt, e) : -EIO;

	if (r < 0)
		return r;
	*live = sqlite3_column_int64(stmt, 0);
	return 0;
}
