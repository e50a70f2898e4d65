/* The agent's pure parts: rings, requests, the kernel's command line. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "agent/cmdline.h"
#include "agent/request.h"
#include "agent/ring.h"
#include "base/err.h"
#include "base/json.h"

static uint8_t byte_at(uint64_t offset)
{
	return (uint8_t)(offset * 31 + (offset >> 8));
}

static void check_ring(const struct ring *r)
{
	const uint8_t *p;
	size_t n;

	for (uint64_t at = r->start; (n = ring_peek(r, at, &p)); at += n)
		for (size_t i = 0; i < n; i++)
			if (p[i] != byte_at(at + i))
				fail_msg("byte at offset %llu", (unsigned long long)(at + i));
}

/* Every byte kept reads back at its own offset, through growth and many turns of the ring. */
static void ring_keeps_offsets(void **state)
{
	static uint8_t piece[RING_MIN];
	struct ring r = { 0 };
	unsigned seed = 1;

	(void)state;
	assert_int_equal(ring_grow(&r), 0);
	for (int round = 0; round < 400; round++) {
		size_t n;

		seed = seed * 1103515245 + 12345;
		n = seed >> 8 & (RING_MIN - 1);
		for (size_t i = 0; i < n; i++)
			piece[i] = byte_at(r.end + i);
		ring_write(&r, piece, n);
		assert_true(r.end - r.start <= r.cap);
		if (round % 50 == 0 || round < 20)
			check_ring(&r);
		if (round == 10 || round == 100)
			assert_int_equal(ring_grow(&r), 0);
	}
	assert_int_equal(r.cap, 4 * RING_MIN);
	assert_int_equal(r.end - r.start, r.cap);
	ring_free(&r);
	assert_int_equal(r.start, r.end);
}

static void ring_full_to_the_byte(void **state)
{
	static uint8_t piece[RING_MIN];
	struct ring r = { 0 };
	const uint8_t *p;

	(void)state;
	assert_int_equal(ring_grow(&r), 0);
	ring_write(&r, piece, RING_MIN);
	assert_int_equal(r.start, 0);
	assert_int_equal(ring_peek(&r, 0, &p), RING_MIN);
	ring_write(&r, "x", 1);
	assert_int_equal(r.start, 1);
	assert_int_equal(ring_peek(&r, r.end, &p), 0);
	assert_int_equal(ring_peek(&r, r.end - 1, &p), 1);
	assert_int_equal(*p, 'x');
	ring_free(&r);
}

static const char *refused(const char *text, struct err *e)
{
	enum agent_op op;
	json_t *o = request_parse(text, strlen(text), &op, e);

	if (o) {
		json_decref(o);
		return "accepted";
	}
	return e->code;
}

static void requests_accepted(void **state)
{
	static const struct {
		const char *text;
		enum agent_op op;
	} good[] = {
		{ "{\"op\":\"hello\"}", OP_HELLO },
		{ "{\"op\":\"exec\",\"argv\":[\"ls\",\"\"],\"env\":{\"A\":\"=\"},\"cwd\":\"/\","
		  "\"user\":null,\"timeoutMs\":1,\"stdin\":false}",
		  OP_EXEC },
		{ "{\"op\":\"exec\",\"command\":\"ls\",\"tty\":{\"rows\":1,\"cols\":1000}}",
		  OP_EXEC },
		{ "{\"op\":\"file.write\",\"path\":\"/a/../b\",\"mode\":4095}", OP_FILE_WRITE },
		{ "{\"op\":\"stop\"}", OP_STOP },
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(good); i++) {
		struct err e = { 0 };
		enum agent_op op = OP_COUNT;
		json_t *o = request_parse(good[i].text, strlen(good[i].text), &op, &e);

		if (!o)
			fail_msg("%s: %s", good[i].text, e.msg);
		assert_int_equal(op, good[i].op);
		json_decref(o);
	}
}

static void requests_refused(void **state)
{
	static const char *const bad[] = {
		"",
		"{",
		"[]",
		"null",
		"{}",
		"{\"op\":1}",
		"{\"op\":\"\"}",
		"{\"op\":\"hello\",\"op\":\"stop\"}",
		"{\"op\":\"hello\",\"x\":1}",
		"{\"op\":\"exec\"}",
		"{\"op\":\"exec\",\"argv\":[]}",
		"{\"op\":\"exec\",\"argv\":[1]}",
		"{\"op\":\"exec\",\"argv\":\"ls\"}",
		"{\"op\":\"exec\",\"argv\":[\"a\\u0000b\"]}",
		"{\"op\":\"exec\",\"argv\":[\"a\"],\"command\":\"a\"}",
		"{\"op\":\"exec\",\"command\":\"\"}",
		"{\"op\":\"exec\",\"argv\":[\"a\"],\"env\":{\"A=B\":\"\"}}",
		"{\"op\":\"exec\",\"argv\":[\"a\"],\"env\":{\"\":\"\"}}",
		"{\"op\":\"exec\",\"argv\":[\"a\"],\"timeoutMs\":0}",
		"{\"op\":\"exec\",\"argv\":[\"a\"],\"tty\":{\"rows\":0,\"cols\":1}}",
		"{\"op\":\"exec\",\"argv\":[\"a\"],\"tty\":{\"rows\":1,\"colums\":1}}",
		"{\"op\":\"signal\",\"processId\":\"p\",\"signal\":65}",
		"{\"op\":\"file.read\",\"path\":\"a\"}",
		"{\"op\":\"file.read\",\"path\":\"/a\",\"offset\":-1}",
		"{\"op\":\"file.write\",\"path\":\"/a\",\"mode\":4096}",
		"{\"op\":\"file.list\",\"path\":\"/a\",\"depth\":17}",
		"{\"op\":\"file.move\",\"from\":\"/a\",\"to\":\"b\"}",
		"{\"op\":\"hello\"} x",
		"{\"op\":\"file.stat\",\"path\":\"/\xff\"}",
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		struct err e = { 0 };

		if (strcmp(refused(bad[i], &e), "bad_request") != 0)
			fail_msg("%s: %s", bad[i], refused(bad[i], &e));
		assert_true(e.msg[0]);
	}
}

static void kernel_command_line(void **state)
{
	static const char line[] =
		"console=ttyS0 xcloche.root=/no cloche.root=/dev/vda cloche.root=/dev/vdb empty=\n";
	char out[16];

	(void)state;
	assert_true(cmdline_find(line, "cloche.root=", out, sizeof(out)));
	assert_string_equal(out, "/dev/vda");
	assert_false(cmdline_find(line, "empty=", out, sizeof(out)));
	assert_false(cmdline_find(line, "absent=", out, sizeof(out)));
	assert_false(cmdline_find("a=0123456789012345", "a=", out, sizeof(out)));
	assert_true(cmdline_find("a=012345678901234", "a=", out, sizeof(out)));
	assert_false(cmdline_find("", "a=", out, sizeof(out)));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ring_keeps_offsets),  cmocka_unit_test(ring_full_to_the_byte),
		cmocka_unit_test(requests_accepted),   cmocka_unit_test(requests_refused),
		cmocka_unit_test(kernel_command_line),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
