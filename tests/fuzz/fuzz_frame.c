/* The frame reader, both ends': any bytes, in two pieces, give frames inside them or an error. */
#include <stdint.h>
#include <stdlib.h>

#include "base/buf.h"
#include "proto/frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	size_t at = 0;

	while (at < n) {
		_cleanup_buf_ struct buf again = { 0 };
		struct frame f;
		long used = frame_take(data + at, n - at, &f);

		if (used <= 0)
			return 0;
		if (f.payload < data + at || f.payload + f.len > data + n ||
		    (size_t)used != f.len + FRAME_HEADER_LEN)
			abort();
		/* What was taken is written back to the same bytes. */
		if (frame_put(&again, f.type, f.payload, f.len) < 0 || again.len != (size_t)used ||
		    __builtin_memcmp(again.data, data + at, again.len) != 0)
			abort();
		at += (size_t)used;
	}
	return 0;
}
