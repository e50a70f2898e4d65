/* The store: what is written is there after a restart, and what is not ours is never touched. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/fd.h"
#include "store/store.h"

struct fixture {
	char dir[64], path[128];
	struct store *store;
	struct err e;
};

static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));

	snprintf(f->dir, sizeof(f->dir), "/tmp/cloche-store-XXXXXX");
	assert_non_null(mkdtemp(f->dir));
	snprintf(f->path, sizeof(f->path), "%s/cloche.db", f->dir);
	assert_int_equal(store_open(f->path, &f->store, &f->e), 0);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	static const char *const suffixes[] = { "", "-wal", "-shm", ".new", ".new-journal" };
	struct fixture *f = *state;
	char path[160];

	store_close(f->store);
	for (size_t i = 0; i < ARRAY_SIZE(suffixes); i++) {
		snprintf(path, sizeof(path), "%s%s", f->path, suffixes[i]);
		unlink(path);
	}
	assert_int_equal(rmdir(f->dir), 0);
	free(f);
	return 0;
}

static void reopen(struct fixture *f)
{
	store_close(f->store);
	f->store = NULL;
	assert_int_equal(store_open(f->path, &f->store, &f->e), 0);
}

static void row_make(struct store_sandbox *row, const char *name)
{
	memset(row, 0, sizeof(*row));
	id_new("sbx", row->id);
	snprintf(row->name, sizeof(row->name), "%s", name);
	snprintf(row->image, sizeof(row->image), "base");
	row->vcpus = 2;
	row->memory_mib = 512;
	row->created_ms = 1700000000123;
	row->max_cost_micros = -1;
	row->uid_slot = -1;
}

static void sandbox_survives_restart(void **state)
{
	struct fixture *f = *state;
	struct store_sandbox row, got;
	struct store_event ev = { .type = "sandbox.created" }, *evs;
	size_t n;

	row_make(&row, "builder");
	row.state = SANDBOX_PAUSING;
	row.on_lease_end = LEASE_END_DELETE;
	row.no_env = true;
	row.last_snapshot_quiesced = true;
	row.vmm_pid = 4711;
	row.vmm_start = 1234567890123ULL;
	row.uid_slot = 3;
	row.generation = 9;
	row.timeout_s = 3600;
	row.metadata_json = strdup("{\"team\":\"blue\"}");
	memcpy(ev.sandbox, row.id, ID_LEN);
	assert_int_equal(store_sandbox_insert(f->store, &row, &ev, &f->e), 0);
	reopen(f);
	assert_int_equal(store_sandbox_get(f->store, "builder", &got, &f->e), 0);
	assert_string_equal(got.id, row.id);
	assert_int_equal(got.state, SANDBOX_PAUSING);
	assert_int_equal(got.on_lease_end, LEASE_END_DELETE);
	assert_true(got.no_env);
	assert_true(got.last_snapshot_quiesced);
	assert_int_equal(got.vmm_pid, 4711);
	assert_true(got.vmm_start == 1234567890123ULL);
	assert_int_equal(got.uid_slot, 3);
	assert_int_equal(got.generation, 9);
	assert_int_equal(got.timeout_s, 3600);
	assert_int_equal(got.max_cost_micros, -1);
	assert_int_equal(got.created_ms, 1700000000123);
	assert_string_equal(got.metadata_json, "{\"team\":\"blue\"}");
	assert_string_equal(got.env_json, "{}");
	assert_string_equal(got.secrets_json, "[]");
	store_sandbox_free(&got);
	store_sandbox_free(&row);
	assert_int_equal(store_event_list(f->store, 0, 10, NULL, &evs, &n, &f->e), 0);
	assert_int_equal(n, 1);
	assert_string_equal(evs[0].type, "sandbox.created");
	assert_string_equal(evs[0].data_json, "{}");
	store_events_free(evs, n);
}

static void names_are_unique_among_the_living(void **state)
{
	struct fixture *f = *state;
	struct store_event ev = { .type = "sandbox.created" }, *evs;
	struct store_sandbox a, b, got;
	size_t n;

	row_make(&a, "same");
	row_make(&b, "same");
	assert_int_equal(store_sandbox_insert(f->store, &a, NULL, &f->e), 0);
	assert_int_equal(store_sandbox_insert(f->store, &b, &ev, &f->e), -EEXIST);
	assert_string_equal(f->e.code, "name_taken");
	/* The event was part of the refused write. */
	assert_int_equal(store_event_list(f->store, 0, 10, NULL, &evs, &n, &f->e), 0);
	assert_int_equal(n, 0);
	store_events_free(evs, n);

	a.state = SANDBOX_DELETED;
	assert_int_equal(store_sandbox_update(f->store, &a, NULL, &f->e), 0);
	assert_int_equal(store_sandbox_insert(f->store, &b, NULL, &f->e), 0);
	assert_int_equal(store_sandbox_get(f->store, "same", &got, &f->e), 0);
	assert_string_equal(got.id, b.id);
	store_sandbox_free(&got);
	assert_int_equal(store_sandbox_get(f->store, a.id, &got, &f->e), 0);
	assert_int_equal(got.state, SANDBOX_DELETED);
	store_sandbox_free(&got);
	assert_int_equal(store_sandbox_get(f->store, "", &got, &f->e), -ENOENT);
	assert_string_equal(f->e.code, "sandbox_not_found");
	row_make(&a, "");
	assert_int_equal(store_sandbox_update(f->store, &a, NULL, &f->e), -ENOENT);
	assert_string_equal(f->e.code, "sandbox_not_found");
}

