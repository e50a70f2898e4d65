/* How commands end, and what outlives whom. Numbers in names are those of the known faults. */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/fd.h"
#include "harness.h"

static struct harness H;
static const char *agent_path;

static json_t *sh(const char *text)
{
	return json_pack("{s:s}", "command", text);
}

static json_t *by_id(const char *id)
{
	return json_pack("{s:s}", "processId", id);
}

/* Follows a process from the start to its end over a stream of its own. */
static void attach(const char *id, struct run *r)
{
	_cleanup_json_ json_t *req = json_pack("{s:s,s:b}", "processId", id, "follow", 1);
	_cleanup_agent_conn_ struct agent_conn *c = NULL;
	struct err e = { 0 };

	if (agent_open(harness_dial(&H), "attach", req, &c, &e) < 0 ||
	    agent_reply(c, NULL, WAIT_MS, &e) < 0 || run_follow(c, r, &e) < 0)
		fail_msg("attach: %s (%s)", e.msg, e.code);
}

/* Starts in the background and returns once it runs; its stream is closed. */
static void background(const char *text, char id[64])
{
	json_t *req = json_pack("{s:s,s:b}", "command", text, "background", 1);

	agent_free(harness_open(&H, req, id));
}

/* 2, 4: a timeout ends the command, and its descendants in sessions of their own. */
static void fault_02_04_timeout_kills_all(void **state)
{
	_cleanup_run_ struct run r = { 0 };
	struct err e = { 0 };

	(void)state;
	assert_int_equal(
		harness_exec(
			&H,
			json_pack(
				"{s:s,s:i}", "command",
				"trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep 71001; :' & "
				"(setsid setsid sleep 71002 &) ; echo up; sleep 71003; sleep 71004",
				"timeoutMs", 2000),
			NULL, 0, &r, &e),
		0);
	assert_string_equal(r.out.data, "up\n");
	assert_true(r.exit.timed_out);
	assert_int_equal(r.exit.signal, SIGKILL);
	assert_true(r.exit.duration_ms >= 2000);
	assert_int_equal(harness_count(&H, "7100"), 0);
}

/* A command that heeds SIGTERM ends with it, and says so; what it started is gone all the same. */
static void timeout_by_sigterm(void **state)
{
	_cleanup_run_ struct run r = { 0 };
	struct err e = { 0 };

	(void)state;
	assert_int_equal(
		harness_exec(&H,
			     json_pack("{s:s,s:i}", "command",
				       "setsid sleep 71011 & trap 'echo bye; exit 9' TERM; "
				       "sleep 71012 & wait",
				       "timeoutMs", 2000),
			     NULL, 0, &r, &e),
		0);
	assert_string_equal(r.out.data, "bye\n");
	assert_true(r.exit.timed_out);
	assert_int_equal(r.exit.code, 9);
	assert_int_equal(harness_count(&H, "7101"), 0);
}

static void timeout_not_reached(void **state)
{
	_cleanup_run_ struct run r = { 0 };
	struct err e = { 0 };

	(void)state;
	assert_int_equal(
		harness_exec(&H, json_pack("{s:s,s:i}", "command", "exit 5", "timeoutMs", 60000),
			     NULL, 0, &r, &e),
		0);
	assert_false(r.exit.timed_out);
	assert_int_equal(r.exit.code, 5);
}

/* 9: giving up at the client kills the command, even one that reads none of its input. */
static void fault_09_cancel_kills(void **state)
{
	_cleanup_agent_conn_ struct agent_conn *c = NULL;
	_cleanup_run_ struct run r = { 0 };
	char id[64], in[512 << 10] = "";
	struct err e = { 0 };

	(void)state;
	c = harness_open(&H,
			 json_pack("{s:s,s:b}", "command",
				   "(setsid sleep 72001 &); echo up; sleep 72002", "stdin", 1),
			 id);
	wait_output(c, "up");
	assert_int_equal(agent_stdin(c, in, sizeof(in), &e), 0);
	assert_int_equal(agent_cancel(c, &e), 0);
	assert_int_equal(run_follow(c, &r, &e), 0);
	assert_int_equal(r.exit.signal, SIGKILL);
	assert_false(r.exit.timed_out);
	assert_int_equal(harness_count(&H, "7200"), 0);
}

