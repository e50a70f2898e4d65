/* The host's client against an agent that misbehaves: the other end of a socket pair. */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "proto/agent.h"
#include "proto/frame.h"
#include "sandbox/agent_conn.h"

/* A connection and the agent's end of it; what the agent says goes in `say` first. */
static struct agent_conn *open_pair(int *peer)
{
	struct agent_conn *c = NULL;
	struct err e = { 0 };
	int sv[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv), 0);
	assert_int_equal(agent_open(sv[0], "exec", NULL, &c, &e), 0);
	*peer = sv[1];
	return c;
}

static void say(int peer, enum frame_type type, const char *text)
{
	_cleanup_buf_ struct buf b = { 0 };

	assert_int_equal(frame_put(&b, type, text, strlen(text)), 0);
	assert_int_equal(fd_write_full(peer, b.data, b.len), 0);
}

/* The code of the error that the next event must be after the agent said p[n] and closed. */
static const char *after(const void *p, size_t n)
{
	_cleanup_agent_conn_ struct agent_conn *c = NULL;
	static struct err e;
	struct agent_event ev;
	int peer;

	e = (struct err){ 0 };
	c = open_pair(&peer);
	assert_int_equal(fd_write_full(peer, p, n), 0);
	close(peer);
	return agent_next(c, &ev, 10000, &e) < 0 ? e.code : "none";
}

static void early_end_is_never_success(void **state)
{
	_cleanup_buf_ struct buf b = { 0 };
	static const char exit_text[] = "{\"code\":0,\"signal\":null,\"timedOut\":false}";

	(void)state;
	assert_int_equal(frame_put(&b, FRAME_EXIT, exit_text, strlen(exit_text)), 0);
	for (size_t n = 0; n < b.len; n++)
		assert_string_equal(after(b.data, n), "stream_broken");
	assert_string_equal(after(b.data, b.len), "none");
}

static void exits_that_are_none(void **state)
{
	static const char *const bad[] = {
		"{}",
		"{\"code\":null,\"signal\":null}",
		"{\"code\":0,\"signal\":9}",
		"{\"code\":256,\"signal\":null}",
		"{\"code\":-1}",
		"{\"code\":\"0\"}",
		"{\"code\":null,\"signal\":900}",
		"[]",
		"0",
		"{",
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		_cleanup_buf_ struct buf b = { 0 };

		assert_int_equal(frame_put(&b, FRAME_EXIT, bad[i], strlen(bad[i])), 0);
		assert_string_equal(after(b.data, b.len), "agent_protocol");
	}
}

static void frames_that_are_wrong(void **state)
{
	static const uint8_t taken[16] = { 8, 0, 0, 0, FRAME_STDIN_TAKEN, 0, 0, 0, 1 };
	static const uint8_t request[8] = { 0, 0, 0, 0, FRAME_REQUEST };
	static const uint8_t bare[8] = { 0, 0, 0, 0, FRAME_STDOUT };

	(void)state;
	assert_string_equal(after("HTTP/1.1 200 OK\r\n", 17), "agent_protocol");
	assert_string_equal(after(taken, sizeof(taken)), "agent_protocol"); /* none was sent */
	assert_string_equal(after(request, sizeof(request)), "agent_protocol");
	assert_string_equal(after(bare, sizeof(bare)), "agent_protocol");
}

static void errors_keep_their_code(void **state)
{
	_cleanup_agent_conn_ struct agent_conn *c = NULL;
	struct err e = { 0 };
	int peer;

	(void)state;
	c = open_pair(&peer);
	say(peer, FRAME_ERROR, "{\"code\":\"no_space\",\"message\":\"m\",\"fix\":\"f\"}");
	assert_true(agent_reply(c, NULL, 10000, &e) < 0);
	assert_string_equal(e.code, "no_space");
	assert_string_equal(e.msg, "m");
	assert_string_equal(e.fix, "f");
	close(peer);
	agent_free(steal_ptr(c));
	c = open_pair(&peer);
	say(peer, FRAME_ERROR, "{\"code\":\"from_a_newer_agent\",\"message\":\"m\"}");
	assert_true(agent_reply(c, NULL, 10000, &e) < 0);
	assert_string_equal(e.code, "agent_error");
	close(peer);
}

static void deadlines(void **state)
{
	_cleanup_agent_conn_ struct agent_conn *c = NULL;
	struct agent_event ev;
	struct err e = { 0 };
	int peer;

	(void)state;
	c = open_pair(&peer);
	assert_int_equal(agent_next(c, &ev, 0, &e), 0);
	assert_int_equal(agent_next(c, &ev, 20, &e), 0);
	assert_true(agent_reply(c, NULL, 20, &e) < 0);
	assert_string_equal(e.code, "agent_timeout");
	assert_true(agent_next(c, &ev, 20, &e) < 0); /* useless from now on */
	close(peer);
}