static void uid_slots(void **state)
{
	struct fixture *f = *state;
	struct store_sandbox rows[3], clash;
	int64_t slot;

	for (int i = 0; i < 3; i++) {
		row_make(&rows[i], "");
		assert_int_equal(store_uid_slot_free(f->store, 3, &rows[i].uid_slot, &f->e), 0);
		assert_int_equal(rows[i].uid_slot, i);
		assert_int_equal(store_sandbox_insert(f->store, &rows[i], NULL, &f->e), 0);
	}
	assert_int_equal(store_uid_slot_free(f->store, 3, &slot, &f->e), -EBUSY);
	assert_string_equal(f->e.code, "capacity_exhausted");
	row_make(&clash, "");
	clash.uid_slot = 1;
	assert_int_equal(store_sandbox_insert(f->store, &clash, NULL, &f->e), -EEXIST);
	assert_string_equal(f->e.code, "uid_slot_taken");
	rows[1].state = SANDBOX_DELETED;
	assert_int_equal(store_sandbox_update(f->store, &rows[1], NULL, &f->e), 0);
	assert_int_equal(store_uid_slot_free(f->store, 3, &slot, &f->e), 0);
	assert_int_equal(slot, 1);
}

static size_t count(struct fixture *f, const struct store_sandbox_filter *filter, char names[])
{
	struct store_sandbox *rows;
	size_t n;

	assert_int_equal(store_sandbox_list(f->store, filter, &rows, &n, &f->e), 0);
	for (size_t i = 0; i < n; i++)
		names[i] = rows[i].name[0];
	names[n] = '\0';
	store_sandboxes_free(rows, n);
	return n;
}

static void list_filters(void **state)
{
	static const char *const metadata[] = { "{\"a.b\":\"1\",\"c\":\"2\"}", "{\"a.b\":\"1\"}",
						"{}", "{\"c\":\"2\"}" };
	struct fixture *f = *state;
	struct store_match m[] = { { "a.b", "1" }, { "c", "2" } };
	struct store_sandbox_filter filter = { 0 };
	struct store_sandbox row;
	char names[16];

	for (int i = 0; i < 4; i++) {
		char name[2] = { (char)('a' + i) };

		row_make(&row, name);
		row.state = i == 2 ? SANDBOX_DELETED : i == 3 ? SANDBOX_STOPPED : SANDBOX_RUNNING;
		row.metadata_json = strdup(metadata[i]);
		assert_int_equal(store_sandbox_insert(f->store, &row, NULL, &f->e), 0);
		store_sandbox_free(&row);
	}
	assert_int_equal(count(f, &filter, names), 3);
	assert_string_equal(names, "dba");
	filter.limit = 2;
	assert_int_equal(count(f, &filter, names), 2);
	assert_string_equal(names, "db");
	filter.before_seq = 2;
	assert_int_equal(count(f, &filter, names), 1);
	assert_string_equal(names, "a");
	filter = (struct store_sandbox_filter){ .states = 1U << SANDBOX_STOPPED |
							  1U << SANDBOX_DELETED };
	assert_int_equal(count(f, &filter, names), 2);
	assert_string_equal(names, "dc");
	filter = (struct store_sandbox_filter){ .metadata = m, .n_metadata = 1 };
	count(f, &filter, names);
	assert_string_equal(names, "ba");
	filter.n_metadata = 2;
	count(f, &filter, names);
	assert_string_equal(names, "a");
	m[0].value = "' OR 1 --";
	assert_int_equal(count(f, &filter, names), 0);
}

