/* Running commands in the real agent. Numbers in names are those of the known faults. */
#include <errno.h>
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
static const char *agent_path;

static json_t *argv(const char *a, const char *b, const char *c)
{
	json_t *v = json_array();

	json_array_append_new(v, json_string(a));
	if (b)
		json_array_append_new(v, json_string(b));
	if (c)
		json_array_append_new(v, json_string(c));
	return json_pack("{s:o}", "argv", v);
}

static void exit_codes(void **state)
{
	_cleanup_run_ struct run r = { 0 };

	(void)state;
	assert_int_equal(harness_sh(&H, &r, "exit 0"), 0);
	assert_int_equal(harness_sh(&H, &r, "exit 7"), 7);
	assert_int_equal(harness_sh(&H, &r, "exit 255"), 255);
	assert_int_equal(harness_sh(&H, &r, "kill -9 $$"), -SIGKILL);
	assert_int_equal(r.exit.code, -1);
	assert_false(r.exit.timed_out);
}

static void argv_runs_without_shell(void **state)
{
	_cleanup_run_ struct run r = { 0 };
	struct err e = { 0 };

	(void)state;
	assert_int_equal(harness_exec(&H, argv("printf", "%s|", "$HOME *"), NULL, 0, &r, &e), 0);
	assert_string_equal(r.out.data, "$HOME *|");
	assert_int_equal(r.exit.code, 0);
}

static void environment_user_and_folder(void **state)
{
	_cleanup_run_ struct run r = { 0 };
	struct err e = { 0 };

	(void)state;
	harness_sh(&H, &r, "id -un; id -Gn; echo $ACCOUNT $USER $HOME $LANG $TERM; pwd");
	assert_string_equal(r.out.data,
			    "agent\nagent extra\nyes agent /mnt/home C.UTF-8 dumb\n/mnt/home\n");
	run_free(&r);
	assert_int_equal(harness_exec(&H,
				      json_pack("{s:s,s:{s:s,s:s},s:s,s:s}", "command",
						"id -u; echo $A $ACCOUNT; pwd", "env", "A", "b",
						"ACCOUNT", "mine", "user", "root", "cwd", "/tmp"),
				      NULL, 0, &r, &e),
			 0);
	assert_string_equal(r.out.data, "0\nb mine\n/tmp\n");
}

static void starts_that_fail(void **state)
{
	static const char *const cases[][3] = {
		{ "no-such-program", NULL, "command_not_found" },
		{ "/no/such/program", NULL, "command_not_found" },
		{ "/etc/passwd", NULL, "command_not_executable" },
		{ "/tmp", NULL, "command_not_executable" },
		{ "", NULL, "command_not_found" },
		{ "true", "/no/such/folder", "cwd_not_found" },
		{ "true", "/root/.", "cwd_not_found" }, /* no right to enter it */
		{ "true", "relative", "bad_request" },
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		json_t *req = argv(cases[i][0], NULL, NULL);
		struct err e = { 0 };

		if (cases[i][1])
			json_object_set_new(req, "cwd", json_string(cases[i][1]));
		assert_string_equal(harness_error(&H, "exec", req, &e), cases[i][2]);
	}
}

static void requests_that_are_wrong(void **state)
{
	struct err e = { 0 };
	char *big = calloc(1, 200 << 10);

	(void)state;
	assert_string_equal(harness_error(&H, "exec", json_object(), &e), "bad_request");
	assert_string_equal(
		harness_error(&H, "exec",
			      json_pack("{s:[s],s:s}", "argv", "true", "command", "true"), &e),
		"bad_request");
	assert_string_equal(harness_error(&H, "exec",
					  json_pack("{s:[s],s:i}", "argv", "true", "timeout", 1),
					  &e),
			    "bad_request");
	assert_non_null(strstr(e.msg, "timeoutMs"));
	assert_string_equal(
		harness_error(&H, "exec",
			      json_pack("{s:[s],s:s}", "argv", "true", "user", "nobody-here"), &e),
		"user_not_found");
	assert_string_equal(harness_error(&H, "nonsense", NULL, &e), "bad_request");
	memset(big, 'x', (200 << 10) - 1);
	assert_string_equal(harness_error(&H, "exec", argv("echo", big, NULL), &e), "too_large");
	free(big);
}

