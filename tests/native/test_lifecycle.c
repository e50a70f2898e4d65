/* The life of sandboxes from create to delete, and what is left of them afterwards: nothing. */
#include <errno.h>
#include <pthread.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/json.h"
#include "base/clock.h"
#include "fixture.h"

static int set_up(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));

	fixture_new(f);
	fixture_up(f);
	*state = f;
	return 0;
}

static int tear_down(void **state)
{
	struct fixture *f = *state;

	if (f->m)
		fixture_down(f);
	fixture_free(f);
	free(f);
	return 0;
}

static void must(int r, const struct err *e)
{
	if (r < 0)
		fail_msg("%s: %s", e->code ? e->code : "?", e->msg);
}

static void create(struct fixture *f, const char *image, char id[ID_LEN])
{
	struct store_sandbox row = fixture_row(image);
	_cleanup_json_ json_t *details = NULL;
	struct err e = { 0 };
	int r = sandbox_create(f->m, &row, "key_aaaaaaaaaaaaaaaaaaaa", &details, &e);

	if (r < 0 && details)
		json_dumpf(details, stderr, 0);
	must(r, &e);
	assert_int_equal(row.state, SANDBOX_RUNNING);
	assert_true(row.lease_ends_ms > row.started_ms);
	memcpy(id, row.id, ID_LEN);
	store_sandbox_free(&row);
}

static enum sandbox_state state_of(struct fixture *f, const char *id, char reason[STORE_REASON_LEN])
{
	struct store_sandbox row;
	enum sandbox_state s;
	struct err e = { 0 };

	must(store_sandbox_get(f->store, id, &row, &e), &e);
	s = row.state;
	if (reason)
		memcpy(reason, row.stop_reason, STORE_REASON_LEN);
	store_sandbox_free(&row);
	return s;
}

/* Waits until the store says so; the test's own timeout is the limit. */
static void wait_state(struct fixture *f, const char *id, enum sandbox_state want)
{
	while (state_of(f, id, NULL) != want)
		poll(NULL, 0, 5);
}

static void assert_same(const struct counts *a, const struct counts *b)
{
	assert_int_equal(a->vmm_processes, b->vmm_processes);
	assert_int_equal(a->cgroups, b->cgroups);
	assert_int_equal(a->sockets, b->sockets);
	assert_int_equal(a->disks, b->disks);
	assert_int_equal(a->fds, b->fds);
}

/* Workers and the watcher may finish a moment after the store says so. */
static void assert_nothing_left(struct fixture *f, const struct counts *before)
{
	struct counts now = fixture_count(f);

	for (int i = 0; i < 1000 && memcmp(&now, before, sizeof(now)) != 0; i++) {
		poll(NULL, 0, 5);
		now = fixture_count(f);
	}
	assert_same(&now, before);
}

static void test_create_exec_stop_start_delete(void **state)
{
	struct fixture *f = *state;
	struct counts before = fixture_count(f);
	struct err e = { 0 };
	char id[ID_LEN], reason[STORE_REASON_LEN];
	int fd;

	create(f, "base", id);
	assert_int_equal(fixture_exec(f, id, "exit 7"), 7);
	assert_int_equal(fixture_exec(f, id, "test $$ -lt 1000"), 0);
	must(sandbox_stop(f->m, id, "", "requested", 2000, &e), &e);
	assert_int_equal(state_of(f, id, reason), SANDBOX_STOPPED);
	assert_string_equal(reason, "requested");
	assert_int_equal(sandbox_connect(f->m, id, &fd, &e), -EBUSY);
	assert_string_equal(e.code, "sandbox_not_running");
	must(sandbox_stop(f->m, id, "", "requested", 2000, &e), &e);
	must(sandbox_start(f->m, id, "", NULL, &e), &e);
	assert_int_equal(fixture_exec(f, id, "exit 3"), 3);
	must(sandbox_start(f->m, id, "", NULL, &e), &e);
	must(sandbox_delete(f->m, id, "", &e), &e);
	assert_int_equal(sandbox_delete(f->m, id, "", &e), -ENOENT);
	assert_string_equal(e.code, "sandbox_not_found");
	assert_int_equal(state_of(f, id, NULL), SANDBOX_DELETED);
	assert_nothing_left(f, &before);
}