/* All frames the agent's end got so far, as "type:len type:len …". */
static void heard(int peer, char *out, size_t n)
{
	static uint8_t buf[1 << 20];
	ssize_t got = recv(peer, buf, sizeof(buf), MSG_DONTWAIT);
	struct frame f;
	long used;

	*out = '\0';
	for (ssize_t at = 0; at < got; at += used) {
		size_t len = strlen(out);

		used = frame_take(buf + at, (size_t)(got - at), &f);
		assert_true(used > 0);
		snprintf(out + len, n - len, "%d:%zu ", f.type,
			 f.type == FRAME_REQUEST ? 0 : f.len);
	}
}

/* Input stays within the agent's window; a signal passes it, a cancel drops it. */
static void stdin_window(void **state)
{
	static const char in[AGENT_STDIN_WINDOW * 2];
	_cleanup_agent_conn_ struct agent_conn *c = NULL;
	static const uint8_t taken[8] = { 0, 0, 1 }; /* 65536 */
	_cleanup_buf_ struct buf b = { 0 };
	struct agent_event ev;
	struct err e = { 0 };
	char text[256];
	int peer, big = 4 << 20;

	(void)state;
	c = open_pair(&peer);
	assert_int_equal(setsockopt(agent_fd(c), SOL_SOCKET, SO_SNDBUF, &big, sizeof(big)), 0);
	assert_int_equal(agent_stdin(c, in, sizeof(in), &e), 0);
	for (int i = 0; i < 50 && agent_stdin_queued(c) > AGENT_STDIN_WINDOW; i++) {
		assert_int_equal(agent_next(c, &ev, 0, &e), 0);
		heard(peer, text, sizeof(text));
	}
	assert_int_equal(agent_stdin_queued(c), AGENT_STDIN_WINDOW);
	assert_int_equal(agent_signal(c, SIGINT, &e), 0);
	heard(peer, text, sizeof(text));
	assert_non_null(strstr(text, "4:12 "));
	assert_int_equal(frame_put(&b, FRAME_STDIN_TAKEN, taken, 8), 0);
	assert_int_equal(fd_write_full(peer, b.data, b.len), 0);
	assert_int_equal(agent_next(c, &ev, 0, &e), 0);
	heard(peer, text, sizeof(text));
	assert_string_equal(text, "2:65536 ");
	assert_int_equal(agent_cancel(c, &e), 0);
	assert_int_equal(agent_stdin_queued(c), 0);
	heard(peer, text, sizeof(text));
	assert_string_equal(text, "5:0 ");
	close(peer);
}

/* A file whose bytes were damaged on the way, or whose end is missing, is an error. */
static void damaged_files(void **state)
{
	_cleanup_agent_conn_ struct agent_conn *c = NULL;
	struct err e = { 0 };
	const void *p;
	size_t n;
	int peer;

	(void)state;
	c = open_pair(&peer);
	say(peer, FRAME_DATA, "abd");
	say(peer, FRAME_DATA_EOF,
	    "{\"sha256\":\"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad\"}");
	assert_int_equal(agent_read(c, &p, &n, 10000, &e), 0);
	assert_int_equal(n, 3);
	assert_true(agent_read(c, &p, &n, 10000, &e) < 0);
	assert_string_equal(e.code, "checksum_mismatch");
	close(peer);
	agent_free(steal_ptr(c));
	c = open_pair(&peer);
	say(peer, FRAME_DATA, "abc");
	close(peer);
	assert_int_equal(agent_read(c, &p, &n, 10000, &e), 0);
	assert_true(agent_read(c, &p, &n, 10000, &e) < 0);
	assert_string_equal(e.code, "stream_broken");
}

/* An error that the agent sends in the middle of an upload is returned, not "broken pipe". */
static void upload_refused_midway(void **state)
{
	static const char bytes[1 << 20];
	_cleanup_agent_conn_ struct agent_conn *c = NULL;
	struct err e = { 0 };
	int peer, r = 0;

	(void)state;
	c = open_pair(&peer);
	say(peer, FRAME_ERROR, "{\"code\":\"no_space\",\"message\":\"m\"}");
	assert_int_equal(shutdown(peer, SHUT_WR), 0);
	for (int i = 0; i < 100 && r == 0; i++)
		r = agent_write(c, bytes, sizeof(bytes), 10000, &e);
	assert_true(r < 0);
	assert_string_equal(e.code, "no_space");
	close(peer);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(early_end_is_never_success),
		cmocka_unit_test(exits_that_are_none),
		cmocka_unit_test(frames_that_are_wrong),
		cmocka_unit_test(errors_keep_their_code),
		cmocka_unit_test(deadlines),
		cmocka_unit_test(stdin_window),
		cmocka_unit_test(damaged_files),
		cmocka_unit_test(upload_refused_midway),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
