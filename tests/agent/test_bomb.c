/* A fork bomb in the real agent. Needs a cgroup2 with the pids controller; a sandbox has one. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/fd.h"
#include "harness.h"

static struct harness H;

/* A fork bomb ends at the limit, the agent answers meanwhile, and killing it leaves nothing. */
static void fault_06_fork_bomb_is_bounded(void **state)
{
	_cleanup_agent_conn_ struct agent_conn *c = NULL;
	_cleanup_run_ struct run r = { 0 };
	char path[200], id[64];
	struct err e = { 0 };

	(void)state;
	c = harness_open(&H,
			 json_pack("{s:s,s:s}", "command", "b() { b | b & }; b; sleep 3600", "user",
				   "agent"),
			 id);
	for (;;) {
		_cleanup_buf_ struct buf b = { 0 };

		json_decref(harness_call(&H, "hello", NULL));
		snprintf(path, sizeof(path), "%s/cloche.slice/pids.events", H.cgroup);
		assert_int_equal(fd_read_file(path, &b, 4096, NULL), 0);
		if (strncmp(b.data, "max 0\n", 6) != 0)
			break; /* it has hit the limit */
	}
	json_decref(harness_call(&H, "hello", NULL));
	assert_int_equal(agent_cancel(c, &e), 0);
	assert_int_equal(run_follow(c, &r, &e), 0);
	assert_int_equal(r.exit.signal, SIGKILL);
	assert_int_equal(harness_count(&H, "sleep 3600"), 0);
	assert_int_equal(harness_sh(&H, &r, "echo well"), 0);
	assert_string_equal(r.out.data, "well\n");
}

static int stop(void **state)
{
	(void)state;
	harness_stop(&H);
	return 0;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(fault_06_fork_bomb_is_bounded) };
	char path[200];

	if (argc != 2)
		return 2;
	if (geteuid() != 0) {
		puts("1..0 # SKIP needs root for namespaces");
		return 0;
	}
	if (!harness_start(&H, argv[1], false))
		return 1;
	snprintf(path, sizeof(path), "%s/cloche.slice/pids.max", H.cgroup);
	if (!H.cgroup[0] || access(path, F_OK) < 0) {
		harness_stop(&H);
		puts("1..0 # SKIP no cgroup2 with the pids controller here: nothing bounds a bomb");
		return 0;
	}
	return cmocka_run_group_tests(tests, NULL, stop);
}