/* Known fault 38: failed creates leak taps, namespaces, disks, cgroups. */
static void test_fault_38_failed_creates_leave_nothing(void **state)
{
	static const struct {
		const char *image, *cmdline, *code, *reason;
	} cases[] = {
		{ "panics", "process_vmm=panic", "boot_failed", "panic" },
		{ "crashes", "process_vmm=crash", "vmm_failed", NULL },
		{ "powersoff", "process_vmm=poweroff", "boot_failed", "poweroff" },
	};
	struct fixture *f = *state;
	struct counts before;

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
		fixture_image(f, cases[i].image, cases[i].cmdline, false);
	before = fixture_count(f);
	for (size_t i = 0; i < ARRAY_SIZE(cases) * 3; i++) {
		size_t k = i % ARRAY_SIZE(cases);
		struct store_sandbox row = fixture_row(cases[k].image);
		_cleanup_json_ json_t *details = NULL;
		struct err e = { 0 };

		assert_true(sandbox_create(f->m, &row, "", &details, &e) < 0);
		assert_string_equal(e.code, cases[k].code);
		if (cases[k].reason)
			assert_string_equal(json_get_str(details, "reason", ""), cases[k].reason);
	}
	assert_nothing_left(f, &before);
}

static void test_panic_shows_the_console(void **state)
{
	struct fixture *f = *state;
	struct store_sandbox row = fixture_row("panics");
	_cleanup_json_ json_t *details = NULL;
	struct err e = { 0 };
	const json_t *tail;

	fixture_image(f, "panics", "process_vmm=panic", false);
	assert_true(sandbox_create(f->m, &row, "", &details, &e) < 0);
	tail = json_object_get(details, "serialTail");
	assert_int_equal(json_array_size(tail), 2);
	assert_non_null(strstr(json_string_value(json_array_get(tail, 0)), "No working init"));
}

static void test_bad_requests(void **state)
{
	struct fixture *f = *state;
	struct counts before = fixture_count(f);
	struct store_sandbox row = fixture_row("nosuch");
	struct err e = { 0 };

	assert_true(sandbox_create(f->m, &row, "", NULL, &e) < 0);
	assert_string_equal(e.code, "image_not_found");
	assert_non_null(strstr(e.msg, "nosuch"));
	row = fixture_row("../base");
	assert_true(sandbox_create(f->m, &row, "", NULL, &e) < 0);
	assert_string_equal(e.code, "image_not_found");
	row = fixture_row("base");
	row.disk_mib = 4;
	assert_true(sandbox_create(f->m, &row, "", NULL, &e) < 0);
	assert_string_equal(e.code, "value_out_of_range");
	row = fixture_row("base");
	row.on_lease_end = LEASE_END_PAUSE;
	assert_true(sandbox_create(f->m, &row, "", NULL, &e) < 0);
	assert_string_equal(e.code, "not_available");
	row = fixture_row("base");
	row.memory_mib = 65536;
	assert_true(sandbox_create(f->m, &row, "", NULL, &e) < 0);
	assert_string_equal(e.code, "capacity_memory");
	assert_nothing_left(f, &before);
}

static void test_corrupt_image(void **state)
{
	struct fixture *f = *state;
	struct store_sandbox row = fixture_row("bad");
	struct err e = { 0 };

	fixture_image(f, "bad", "", true);
	assert_true(sandbox_create(f->m, &row, "", NULL, &e) < 0);
	assert_string_equal(e.code, "image_corrupt");
	assert_true(e.fix[0] != '\0');
}

static void test_guest_powers_off(void **state)
{
	struct fixture *f = *state;
	struct counts before = fixture_count(f);
	char id[ID_LEN], reason[STORE_REASON_LEN];
	struct err e = { 0 };

	create(f, "base", id);
	/* The agent is the guest's first process and ends on SIGTERM, and the stream with it. */
	fixture_exec(f, id, "kill -TERM 1");
	wait_state(f, id, SANDBOX_STOPPED);
	state_of(f, id, reason);
	assert_string_equal(reason, "poweroff");
	must(sandbox_delete(f->m, id, "", &e), &e);
	assert_nothing_left(f, &before);
}

static pid_t vmm_pid(struct fixture *f, const char *id)
{
	struct broker_vmm_row *rows;
	struct err e = { 0 };
	pid_t pid = 0;
	size_t n;

	must(broker_vmm_list(f->client, &rows, &n, &e), &e);
	for (size_t i = 0; i < n; i++)
		if (strcmp(rows[i].id, id) == 0)
			pid = rows[i].pid;
	free(rows);
	return pid;
}

