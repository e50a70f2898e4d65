/* The base library: the values other modules lean on. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/id.h"
#include "base/json.h"
#include "base/loop.h"
#include "base/proc.h"
#include "base/str.h"
#include "base/timers.h"

static void buffers_grow_and_consume(void **state)
{
	_cleanup_buf_ struct buf b = { 0 };

	(void)state;
	for (int i = 0; i < 1000; i++)
		assert_int_equal(buf_printf(&b, "%03d", i), 0);
	assert_int_equal(b.len, 3000);
	buf_consume(&b, 2997);
	assert_string_equal(b.data, "999");
}

static void times_are_rfc3339(void **state)
{
	char t[CLOCK_RFC3339_LEN];

	(void)state;
	clock_rfc3339(1700000000123, t);
	assert_string_equal(t, "2023-11-14T22:13:20.123Z");
	clock_rfc3339(-1, t);
	assert_string_equal(t, "1969-12-31T23:59:59.999Z");
}

static void rfc3339_is_read_back(void **state)
{
	static const char *const bad[] = { "",
					   "2023-11-14",
					   "2023-11-14T22:13:20",
					   "2023-11-14T22:13:20.Z",
					   "2023-11-14T22:13:20+01:00",
					   "2023-11-14T22:13:20Zx" };
	int64_t ms = 0;

	(void)state;
	assert_int_equal(clock_parse_rfc3339("2023-11-14T22:13:20.123Z", &ms), 0);
	assert_int_equal(ms, 1700000000123);
	assert_int_equal(clock_parse_rfc3339("2023-11-14T22:13:20Z", &ms), 0);
	assert_int_equal(ms, 1700000000000);
	assert_int_equal(clock_parse_rfc3339("2023-11-14T22:13:20.1234567Z", &ms), 0);
	assert_int_equal(ms, 1700000000123);
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
		assert_int_equal(clock_parse_rfc3339(bad[i], &ms), -EINVAL);
}

static void ids_are_valid_and_differ(void **state)
{
	char a[ID_LEN], b[ID_LEN];

	(void)state;
	id_new("sbx", a);
	id_new("sbx", b);
	assert_true(id_valid("sbx", a));
	assert_false(id_valid("prc", a));
	assert_false(id_valid("sbx", "sbx_../../etc/passwd0000"));
	assert_string_not_equal(a, b);
}

static void json_problems_come_together(void **state)
{
	static const struct json_field fields[] = {
		{ .name = "vcpus", .kind = JSON_KIND_INT, .min = 1, .max = 32 },
		{ .name = "image",
		  .kind = JSON_KIND_STRING,
		  .min = 1,
		  .max = 64,
		  .required = true },
		{ .name = "env", .kind = JSON_KIND_MAP, .max = 100 },
	};
	static const char text[] = "{\"vcpus\":33,\"imge\":\"base\",\"env\":{\"A\":1}}";
	_cleanup_json_ json_t *o = json_parse(text, sizeof(text) - 1, NULL);
	_cleanup_json_ json_t *problems = json_array();

	(void)state;
	assert_non_null(o);
	assert_int_equal(json_check(o, fields, 3, problems), 4);
	assert_string_equal(json_get_str(json_array_get(problems, 1), "hint", ""), "image");
}

static void nearest_word(void **state)
{
	static const char *const words[] = { "--image", "--net", "--json" };

	(void)state;
	assert_string_equal(str_nearest("--imgae", words, 3), "--image");
	assert_null(str_nearest("--frobnicate", words, 3));
	/* A swap of neighbours counts once: "name" is nearer than "image". */
	assert_string_equal(str_nearest("nmae", (const char *const[]){ "image", "name" }, 2),
			    "name");
}

static void programs_report_their_end(void **state)
{
	static const char *const ok[] = { "sh", "-c", "echo out; echo err >&2", NULL };
	static const char *const bad[] = { "sh", "-c", "echo broken >&2; exit 3", NULL };
	static const char *const none[] = { "cloche-no-such-program", NULL };
	static const char *const slow[] = { "sleep", "100", NULL };
	_cleanup_buf_ struct buf out = { 0 };
	struct err e = { 0 };
	int before = fd_count_open();

	(void)state;
	assert_int_equal(proc_run(&(struct proc_spec){ .argv = ok, .out = &out }, &e), 0);
	assert_string_equal(out.data, "out\n");
	assert_true(proc_run(&(struct proc_spec){ .argv = bad }, &e) < 0);
	assert_string_equal(e.msg, "sh exited with 3: broken");
	assert_true(proc_run(&(struct proc_spec){ .argv = none }, &e) < 0);
	assert_string_equal(e.code, "program_missing");
	assert_true(proc_run(&(struct proc_spec){ .argv = slow, .timeout_s = 1 }, &e) < 0);
	assert_string_equal(e.code, "program_timeout");
	assert_int_equal(fd_count_open(), before);
}