/* 46: the error names the field, and what it takes. */
static void fault_46_errors_name_the_field(void **state)
{
	struct err e = { 0 };

	(void)state;
	harness_error(&H, "exec",
		      json_pack("{s:[s],s:s,s:i}", "argv", "true", "cwd", "x", "env", 1), &e);
	assert_non_null(strstr(e.msg, "env must be an object"));
	assert_string_equal(harness_error(&H, "exec", argv("nope", NULL, NULL), &e),
			    "command_not_found");
	assert_true(e.fix[0]);
}

/* 5: 4 MiB on both streams at once, then exit: every byte arrives. */
static void fault_05_bursts_arrive_whole(void **state)
{
	static const char script[] =
		"head -c 4194304 /dev/zero | tr '\\0' o & head -c 4194304 /dev/zero | "
		"tr '\\0' e >&2; wait";
	_cleanup_run_ struct run r = { 0 };

	(void)state;
	assert_int_equal(harness_sh(&H, &r, script), 0);
	assert_int_equal(r.out.len, 4 << 20);
	assert_int_equal(r.err.len, 4 << 20);
	for (size_t i = 0; i < r.out.len; i++)
		if (r.out.data[i] != 'o' || r.err.data[i] != 'e')
			fail_msg("byte %zu is wrong", i);
}

/* 5: 40 MiB pass through a client that is slow to start reading; memory of the agent is bounded
 * because the command is held back. */
static void fault_05_slow_reader_loses_nothing(void **state)
{
	_cleanup_agent_conn_ struct agent_conn *c = NULL;
	_cleanup_json_ json_t *p = NULL;
	_cleanup_run_ struct run r = { 0 };
	struct err e = { 0 };
	char id[64];

	(void)state;
	c = harness_open(&H, json_pack("{s:s}", "command", "head -c 41943040 /dev/zero"), id);
	/* What it has written when nobody reads: the kept ring and the buffers between. */
	for (int64_t last = -1, now = 0; now != last;) {
		last = now;
		usleep(100000);
		json_decref(p);
		p = harness_call(&H, "process", json_pack("{s:s}", "processId", id));
		now = json_get_int(p, "stdoutBytes", -1);
		assert_true(now <= 6 << 20);
	}
	assert_int_equal(run_follow(c, &r, &e), 0);
	assert_int_equal(r.out.len, 40 << 20);
	assert_int_equal(r.exit.code, 0);
}

/* 7, 8: 200 very short commands one after another; each has its exit code, none stays a zombie. */
static void fault_07_08_many_short_commands(void **state)
{
	(void)state;
	for (int i = 0; i < 200; i++) {
		_cleanup_run_ struct run r = { 0 };
		char text[16];

		snprintf(text, sizeof(text), "exit %d", i);
		assert_int_equal(harness_sh(&H, &r, text), i);
	}
	assert_int_equal(harness_zombies(&H), 0);
}

/* 7: orphans of commands are reaped too. */
static void fault_07_orphans_are_reaped(void **state)
{
	_cleanup_run_ struct run r = { 0 };

	(void)state;
	assert_int_equal(harness_sh(&H, &r,
				    "for i in $(seq 50); do (sleep 0.05 &) ; done; "
				    "while pgrep -x sleep >/dev/null; do :; done"),
			 0);
	assert_int_equal(harness_sh(&H, &r, "true"), 0);
	assert_int_equal(harness_zombies(&H), 0);
}

static void stdin_is_given(void **state)
{
	_cleanup_run_ struct run r = { 0 };
	struct err e = { 0 };

	(void)state;
	assert_int_equal(harness_exec(&H, argv("cat", NULL, NULL), "hello\n", 6, &r, &e), 0);
	assert_string_equal(r.out.data, "hello\n");
	run_free(&r);
	/* Without it a command that reads ends at once. */
	assert_int_equal(harness_exec(&H, argv("cat", NULL, NULL), NULL, 0, &r, &e), 0);
	assert_int_equal(r.out.len, 0);
	assert_int_equal(r.exit.code, 0);
}