static void test_vmm_is_killed(void **state)
{
	struct fixture *f = *state;
	struct counts before = fixture_count(f);
	char id[ID_LEN], reason[STORE_REASON_LEN];
	struct err e = { 0 };

	create(f, "base", id);
	assert_int_equal(kill(vmm_pid(f, id), SIGKILL), 0);
	wait_state(f, id, SANDBOX_FAILED);
	state_of(f, id, reason);
	assert_string_equal(reason, "vmm_crashed");
	must(sandbox_start(f->m, id, "", NULL, &e), &e);
	assert_int_equal(fixture_exec(f, id, "exit 0"), 0);
	must(sandbox_delete(f->m, id, "", &e), &e);
	assert_nothing_left(f, &before);
}

static void test_lease_ends(void **state)
{
	struct fixture *f = *state;
	struct counts before = fixture_count(f);
	char a[ID_LEN], b[ID_LEN], reason[STORE_REASON_LEN];
	struct store_sandbox row = fixture_row("base");
	struct err e = { 0 };

	row.timeout_s = 1;
	must(sandbox_create(f->m, &row, "", NULL, &e), &e);
	memcpy(a, row.id, ID_LEN);
	store_sandbox_free(&row);
	create(f, "base", b);
	must(sandbox_renew(f->m, b, "", 1, &e), &e);
	wait_state(f, a, SANDBOX_STOPPED);
	wait_state(f, b, SANDBOX_STOPPED);
	state_of(f, a, reason);
	assert_string_equal(reason, "lease_ended");
	assert_int_equal(sandbox_renew(f->m, a, "", 10, &e), -EBUSY);
	must(sandbox_delete(f->m, a, "", &e), &e);
	must(sandbox_delete(f->m, b, "", &e), &e);
	row = fixture_row("base");
	row.timeout_s = 1;
	row.on_lease_end = LEASE_END_DELETE;
	must(sandbox_create(f->m, &row, "", NULL, &e), &e);
	wait_state(f, row.id, SANDBOX_DELETED);
	store_sandbox_free(&row);
	assert_nothing_left(f, &before);
}

/* Known fault 15: after a daemon restart running machines are lost. */
static void test_fault_15_restart_adopts(void **state)
{
	struct fixture *f = *state;
	char id[ID_LEN], stopped[ID_LEN];
	struct err e = { 0 };

	create(f, "base", id);
	create(f, "base", stopped);
	must(sandbox_stop(f->m, stopped, "", "requested", 1000, &e), &e);
	assert_int_equal(fixture_exec(f, id, "echo kept > /workspace/mark"), 0);
	fixture_down(f);
	fixture_up(f);
	assert_int_equal(state_of(f, id, NULL), SANDBOX_RUNNING);
	assert_int_equal(state_of(f, stopped, NULL), SANDBOX_STOPPED);
	assert_int_equal(fixture_exec(f, id, "grep -q kept /workspace/mark"), 0);
	must(sandbox_delete(f->m, stopped, "", &e), &e);
	must(sandbox_delete(f->m, id, "", &e), &e);
}

/* A command that runs while broker and manager are killed with SIGKILL. */
static void test_fault_15_kill_9_loses_no_command(void **state)
{
	struct fixture *f = *state;
	char id[ID_LEN];
	struct err e = { 0 };
	int status, p[2];
	pid_t pid;

	fixture_down(f);
	assert_int_equal(pipe(p), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		fixture_up(f);
		create(f, "base", id);
		if (fixture_exec(f, id,
				 "(sleep 1; echo done > /workspace/out) >/dev/null 2>&1 &") != 0 ||
		    write(p[1], id, ID_LEN) != ID_LEN)
			_exit(1);
		for (;;)
			pause();
	}
	close(p[1]);
	assert_int_equal(read(p[0], id, ID_LEN), ID_LEN);
	close(p[0]);
	kill(pid, SIGKILL); /* its broker dies with it */
	assert_int_equal(waitpid(pid, &status, 0), pid);
	fixture_up(f);
	assert_int_equal(state_of(f, id, NULL), SANDBOX_RUNNING);
	assert_int_equal(fixture_exec(f, id, "until test -s /workspace/out; do sleep 0.05; done"),
			 0);
	must(sandbox_delete(f->m, id, "", &e), &e);
}

