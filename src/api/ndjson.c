#include "api/ndjson.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "api/errors.h"
#include "base/base64.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "base/utf8.h"
#include "sandbox/agent_conn.h"

void ndjson_free(struct ndjson *n)
{
	buf_free(&n->out);
}

static int append(const char *p, size_t len, void *data)
{
	return buf_add(data, p, len);
}

/* Takes over line. */
static int put(struct ndjson *n, json_t *line)
{
	_cleanup_json_ json_t *owned = line;
	size_t before = n->out.len;

	if (!owned || json_dump_callback(owned, append, &n->out, JSON_COMPACT) ||
	    buf_add(&n->out, "\n", 1)) {
		n->out.len = before;
		return -ENOMEM;
	}
	return 0;
}

static json_t *line_new(struct ndjson *n, const char *type)
{
	return json_pack("{s:I,s:s}", "seq", (json_int_t)++n->seq, "type", type);
}

static int set(json_t *line, const char *name, json_t *value)
{
	return json_object_set_new(line, name, value);
}

int ndjson_start(struct ndjson *n, const char *process_id)
{
	json_t *line = line_new(n, "start");

	set(line, "processId", json_string(process_id));
	return put(n, line);
}

int ndjson_ping(struct ndjson *n)
{
	return put(n, line_new(n, "ping"));
}

static void set_cursor(struct ndjson *n, json_t *line)
{
	char cursor[NDJSON_CURSOR_LEN];

	if (!n->cursors)
		return;
	/* What is held back has not been shown. */
	snprintf(cursor, sizeof(cursor), "%llu.%llu",
		 (unsigned long long)(n->side[0].next - n->side[0].n),
		 (unsigned long long)(n->side[1].next - n->side[1].n));
	set(line, "cursor", json_string(cursor));
}

static json_t *base64_json(const void *p, size_t len)
{
	_cleanup_buf_ struct buf b = { 0 };

	return base64_encode(&b, p, len) ? NULL : json_stringn(b.data, b.len);
}

/* One line of output; its bytes are the side's no more. */
static int put_output(struct ndjson *n, bool is_stderr, uint64_t offset, const void *p, size_t len)
{
	bool text = utf8_valid(p, len);
	json_t *line = line_new(n, is_stderr ? "stderr" : "stdout");

	set(line, "offset", json_integer((json_int_t)offset));
	if (set(line, text ? "data" : "base64",
		text ? json_stringn(p, len) : base64_json(p, len))) {
		json_decref(line);
		return -ENOMEM;
	}
	set_cursor(n, line);
	return put(n, line);
}

/* Shows what is held back although its rest did not come. */
static int flush_side(struct ndjson *n, bool is_stderr)
{
	struct ndjson_side *s = &n->side[is_stderr];
	size_t len = s->n;

	s->n = 0;
	return len ? put_output(n, is_stderr, s->next - len, s->tail, len) : 0;
}

int ndjson_output(struct ndjson *n, bool is_stderr, uint64_t offset, const void *p, size_t len)
{
	struct ndjson_side *s = &n->side[is_stderr];
	_cleanup_buf_ struct buf all = { 0 };
	size_t good;
	bool cut;
	int r = 0;

	if (s->n && offset != s->next)
		r = flush_side(n, is_stderr);
	if (r == 0)
		r = buf_add(&all, s->tail, s->n);
	if (r == 0)
		r = buf_add(&all, p, len);
	if (r)
		return r;
	offset -= s->n;
	s->n = 0;
	s->next = offset + all.len;
	good = utf8_prefix(all.data, all.len, &cut);
	if (cut) {
		s->n = all.len - good;
		memcpy(s->tail, all.data + good, s->n);
		all.len = good;
	}
	return all.len ? put_output(n, is_stderr, offset, all.data, all.len) : 0;
}

int ndjson_dropped(struct ndjson *n, bool is_stderr, uint64_t offset, uint64_t bytes)
{
	json_t *line;
	int r = flush_side(n, is_stderr);

	if (r)
		return r;
	n->side[is_stderr].next = offset + bytes;
	line = line_new(n, "dropped");
	set(line, "stream", json_string(is_stderr ? "stderr" : "stdout"));
	set(line, "offset", json_integer((json_int_t)offset));
	set(line, "bytes", json_integer((json_int_t)bytes));
	set_cursor(n, line);
	return put(n, line);
}

static int flush(struct ndjson *n)
{
	return flush_side(n, false) ?: flush_side(n, true);
}

json_t *exit_json(const struct agent_exit *x)
{
	return json_pack("{s:o,s:o,s:b,s:I}", "code",
			 x->signal ? json_null() : json_integer(x->code), "signal",
			 x->signal ? json_integer(x->signal) : json_null(), "timedOut",
			 x->timed_out, "durationMs", (json_int_t)x->duration_ms);
}

int ndjson_exit(struct ndjson *n, const struct agent_exit *x)
{
	_cleanup_json_ json_t *status = exit_json(x);
	json_t *line;
	int r = flush(n);

	if (r)
		return r;
	line = line_new(n, "exit");
	json_object_update(line, status);
	set_cursor(n, line);
	return put(n, line);
}

int ndjson_end(struct ndjson *n)
{
	json_t *line;
	int r = flush(n);

	if (r)
		return r;
	line = line_new(n, "end");
	set(line, "state", json_string("running"));
	set_cursor(n, line);
	return put(n, line);
}

int ndjson_error(struct ndjson *n, const struct err *e, const char *request_id)
{
	_cleanup_json_ json_t *error = api_error_json(e, NULL, request_id);
	json_t *line;
	int r = flush(n);

	if (r)
		return r;
	line = line_new(n, "error");
	json_object_update(line, error);
	return put(n, line);
}

size_t ndjson_take(struct ndjson *n, char *p, size_t max)
{
	size_t len = n->out.len - n->taken;

	if (len > max)
		len = max;
	if (len)
		memcpy(p, n->out.data + n->taken, len);
	n->taken += len;
	if (n->taken == n->out.len) {
		buf_clear(&n->out);
		n->taken = 0;
	}
	return len;
}

int ndjson_cursor_parse(const char *text, uint64_t offset[2])
{
	char part[NDJSON_CURSOR_LEN];
	const char *dot = strchr(text, '.');
	int64_t v[2];

	if (!dot || (size_t)(dot - text) >= sizeof(part))
		return -EINVAL;
	memcpy(part, text, (size_t)(dot - text));
	part[dot - text] = '\0';
	if (str_to_int(part, 0, INT64_MAX, &v[0]) || str_to_int(dot + 1, 0, INT64_MAX, &v[1]))
		return -EINVAL;
	offset[0] = (uint64_t)v[0];
	offset[1] = (uint64_t)v[1];
	return 0;
}
