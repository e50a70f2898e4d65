/* Pure functions over byte buffers: no I/O, no state; tests/fuzz feeds frame_take() directly. */
#include "proto/frame.h"

#include <errno.h>
#include <stdbool.h>

#include "base/buf.h"

static bool type_known(uint8_t t)
{
	return (t >= FRAME_REQUEST && t <= FRAME_RESIZE) || (t >= FRAME_REPLY && t <= FRAME_END) ||
	       t == FRAME_DATA || t == FRAME_DATA_EOF;
}

int frame_put(struct buf *b, enum frame_type type, const void *payload, size_t len)
{
	uint8_t h[FRAME_HEADER_LEN] = { (uint8_t)len, (uint8_t)(len >> 8), (uint8_t)(len >> 16),
					(uint8_t)(len >> 24), (uint8_t)type };

	if (len > FRAME_PAYLOAD_MAX)
		return -EMSGSIZE;
	if (buf_reserve(b, sizeof(h) + len) < 0)
		return -ENOMEM;
	buf_add(b, h, sizeof(h));
	return buf_add(b, payload, len);
}

long frame_take(const uint8_t *p, size_t n, struct frame *out)
{
	uint32_t len;

	if (n < FRAME_HEADER_LEN)
		return 0;
	len = (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
	if (len > FRAME_PAYLOAD_MAX || p[5] || p[6] || p[7] || !type_known(p[4]))
		return -EPROTO;
	if (n - FRAME_HEADER_LEN < len)
		return 0;
	out->type = p[4];
	out->payload = p + FRAME_HEADER_LEN;
	out->len = len;
	return (long)(FRAME_HEADER_LEN + len);
}