static void signals_reach_the_group(void **state)
{
	_cleanup_agent_conn_ struct agent_conn *c = NULL;
	_cleanup_run_ struct run r = { 0 };
	struct err e = { 0 };
	char id[64];

	(void)state;
	c = harness_open(
		&H, sh("trap 'echo int; exit 3' INT; echo up; while :; do sleep 0.05; done"), id);
	wait_output(c, "up");
	assert_int_equal(agent_signal(c, SIGINT, &e), 0);
	assert_int_equal(run_follow(c, &r, &e), 0);
	assert_int_equal(r.exit.code, 3);
	assert_string_equal(harness_error(&H, "signal",
					  json_pack("{s:s,s:i}", "processId", id, "signal", 15),
					  &e),
			    "process_ended");
}

/* 3: a background command outlives the stream that started it, and can be followed by its id. */
static void fault_03_background_survives(void **state)
{
	_cleanup_run_ struct run r = { 0 };
	_cleanup_json_ json_t *p = NULL;
	char id[64];

	(void)state;
	assert_int_equal(harness_sh(&H, &r, "mkfifo /mnt/go"), 0);
	background("echo one; read -r x < /mnt/go; echo two $x; exit 6", id);
	p = harness_call(&H, "process", by_id(id));
	assert_string_equal(json_get_str(p, "state", ""), "running");
	assert_int_equal(harness_sh(&H, &r, "echo now > /mnt/go; rm /mnt/go"), 0);
	run_free(&r);
	attach(id, &r);
	assert_string_equal(r.out.data, "one\ntwo now\n");
	assert_int_equal(r.exit.code, 6);
}

/* 1, 3: a stream that breaks ends nothing and is not an exit; the output is there afterwards. */
static void fault_01_03_broken_stream(void **state)
{
	_cleanup_run_ struct run r = { 0 };
	struct agent_conn *c;
	char id[64];

	(void)state;
	c = harness_open(&H,
			 sh("echo before; while [ ! -e /mnt/on ]; do sleep 0.02; done; echo after; "
			    "exit 8"),
			 id);
	wait_output(c, "before");
	agent_free(c);
	harness_sh(&H, &r, "touch /mnt/on");
	run_free(&r);
	attach(id, &r);
	assert_string_equal(r.out.data, "before\nafter\n");
	assert_int_equal(r.exit.code, 8);
	run_free(&r);
	harness_sh(&H, &r, "rm /mnt/on");
}

/* 1: when the agent dies the client says that the outcome is unknown. */
static void fault_01_lost_agent_is_no_success(void **state)
{
	_cleanup_agent_conn_ struct agent_conn *c = NULL;
	_cleanup_run_ struct run r = { 0 };
	struct harness own = { 0 };
	struct err e = { 0 };
	char id[64];

	(void)state;
	assert_true(harness_start(&own, agent_path, false));
	c = harness_open(&own, sh("echo up; sleep 73000"), id);
	wait_output(c, "up");
	harness_stop(&own);
	assert_true(run_follow(c, &r, &e) < 0);
	assert_string_equal(e.code, "stream_broken");
}

/* 8: a command that is over before its stream is read can still be looked at by its id. */
static void fault_08_short_commands_are_registered(void **state)
{
	(void)state;
	for (int i = 0; i < 30; i++) {
		_cleanup_run_ struct run r = { 0 };
		char id[64];

		background("echo quick; exit 2", id);
		attach(id, &r);
		assert_string_equal(r.out.data, "quick\n");
		assert_int_equal(r.exit.code, 2);
	}
}