/* Known fault 40: a revoked key works no longer, not from any cache. */
static void keys(void **state)
{
	struct fixture *f = *state;
	char secret[STORE_KEY_LEN], other[STORE_KEY_LEN];
	struct store_key key, got;
	_cleanup_buf_ struct buf file = { 0 };
	int64_t n;

	assert_int_equal(store_key_create(f->store, "ci", KEY_MEMBER, &key, secret, &f->e), 0);
	assert_int_equal(store_key_create(f->store, "", KEY_READ_ONLY, &got, other, &f->e), 0);
	assert_int_equal(strlen(secret), 44);
	assert_memory_equal(secret, "clk_", 4);
	assert_string_not_equal(secret, other);
	reopen(f);
	assert_int_equal(store_key_find(f->store, secret, &got, &f->e), 0);
	assert_string_equal(got.id, key.id);
	assert_string_equal(got.name, "ci");
	assert_int_equal(got.role, KEY_MEMBER);
	assert_true(got.last_used_ms > 0);
	assert_int_equal(store_key_find(f->store, "clk_wrong", &got, &f->e), -EACCES);
	assert_string_equal(f->e.code, "key_unknown");
	assert_int_equal(store_key_revoke(f->store, key.id, &f->e), 0);
	assert_int_equal(store_key_find(f->store, secret, &got, &f->e), -EACCES);
	assert_int_equal(store_key_revoke(f->store, key.id, &f->e), -ENOENT);
	assert_int_equal(store_key_count(f->store, &n, &f->e), 0);
	assert_int_equal(n, 1);
	/* The secret is in no byte of the file. */
	store_close(f->store);
	f->store = NULL;
	assert_int_equal(fd_read_file(f->path, &file, 1 << 20, &f->e), 0);
	assert_null(memmem(file.data, file.len, secret + 4, 40));
	assert_null(memmem(file.data, file.len, other + 4, 40));
}

static enum idempotency_state begin(struct fixture *f, const char *key, uint8_t fill,
				    struct idempotency_answer *answer)
{
	uint8_t hash[STORE_HASH_LEN];
	enum idempotency_state s;

	memset(hash, fill, sizeof(hash));
	assert_int_equal(store_idempotency_begin(f->store, "key_1", key, hash, &s, answer, &f->e),
			 0);
	return s;
}

static void idempotency(void **state)
{
	struct fixture *f = *state;
	struct idempotency_answer a = { 0 };

	assert_int_equal(begin(f, "k", 1, &a), IDEMPOTENCY_NEW);
	assert_int_equal(begin(f, "k", 1, &a), IDEMPOTENCY_RUNNING);
	assert_int_equal(begin(f, "k", 2, &a), IDEMPOTENCY_MISMATCH);
	assert_int_equal(store_idempotency_finish(f->store, "key_1", "k", 201, "{\"x\":1}", &f->e),
			 0);
	reopen(f);
	assert_int_equal(begin(f, "k", 1, &a), IDEMPOTENCY_DONE);
	assert_int_equal(a.status, 201);
	assert_string_equal(a.body, "{\"x\":1}");
	free(a.body);
	assert_int_equal(begin(f, "k", 2, &a), IDEMPOTENCY_MISMATCH);

	assert_int_equal(begin(f, "lost", 1, &a), IDEMPOTENCY_NEW);
	reopen(f);
	assert_int_equal(begin(f, "lost", 1, &a), IDEMPOTENCY_INTERRUPTED);

	assert_int_equal(begin(f, "gone", 1, &a), IDEMPOTENCY_NEW);
	assert_int_equal(store_idempotency_abandon(f->store, "key_1", "gone", &f->e), 0);
	assert_int_equal(begin(f, "gone", 1, &a), IDEMPOTENCY_NEW);
	/* Expiry leaves alone what is still being carried out. */
	assert_int_equal(store_idempotency_expire(f->store, INT64_MAX, &f->e), 0);
	assert_int_equal(begin(f, "gone", 1, &a), IDEMPOTENCY_RUNNING);
	assert_int_equal(begin(f, "k", 2, &a), IDEMPOTENCY_NEW);
}