/* What a daemon that was killed in the middle of a create leaves is gone after the next start. */
static void test_half_made_is_rolled_back(void **state)
{
	struct fixture *f = *state;
	struct broker_vmm_row *rows;
	struct err e = { 0 };
	struct counts now;
	pid_t pid;
	size_t n = 0;

	fixture_image(f, "hangs", "process_vmm=hang", false);
	fixture_down(f);
	pid = fork();
	if (pid == 0) {
		struct store_sandbox row = fixture_row("hangs");

		fixture_up(f);
		sandbox_create(f->m, &row, "", NULL, &e);
		_exit(1);
	}
	while (fixture_count(f).sockets < 2 || fixture_count(f).cgroups < 1 ||
	       fixture_count(f).vmm_processes < 1)
		poll(NULL, 0, 5);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	fixture_up(f);
	now = fixture_count(f);
	assert_int_equal(now.disks, 0);
	assert_int_equal(now.cgroups, 0);
	assert_int_equal(now.sockets, 0);
	must(broker_vmm_list(f->client, &rows, &n, &e), &e);
	free(rows);
	assert_int_equal(n, 0);
}

/* Creates, stops, starts and deletes for ever. */
_Noreturn static void churn(struct fixture *f)
{
	struct err e;

	fixture_up(f);
	for (;;) {
		struct store_sandbox row = fixture_row("base");

		if (sandbox_create(f->m, &row, "", NULL, &e) < 0)
			_exit(1);
		sandbox_stop(f->m, row.id, "", "requested", 1000, &e);
		sandbox_start(f->m, row.id, "", NULL, &e);
		sandbox_delete(f->m, row.id, "", &e);
		store_sandbox_free(&row);
	}
}

/* After a restart what is there is what the store says, whenever the former daemon died. */
static void test_killed_at_any_moment(void **state)
{
	static const int after_ms[] = { 5, 20, 45, 80, 120, 170, 230, 300, 380, 470, 570, 680 };
	const struct store_sandbox_filter all = { 0 };
	struct fixture *f = *state;

	fixture_down(f);
	for (size_t i = 0; i < ARRAY_SIZE(after_ms); i++) {
		struct store_sandbox *rows;
		struct counts now;
		struct err e = { 0 };
		size_t n;
		int running = 0;
		pid_t pid = fork();

		if (pid == 0)
			churn(f);
		poll(NULL, 0, after_ms[i]);
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
		fixture_up(f);
		must(store_sandbox_list(f->store, &all, &rows, &n, &e), &e);
		for (size_t k = 0; k < n; k++) {
			assert_true(rows[k].state == SANDBOX_RUNNING ||
				    rows[k].state == SANDBOX_STOPPED);
			running += rows[k].state == SANDBOX_RUNNING;
			if (rows[k].state == SANDBOX_RUNNING)
				assert_int_equal(fixture_exec(f, rows[k].id, "exit 5"), 5);
		}
		now = fixture_count(f);
		assert_int_equal(now.disks, n);
		assert_int_equal(now.sockets, 2 * running);
		assert_int_equal(now.vmm_processes, running);
		for (size_t k = 0; k < n; k++)
			must(sandbox_delete(f->m, rows[k].id, "", &e), &e);
		store_sandboxes_free(rows, n);
		now = fixture_count(f);
		assert_int_equal(now.disks + now.sockets + now.vmm_processes + now.cgroups, 0);
		fixture_down(f);
	}
}

struct background {
	struct fixture *f;
	struct err e;
	int r;
};

static void *create_hanging(void *p)
{
	struct background *b = p;
	struct store_sandbox row = fixture_row("hangs");

	b->r = sandbox_create(b->f->m, &row, "", NULL, &b->e);
	return NULL;
}

static void test_delete_interrupts_a_create(void **state)
{
	struct fixture *f = *state;
	struct background b = { .f = f };
	struct counts before;
	struct broker_vmm_row *rows = NULL;
	struct err e = { 0 };
	pthread_t t;
	size_t n = 0;

	fixture_image(f, "hangs", "process_vmm=hang", false);
	before = fixture_count(f);
	assert_int_equal(pthread_create(&t, NULL, create_hanging, &b), 0);
	while (n == 0) {
		free(rows);
		must(broker_vmm_list(f->client, &rows, &n, &e), &e);
	}
	must(sandbox_delete(f->m, rows[0].id, "", &e), &e);
	pthread_join(t, NULL);
	assert_true(b.r < 0);
	assert_int_equal(state_of(f, rows[0].id, NULL), SANDBOX_DELETED);
	free(rows);
	assert_nothing_left(f, &before);
}