static void descriptors_travel(void **state)
{
	int s[2], p[2], got[2];
	size_t n = 2;
	char b[8];

	(void)state;
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, s), 0);
	assert_int_equal(pipe(p), 0);
	assert_int_equal(fd_send_msg(s[0], "hi", 2, p, 2), 0);
	assert_int_equal(fd_recv_msg(s[1], b, sizeof(b), got, &n), 2);
	assert_int_equal(n, 2);
	assert_int_equal(write(got[1], "x", 1), 1);
	assert_int_equal(read(p[0], b, 1), 1);
	close(got[0]);
	close(got[1]);
	/* Too many descriptors: refused, none leaked. */
	int before = fd_count_open();

	assert_int_equal(fd_send_msg(s[0], "hi", 2, p, 2), 0);
	n = 1;
	assert_int_equal(fd_recv_msg(s[1], b, sizeof(b), got, &n), -EMSGSIZE);
	assert_int_equal(fd_count_open(), before);
	close(s[0]);
	close(s[1]);
	close(p[0]);
	close(p[1]);
}

struct loop_test {
	struct loop *loop;
	struct loop_source *timer, *reader;
	int fired, bytes, wfd;
};

static void on_timer(void *ctx)
{
	struct loop_test *t = ctx;

	t->fired++;
	assert_int_equal(write(t->wfd, "z", 1), 1);
	loop_remove(t->timer);
}

static void on_bytes(void *ctx, int fd, uint32_t events)
{
	struct loop_test *t = ctx;
	char c;

	(void)events;
	t->bytes += (int)read(fd, &c, 1);
	loop_remove(t->reader);
	loop_wake(t->loop);
}

static void on_wake(void *ctx)
{
	struct loop_test *t = ctx;

	loop_stop(t->loop);
}

static void loop_runs_timers_fds_and_wakes(void **state)
{
	struct loop_test t = { 0 };
	int p[2];

	(void)state;
	assert_int_equal(pipe(p), 0);
	t.wfd = p[1];
	assert_int_equal(loop_new(&t.loop, NULL), 0);
	loop_on_wake(t.loop, on_wake, &t);
	assert_int_equal(loop_add_timer(t.loop, on_timer, &t, &t.timer, NULL), 0);
	assert_int_equal(loop_add_fd(t.loop, p[0], EPOLLIN, on_bytes, &t, &t.reader, NULL), 0);
	loop_set_timer(t.timer, clock_mono_ns() + NSEC_PER_MSEC);
	assert_int_equal(loop_run(t.loop, NULL), 0);
	assert_int_equal(t.fired, 1);
	assert_int_equal(t.bytes, 1);
	loop_free(t.loop);
	close(p[0]);
	close(p[1]);
}

struct many_timers {
	struct loop *loop;
	struct timers *timers;
	struct timer t[300];
	uint64_t last; /* deadline of the one that fired before */
	int fired;
};

static struct many_timers many;

static void many_fire(void *ctx)
{
	struct timer *t = ctx;

	assert_true(t->at >= many.last && t->at <= clock_mono_ns());
	assert_true((t - many.t) % 3 != 0); /* those were cancelled */
	many.last = t->at;
	if (++many.fired == 200)
		loop_stop(many.loop);
}

static void timers_fire_in_order(void **state)
{
	uint64_t now = clock_mono_ns();

	(void)state;
	assert_int_equal(loop_new(&many.loop, NULL), 0);
	assert_int_equal(timers_new(many.loop, &many.timers, NULL), 0);
	for (uint64_t i = 0; i < 300; i++) /* 7919 is prime: every deadline once, shuffled */
		assert_int_equal(timer_set(many.timers, &many.t[i],
					   now + i * 7919 % 300 * (NSEC_PER_MSEC / 20), many_fire,
					   &many.t[i]),
				 0);
	for (size_t i = 0; i < 300; i += 3)
		timer_cancel(many.timers, &many.t[i]);
	assert_int_equal(loop_run(many.loop, NULL), 0);
	assert_int_equal(many.fired, 200);
	timers_free(many.timers);
	loop_free(many.loop);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(buffers_grow_and_consume),
		cmocka_unit_test(times_are_rfc3339),
		cmocka_unit_test(rfc3339_is_read_back),
		cmocka_unit_test(ids_are_valid_and_differ),
		cmocka_unit_test(json_problems_come_together),
		cmocka_unit_test(nearest_word),
		cmocka_unit_test(programs_report_their_end),
		cmocka_unit_test(descriptors_travel),
		cmocka_unit_test(loop_runs_timers_fds_and_wakes),
		cmocka_unit_test(timers_fire_in_order),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