/* 20 MiB through cat: input and output are both full at times, and neither waits for the other. */
static void large_stdin_through_cat(void **state)
{
	size_t n = 20 << 20;
	char *in = malloc(n);
	_cleanup_run_ struct run r = { 0 };
	struct err e = { 0 };

	(void)state;
	for (size_t i = 0; i < n; i++)
		in[i] = (char)(i * 7 + (i >> 11));
	assert_int_equal(harness_exec(&H, argv("cat", NULL, NULL), in, n, &r, &e), 0);
	assert_int_equal(r.out.len, n);
	assert_memory_equal(r.out.data, in, n);
	free(in);
}

/* Input nobody wants neither blocks nor fails the command. */
/* A stream that gives no input leaves that to the stdin operation; one that does keeps it. */
static void stdin_from_beside_the_stream(void **state)
{
	_cleanup_json_ json_t *at0 = NULL;
	_cleanup_run_ struct run r = { 0 };
	struct agent_conn *c, *feed;
	char id[64];
	struct err e = { 0 };

	(void)state;
	c = harness_open(&H, json_pack("{s:[s],s:b}", "argv", "cat", "stdin", 1), id);
	at0 = json_pack("{s:s,s:i,s:b}", "processId", id, "offset", 0, "eof", 1);
	assert_int_equal(agent_open(harness_dial(&H), "stdin", at0, &feed, &e), 0);
	assert_int_equal(agent_write(feed, "beside", 6, WAIT_MS, &e), 0);
	assert_int_equal(agent_write_end(feed, NULL, NULL, WAIT_MS, &e), 0);
	agent_free(feed);
	assert_int_equal(run_follow(c, &r, &e), 0);
	assert_string_equal(r.out.data, "beside");
	agent_free(c);

	c = harness_open(&H, json_pack("{s:[s],s:b}", "argv", "cat", "stdin", 1), id);
	assert_int_equal(agent_stdin(c, "own\n", 4, &e), 0);
	wait_output(c, "own\n");
	assert_string_equal(harness_error(&H, "stdin",
					  json_pack("{s:s,s:i}", "processId", id, "offset", 4), &e),
			    "bad_request");
	assert_int_equal(agent_cancel(c, &e), 0);
	agent_free(c);
}

/* Whoever fed the last line is told so, though the command ended before the feed's own end came. */
static void stdin_of_a_command_that_ends_on_it(void **state)
{
	json_t *at0 = NULL;
	struct agent_conn *feed = NULL;
	struct agent_event ev;
	json_t *reply = NULL;
	struct err e = { 0 };
	char id[64];
	struct agent_conn *c = harness_open(
		&H, json_pack("{s:[s,s,s],s:b}", "argv", "sh", "-c", "read x; echo $x", "stdin", 1),
		id);

	(void)state;
	at0 = json_pack("{s:s,s:i}", "processId", id, "offset", 0);
	assert_int_equal(agent_open(harness_dial(&H), "stdin", at0, &feed, &e), 0);
	assert_int_equal(agent_write(feed, "line\n", 5, 10000, &e), 0);
	do {
		assert_int_equal(agent_next(c, &ev, 10000, &e), 1);
	} while (ev.type != AGENT_EXIT);
	assert_int_equal(ev.exit.code, 0);
	assert_int_equal(agent_write_end(feed, NULL, &reply, 10000, &e), 0);
	assert_int_equal(json_get_int(reply, "offset", -1), 5);
	json_decref(reply);
	json_decref(at0);
	agent_free(feed);
	agent_free(c);
}

static void stdin_that_is_not_read(void **state)
{
	size_t n = 2 << 20;
	char *in = calloc(1, n);
	_cleanup_run_ struct run r = { 0 };
	struct err e = { 0 };

	(void)state;
	assert_int_equal(harness_exec(&H,
				      json_pack("{s:s}", "command", "exec <&-; sleep 0.2; exit 3"),
				      in, n, &r, &e),
			 0);
	assert_int_equal(r.exit.code, 3);
	free(in);
}

