/* Frames: what is put is taken, and everything that is not a frame is refused. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "proto/frame.h"

static void round_trip(void **state)
{
	_cleanup_buf_ struct buf b = { 0 };
	struct frame f;

	(void)state;
	assert_int_equal(frame_put(&b, FRAME_STDIN, "hello", 5), 0);
	assert_int_equal(b.len, 13);
	for (size_t n = 0; n < 13; n++)
		assert_int_equal(frame_take((uint8_t *)b.data, n, &f), 0);
	assert_int_equal(frame_take((uint8_t *)b.data, 13, &f), 13);
	assert_int_equal(f.type, FRAME_STDIN);
	assert_int_equal(f.len, 5);
	assert_memory_equal(f.payload, "hello", 5);
}

static void hostile_headers(void **state)
{
	static const uint8_t too_long[8] = { 1, 0, 4, 0, FRAME_DATA };
	static const uint8_t bad_type[8] = { 0, 0, 0, 0, 99 };
	static const uint8_t reserved[8] = { 0, 0, 0, 0, FRAME_DATA, 0, 1 };
	struct frame f;

	(void)state;
	assert_int_equal(frame_take(too_long, 8, &f), -EPROTO);
	assert_int_equal(frame_take(bad_type, 8, &f), -EPROTO);
	assert_int_equal(frame_take(reserved, 8, &f), -EPROTO);
}

static void too_large_to_put(void **state)
{
	_cleanup_buf_ struct buf b = { 0 };
	static uint8_t big[FRAME_PAYLOAD_MAX + 1];

	(void)state;
	assert_int_equal(frame_put(&b, FRAME_DATA, big, sizeof(big)), -EMSGSIZE);
	assert_int_equal(frame_put(&b, FRAME_DATA, big, FRAME_PAYLOAD_MAX), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(round_trip),
					    cmocka_unit_test(hostile_headers),
					    cmocka_unit_test(too_large_to_put) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