struct one_create {
	struct fixture *f;
	pthread_t thread;
	struct store_sandbox row;
	struct err e;
	int r;
};

static void *create_one(void *p)
{
	struct one_create *c = p;

	c->row = fixture_row("base");
	c->r = sandbox_create(c->f->m, &c->row, "", NULL, &c->e);
	return NULL;
}

/* Ten at once where user ids are for eight. */
static void test_many_at_once_and_no_more_than_fit(void **state)
{
	struct fixture *f = *state;
	struct counts before = fixture_count(f);
	struct one_create c[10] = { 0 };
	int made = 0, refused = 0;

	for (size_t i = 0; i < ARRAY_SIZE(c); i++) {
		c[i].f = f;
		assert_int_equal(pthread_create(&c[i].thread, NULL, create_one, &c[i]), 0);
	}
	for (size_t i = 0; i < ARRAY_SIZE(c); i++) {
		pthread_join(c[i].thread, NULL);
		if (c[i].r == 0) {
			made++;
		} else {
			refused++;
			assert_string_equal(c[i].e.code, "capacity_sandboxes");
		}
	}
	assert_int_equal(made, 8);
	assert_int_equal(refused, 2);
	for (size_t i = 0; i < ARRAY_SIZE(c); i++)
		if (c[i].r == 0) {
			assert_int_equal(fixture_exec(f, c[i].row.id, "exit 4"), 4);
			must(sandbox_delete(f->m, c[i].row.id, "", &c[i].e), &c[i].e);
			store_sandbox_free(&c[i].row);
		}
	assert_nothing_left(f, &before);
}

static void test_stop_all(void **state)
{
	struct fixture *f = *state;
	struct counts before = fixture_count(f);
	char id[3][ID_LEN], reason[STORE_REASON_LEN];
	struct err e = { 0 };

	for (size_t i = 0; i < ARRAY_SIZE(id); i++)
		create(f, "base", id[i]);
	must(sandbox_stop(f->m, id[2], "", "requested", 1000, &e), &e);
	sandbox_stop_all(f->m, "host_stopped");
	for (size_t i = 0; i < ARRAY_SIZE(id); i++) {
		assert_int_equal(state_of(f, id[i], reason), SANDBOX_STOPPED);
		assert_string_equal(reason, i < 2 ? "host_stopped" : "requested");
		must(sandbox_delete(f->m, id[i], "", &e), &e);
	}
	assert_nothing_left(f, &before);
}

static void test_usage_is_metered(void **state)
{
	struct fixture *f = *state;
	struct store_usage u, later;
	struct err e = { 0 };
	char id[ID_LEN];

	create(f, "base", id);
	must(sandbox_usage(f->m, id, 0, &u, &e), &e);
	do
		must(sandbox_usage(f->m, id, 0, &later, &e), &e);
	while (later.memory_mib_ms == u.memory_mib_ms);
	assert_true(later.memory_mib_ms > u.memory_mib_ms);
	assert_int_equal(later.memory_mib_ms % 64, 0);
	must(sandbox_stop(f->m, id, "", "requested", 1000, &e), &e);
	must(store_usage_sum(f->store, id, 0, &u, &e), &e);
	assert_true(u.memory_mib_ms >= later.memory_mib_ms);
	must(sandbox_usage(f->m, id, 0, &later, &e), &e);
	assert_int_equal(u.memory_mib_ms, later.memory_mib_ms);
	must(sandbox_delete(f->m, id, "", &e), &e);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		TEST(test_create_exec_stop_start_delete),
		TEST(test_fault_38_failed_creates_leave_nothing),
		TEST(test_panic_shows_the_console),
		TEST(test_bad_requests),
		TEST(test_corrupt_image),
		TEST(test_guest_powers_off),
		TEST(test_vmm_is_killed),
		TEST(test_lease_ends),
		TEST(test_fault_15_restart_adopts),
		TEST(test_fault_15_kill_9_loses_no_command),
		TEST(test_half_made_is_rolled_back),
		TEST(test_killed_at_any_moment),
		TEST(test_delete_interrupts_a_create),
		TEST(test_many_at_once_and_no_more_than_fit),
		TEST(test_stop_all),
		TEST(test_usage_is_metered),
	};
	const char *why = fixture_unavailable();

	if (why) {
		printf("1..0 # SKIP %s\n", why);
		return 77;
	}
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