/* Offsets resume where a reader left off; more than is kept is said to be dropped. */
static void attach_resumes_and_says_what_is_lost(void **state)
{
	_cleanup_run_ struct run r = { 0 };
	_cleanup_agent_conn_ struct agent_conn *c = NULL;
	_cleanup_json_ json_t *req = NULL;
	struct err e = { 0 };
	struct agent_event ev;
	char id[64];

	(void)state;
	background("head -c 6291456 /dev/zero; printf end", id);
	attach(id, &r); /* waits for the end */
	req = json_pack("{s:s,s:I,s:b}", "processId", id, "stdoutOffset", (json_int_t)6291456,
			"follow", 1);
	assert_int_equal(agent_open(harness_dial(&H), "attach", req, &c, &e), 0);
	assert_int_equal(agent_reply(c, NULL, WAIT_MS, &e), 0);
	assert_int_equal(agent_next(c, &ev, WAIT_MS, &e), 1);
	assert_int_equal(ev.type, AGENT_STDOUT);
	assert_int_equal(ev.offset, 6291456);
	assert_int_equal(ev.len, 3);
	assert_memory_equal(ev.data, "end", 3);
	agent_free(steal_ptr(c));
	json_object_set_new(req, "stdoutOffset", json_integer(0));
	assert_int_equal(agent_open(harness_dial(&H), "attach", req, &c, &e), 0);
	assert_int_equal(agent_reply(c, NULL, WAIT_MS, &e), 0);
	assert_int_equal(agent_next(c, &ev, WAIT_MS, &e), 1);
	assert_int_equal(ev.type, AGENT_DROPPED);
	assert_false(ev.is_stderr);
	assert_int_equal(ev.offset, 0);
	assert_int_equal(ev.dropped, 6291459 - (4 << 20));
	assert_string_equal(harness_error(&H, "attach",
					  json_pack("{s:s,s:I}", "processId", id, "stdoutOffset",
						    (json_int_t)6291460),
					  &e),
			    "offset_mismatch");
}

static void attach_without_follow_ends(void **state)
{
	_cleanup_agent_conn_ struct agent_conn *c = NULL;
	_cleanup_run_ struct run r = { 0 };
	_cleanup_json_ json_t *req = NULL;
	struct err e = { 0 };
	char id[64];

	(void)state;
	background("sleep 74000", id);
	req = by_id(id);
	assert_int_equal(agent_open(harness_dial(&H), "attach", req, &c, &e), 0);
	assert_int_equal(agent_reply(c, NULL, WAIT_MS, &e), 0);
	assert_int_equal(run_follow(c, &r, &e), 1); /* END, no EXIT */
	json_decref(harness_call(&H, "forget", by_id(id)));
	assert_string_equal(harness_error(&H, "process", by_id(id), &e), "process_not_found");
}

static void feed(const char *id, int64_t offset, const char *text, bool eof, struct err *e)
{
	_cleanup_json_ json_t *reply = NULL,
			      *req = json_pack("{s:s,s:I,s:b}", "processId", id, "offset",
					       (json_int_t)offset, "eof", eof);
	_cleanup_agent_conn_ struct agent_conn *c = NULL;

	assert_int_equal(agent_open(harness_dial(&H), "stdin", req, &c, e), 0);
	if (agent_write(c, text, strlen(text), WAIT_MS, e) < 0 ||
	    agent_write_end(c, NULL, &reply, WAIT_MS, e) < 0)
		return;
	assert_int_equal(json_get_int(reply, "offset", -1), offset + (int64_t)strlen(text));
}

/* Input of a background command, checked by its offset so that a retry cannot give it twice. */
static void stdin_by_offset(void **state)
{
	_cleanup_run_ struct run r = { 0 };
	struct err e = { 0 };
	char id[64];

	(void)state;
	agent_free(harness_open(
		&H, json_pack("{s:s,s:b,s:b}", "command", "cat", "background", 1, "stdin", 1), id));
	feed(id, 0, "first ", false, &e);
	assert_null(e.code);
	feed(id, 0, "first ", false, &e);
	assert_string_equal(e.code, "offset_mismatch");
	e.code = NULL;
	feed(id, 6, "second", true, &e);
	assert_null(e.code);
	attach(id, &r);
	assert_string_equal(r.out.data, "first second");
	assert_int_equal(r.exit.code, 0);
	feed(id, 12, "late", false, &e);
	assert_string_equal(e.code, "process_ended");
}