static void background_holder_does_not_hang_exec(void **state)
{
	_cleanup_run_ struct run r = { 0 };

	(void)state;
	assert_int_equal(harness_sh(&H, &r, "sleep 86400 & echo started"), 0);
	assert_string_equal(r.out.data, "started\n");
	assert_int_equal(harness_count(&H, "sleep 86400"), 1); /* it lives on */
	harness_sh(&H, &r, "pkill -f 'sleep 8640[0]'");
}

static void terminal(void **state)
{
	static const char script[] = "test -t 0 && test -t 1 && test -t 2 && echo a terminal; "
				     "while read -r l; do echo got $l $(stty size); done; exit 4";
	_cleanup_agent_conn_ struct agent_conn *c = NULL;
	_cleanup_run_ struct run r = { 0 };
	struct err e = { 0 };
	char id[64];

	(void)state;
	c = harness_open(
		&H,
		json_pack("{s:s,s:{s:i,s:i}}", "command", script, "tty", "rows", 30, "cols", 100),
		id);
	wait_output(c, "a terminal");
	assert_int_equal(agent_stdin(c, "one\n", 4, &e), 0);
	wait_output(c, "got one 30 100");
	assert_int_equal(agent_resize(c, 50, 132, &e), 0);
	assert_int_equal(agent_stdin(c, "two\n", 4, &e), 0);
	wait_output(c, "got two 50 132");
	assert_int_equal(agent_stdin_eof(c, &e), 0);
	assert_int_equal(run_follow(c, &r, &e), 0);
	assert_int_equal(r.exit.code, 4);
}

/* A host that speaks no protocol, or goes away in the middle, costs nothing but its stream. */
static void garbage_is_dropped(void **state)
{
	static const struct {
		const char *p;
		size_t n;
	} bad[] = { { "GET / HTTP/1.1\r\n\r\n", 18 },
		    { "\xff\xff\xff\xff\x01\0\0\0", 8 },
		    { "\0\0\0\0\x15\0\0\0", 8 },
		    { "\5\0\0\0\1\0\0\0{\"op\"", 13 },
		    { "\2", 1 } };

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		int fd = harness_dial(&H);
		char c[256];

		assert_int_equal(write(fd, bad[i].p, bad[i].n), bad[i].n);
		if (i != 4)
			while (read(fd, c, sizeof(c)) > 0)
				;
		close(fd);
	}
	json_decref(harness_call(&H, "hello", NULL));
}

static int start(void **state)
{
	(void)state;
	return harness_start(&H, agent_path, false) ? 0 : -1;
}

static int stop(void **state)
{
	(void)state;
	harness_stop(&H);
	return 0;
}

int main(int argc, char **argv_)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(exit_codes),
		cmocka_unit_test(argv_runs_without_shell),
		cmocka_unit_test(environment_user_and_folder),
		cmocka_unit_test(starts_that_fail),
		cmocka_unit_test(requests_that_are_wrong),
		cmocka_unit_test(fault_46_errors_name_the_field),
		cmocka_unit_test(fault_05_bursts_arrive_whole),
		cmocka_unit_test(fault_05_slow_reader_loses_nothing),
		cmocka_unit_test(fault_07_08_many_short_commands),
		cmocka_unit_test(fault_07_orphans_are_reaped),
		cmocka_unit_test(stdin_is_given),
		cmocka_unit_test(large_stdin_through_cat),
		cmocka_unit_test(stdin_from_beside_the_stream),
		cmocka_unit_test(stdin_of_a_command_that_ends_on_it),
		cmocka_unit_test(stdin_that_is_not_read),
		cmocka_unit_test(background_holder_does_not_hang_exec),
		cmocka_unit_test(terminal),
		cmocka_unit_test(garbage_is_dropped),
	};

	if (argc != 2)
		return 2;
	agent_path = argv_[1];
	if (geteuid() != 0) {
		puts("1..0 # SKIP needs root for namespaces");
		return 0;
	}
	return cmocka_run_group_tests(tests, start, stop);
}
