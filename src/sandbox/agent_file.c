/*
 * Bytes of files over an agent's stream. The digest of what passed is kept on both ends and
 * compared, so bytes damaged or lost on the way are an error and never a shorter file.
 */
#include <errno.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "sandbox/agent_priv.h"

#define WRITE_STEP (128u << 10)

static int take_or_timeout(struct agent_conn *c, struct frame *f, int timeout_ms, struct err *e)
{
	int r = agent_take(c, f, agent_deadline(timeout_ms), e);

	if (r == 0)
		r = agent_fail(c, e, "agent_timeout", ETIMEDOUT, "nothing from the agent in %d ms",
			       timeout_ms);
	return r;
}

static int read_end(struct agent_conn *c, const struct frame *f, struct err *e)
{
	_cleanup_json_ json_t *o = agent_json(c, f, e);

	if (!o)
		return -EPROTO;
	sha256_end_hex(&c->sha, c->sha_hex);
	c->sha_done = true;
	if (strcmp(json_get_str(o, "sha256", ""), c->sha_hex) != 0)
		return agent_fail(c, e, "checksum_mismatch", EIO,
				  "the bytes that came are not those the agent read");
	return 0;
}

int agent_read(struct agent_conn *c, const void **data, size_t *len, int timeout_ms, struct err *e)
{
	*len = 0;
	*data = NULL;
	while (!c->sha_done) {
		struct frame f;
		int r = take_or_timeout(c, &f, timeout_ms, e);

		if (r < 0)
			return r;
		if (f.type == FRAME_DATA_EOF)
			return read_end(c, &f, e);
		if (f.type != FRAME_DATA)
			return agent_fail(c, e, "agent_protocol", EPROTO, "frame %d in a file",
					  f.type);
		if (f.len == 0)
			continue;
		sha256_add(&c->sha, f.payload, f.len);
		*data = f.payload;
		*len = f.len;
		return 0;
	}
	return 0;
}

const char *agent_read_sha256(const struct agent_conn *c)
{
	return c->sha_hex;
}

int agent_write(struct agent_conn *c, const void *p, size_t n, int timeout_ms, struct err *e)
{
	const char *at = p;

	while (n) {
		size_t step = n < WRITE_STEP ? n : WRITE_STEP;
		int r;

		if (frame_put(&c->out, FRAME_DATA, at, step) < 0)
			return agent_fail(c, e, "system", ENOMEM, "send a file");
		sha256_add(&c->sha, at, step);
		r = agent_flush(c, agent_deadline(timeout_ms), e);
		if (r < 0)
			return r;
		at += step;
		n -= step;
	}
	return 0;
}

int agent_write_end(struct agent_conn *c, const char *want_sha256, json_t **reply, int timeout_ms,
		    struct err *e)
{
	_cleanup_buf_ struct buf text = { 0 };

	sha256_end_hex(&c->sha, c->sha_hex);
	if (want_sha256 && strcasecmp(want_sha256, c->sha_hex) != 0)
		return agent_fail(c, e, "checksum_mismatch", EINVAL,
				  "the bytes have SHA-256 %s, not %.64s", c->sha_hex, want_sha256);
	if (buf_printf(&text, "{\"sha256\":\"%s\"}", c->sha_hex) < 0 ||
	    frame_put(&c->out, FRAME_DATA_EOF, text.data, text.len) < 0)
		return agent_fail(c, e, "system", ENOMEM, "send a file");
	return agent_reply(c, reply, timeout_ms, e);
}

int agent_entries(struct agent_conn *c, json_t **part, bool *truncated, int timeout_ms,
		  struct err *e)
{
	struct frame f;
	json_t *v;
	int r = take_or_timeout(c, &f, timeout_ms, e);

	if (r < 0)
		return r;
	if (f.type != FRAME_ENTRIES && f.type != FRAME_END)
		return agent_fail(c, e, "agent_protocol", EPROTO, "frame %d in a listing", f.type);
	v = agent_json(c, &f, e);
	if (!v)
		return -EPROTO;
	if (f.type == FRAME_ENTRIES) {
		*part = v;
		return 0;
	}
	*part = NULL;
	*truncated = json_get_bool(v, "truncated", false);
	json_decref(v);
	return 0;
}