static void forget_kills(void **state)
{
	struct err e = { 0 };
	char id[64];

	(void)state;
	background("sleep 75000", id);
	json_decref(harness_call(&H, "forget", by_id(id)));
	assert_string_equal(harness_error(&H, "attach", by_id(id), &e), "process_not_found");
	for (int i = 0; harness_count(&H, "sleep 75000"); i++) {
		assert_true(i < 1000); /* SIGKILL was sent; its death is not in our hands */
		usleep(1000);
	}
}

static void list_of_processes(void **state)
{
	_cleanup_json_ json_t *reply = NULL;
	_cleanup_run_ struct run r = { 0 };
	json_t *p, *found = NULL;
	size_t i;

	(void)state;
	harness_sh(&H, &r, "echo abc; exit 4");
	reply = harness_call(&H, "ps", NULL);
	json_array_foreach (json_object_get(reply, "processes"), i, p)
		if (strcmp(json_get_str(p, "processId", ""), r.id) == 0)
			found = p;
	assert_non_null(found);
	assert_string_equal(json_get_str(found, "state", ""), "exited");
	assert_int_equal(json_get_int(found, "stdoutBytes", -1), 4);
	assert_int_equal(json_get_int(json_object_get(found, "exit"), "code", -1), 4);
	assert_string_equal(json_get_str(found, "command", ""), "echo abc; exit 4");
}

/* Descriptors the agent has open: it is the one child of the harness's child. */
static int agent_fds(void)
{
	_cleanup_buf_ struct buf b = { 0 };
	_cleanup_closedir_ DIR *d = NULL;
	char path[64];
	int n = 0;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/children", H.pid, H.pid);
	assert_int_equal(fd_read_file(path, &b, 64, NULL), 0);
	snprintf(path, sizeof(path), "/proc/%ld/fd", strtol(b.data, NULL, 10));
	d = opendir(path);
	assert_non_null(d);
	while (readdir(d))
		n++;
	return n;
}

static void nothing_leaks(void **state)
{
	_cleanup_json_ json_t *hello = NULL;
	int fds[2];

	(void)state;
	for (int round = 0; round < 2; round++) {
		for (int i = 0; i < 150; i++) { /* more than are kept */
			_cleanup_run_ struct run r = { 0 };

			assert_int_equal(harness_sh(&H, &r, "echo x"), 0);
		}
		fds[round] = agent_fds();
	}
	assert_in_range(fds[1], 0, fds[0] + 2); /* streams that are just closing */
	hello = harness_call(&H, "hello", NULL);
	assert_int_equal(json_get_int(hello, "processes", -1), 0);
}

/* Before it has an identity nothing runs; then generation and environment are there. */
static void adopt_comes_first(void **state)
{
	_cleanup_run_ struct run r = { 0 };
	struct harness own = { 0 };
	struct err e = { 0 };

	(void)state;
	assert_true(harness_start(&own, agent_path, true));
	assert_string_equal(harness_error(&own, "exec", sh("true"), &e), "not_adopted");
	assert_string_equal(
		harness_error(&own, "adopt",
			      json_pack("{s:s,s:i,s:s,s:i}", "hostname", "x", "wallMs", 1,
					"entropy", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA!",
					"generation", 3),
			      &e),
		"bad_request");
	json_decref(harness_call(
		&own, "adopt",
		json_pack("{s:s,s:i,s:s,s:i,s:{s:s}}", "hostname", "x", "wallMs", 1, "entropy",
			  "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=", "generation", 3, "env",
			  "K", "v")));
	assert_int_equal(harness_sh(&own, &r, "cat /mnt/run/generation; echo $K"), 0);
	assert_string_equal(r.out.data, "3\nv\n");
	harness_stop(&own);
}