static void events_and_usage(void **state)
{
	struct fixture *f = *state;
	struct store_event ev = { .type = "t", .sandbox = "sbx_a" }, *evs;
	struct store_usage u = { 10, 20, 30 }, sum;
	size_t n;

	for (int i = 0; i < 5; i++) {
		ev.sandbox[4] = i == 3 ? 'b' : 'a';
		assert_int_equal(store_event_add(f->store, &ev, &f->e), 0);
	}
	assert_int_equal(store_event_list(f->store, 1, 2, NULL, &evs, &n, &f->e), 0);
	assert_int_equal(n, 2);
	assert_int_equal(evs[0].seq, 2);
	assert_true(evs[0].at_ms > 0 && id_valid("evt", evs[0].id));
	store_events_free(evs, n);
	assert_int_equal(store_event_list(f->store, 0, 100, "sbx_b", &evs, &n, &f->e), 0);
	assert_int_equal(n, 1);
	assert_int_equal(evs[0].seq, 4);
	store_events_free(evs, n);

	assert_int_equal(store_usage_add(f->store, "sbx_a", 1000, &u, &f->e), 0);
	assert_int_equal(store_usage_add(f->store, "sbx_a", 2000, &u, &f->e), 0);
	assert_int_equal(store_usage_sum(f->store, "sbx_a", 0, &sum, &f->e), 0);
	assert_int_equal(sum.cpu_ns, 20);
	assert_int_equal(store_usage_sum(f->store, "sbx_a", 1001, &sum, &f->e), 0);
	assert_int_equal(sum.cost_micros, 30);
	assert_int_equal(store_usage_sum(f->store, "sbx_c", 0, &sum, &f->e), 0);
	assert_int_equal(sum.memory_mib_ms, 0);
}

/* Opening must fail with this code and leave every byte as it is. */
static void refused(struct fixture *f, const char *code)
{
	_cleanup_buf_ struct buf before = { 0 };
	_cleanup_buf_ struct buf after = { 0 };

	assert_int_equal(fd_read_file(f->path, &before, 1 << 24, &f->e), 0);
	assert_true(store_open(f->path, &f->store, &f->e) < 0);
	assert_string_equal(f->e.code, code);
	assert_true(f->e.fix[0] != '\0');
	assert_int_equal(fd_read_file(f->path, &after, 1 << 24, &f->e), 0);
	assert_int_equal(before.len, after.len);
	if (before.len)
		assert_memory_equal(before.data, after.data, before.len);
}

static void set_pragma(struct fixture *f, const char *sql)
{
	sqlite3 *db;

	assert_int_equal(sqlite3_open(f->path, &db), 0);
	assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), 0);
	assert_int_equal(sqlite3_close(db), 0);
}

static void overwrite(struct fixture *f, off_t at, const void *p, size_t n)
{
	_cleanup_close_ int fd = open(f->path, O_WRONLY | O_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(pwrite(fd, p, n, at), n);
}

static void newer_schema_is_refused(void **state)
{
	struct fixture *f = *state;

	store_close(f->store);
	f->store = NULL;
	set_pragma(f, "PRAGMA user_version = 9999");
	refused(f, "store_newer");
	set_pragma(f, "PRAGMA user_version = 1");
	assert_int_equal(store_open(f->path, &f->store, &f->e), 0);
}

static void damage_is_refused(void **state)
{
	static const char junk[4096] = "not what a page of a database looks like";
	struct fixture *f = *state;

	store_close(f->store);
	f->store = NULL;
	overwrite(f, 4096, junk, sizeof(junk));
	refused(f, "store_damaged");
	overwrite(f, 0, junk, sizeof(junk));
	refused(f, "store_damaged");
	assert_int_equal(truncate(f->path, 0), 0);
	refused(f, "store_damaged");
}

static void foreign_database_is_refused(void **state)
{
	struct fixture *f = *state;

	store_close(f->store);
	f->store = NULL;
	set_pragma(f, "PRAGMA application_id = 7");
	refused(f, "store_damaged");
}

static void file_is_private(void **state)
{
	struct fixture *f = *state;
	struct stat st;

	assert_int_equal(stat(f->path, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0600);
}

#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(sandbox_survives_restart),
		T(names_are_unique_among_the_living),
		T(uid_slots),
		T(list_filters),
		T(keys),
		T(idempotency),
		T(events_and_usage),
		T(newer_schema_is_refused),
		T(damage_is_refused),
		T(foreign_database_is_refused),
		T(file_is_private),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