/* stop: SIGTERM first, and the agent itself ends once all are gone. */
static void stop_ends_everything(void **state)
{
	_cleanup_agent_conn_ struct agent_conn *c = NULL;
	_cleanup_run_ struct run r = { 0 };
	struct harness own = { 0 };
	struct err e = { 0 };
	char id[64];

	(void)state;
	assert_true(harness_start(&own, agent_path, false));
	c = harness_open(
		&own, sh("trap 'echo saved; exit 0' TERM; echo up; while :; do sleep 0.05; done"),
		id);
	wait_output(c, "up");
	json_decref(harness_call(&own, "stop", json_pack("{s:i}", "timeoutMs", 20000)));
	assert_int_equal(run_follow(c, &r, &e), 0);
	assert_string_equal(r.out.data, "saved\n");
	assert_int_equal(r.exit.code, 0);
	assert_int_equal(waitpid(own.pid, NULL, 0), own.pid);
	own.pid = 0;
	harness_stop(&own);
}

/* 4: without cgroups too a timeout reaches a session of its own and a double fork; and one agent
 * stopping never touches another's commands. */
static void fault_04_without_cgroups(void **state)
{
	_cleanup_run_ struct run r = { 0 };
	struct harness own = { 0 };
	struct err e = { 0 };
	char id[64];

	(void)state;
	background("sleep 76000", id); /* of the other agent */
	harness_start_plain(&own, agent_path);
	assert_int_equal(harness_exec(&own,
				      json_pack("{s:s,s:i}", "command",
						"setsid sleep 76101 & (setsid sleep 76102 &) ; "
						"echo up; sleep 76103",
						"timeoutMs", 2000),
				      NULL, 0, &r, &e),
			 0);
	assert_string_equal(r.out.data, "up\n");
	assert_true(r.exit.timed_out);
	assert_int_equal(harness_count(&own, "sleep 761"), 0);
	run_free(&r);
	assert_int_equal(harness_sh(&own, &r, "sleep 76104 & echo left"), 0);
	json_decref(harness_call(&own, "stop", NULL));
	assert_int_equal(waitpid(own.pid, NULL, 0), own.pid);
	own.pid = 0;
	assert_int_equal(harness_count(&own, "sleep 76104"), 0);
	harness_stop(&own);
	assert_int_equal(harness_count(&H, "sleep 76000"), 1);
	json_decref(harness_call(&H, "forget", by_id(id)));
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

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(fault_02_04_timeout_kills_all),
		cmocka_unit_test(timeout_by_sigterm),
		cmocka_unit_test(timeout_not_reached),
		cmocka_unit_test(fault_04_without_cgroups),
		cmocka_unit_test(fault_09_cancel_kills),
		cmocka_unit_test(signals_reach_the_group),
		cmocka_unit_test(fault_03_background_survives),
		cmocka_unit_test(fault_01_03_broken_stream),
		cmocka_unit_test(fault_01_lost_agent_is_no_success),
		cmocka_unit_test(fault_08_short_commands_are_registered),
		cmocka_unit_test(attach_resumes_and_says_what_is_lost),
		cmocka_unit_test(attach_without_follow_ends),
		cmocka_unit_test(stdin_by_offset),
		cmocka_unit_test(forget_kills),
		cmocka_unit_test(list_of_processes),
		cmocka_unit_test(nothing_leaks),
		cmocka_unit_test(adopt_comes_first),
		cmocka_unit_test(stop_ends_everything),
	};

	if (argc != 2)
		return 2;
	agent_path = argv[1];
	if (geteuid() != 0) {
		puts("1..0 # SKIP needs root for namespaces");
		return 0;
	}
	return cmocka_run_group_tests(tests, start, stop);
}
