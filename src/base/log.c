/*
 * A line is built in a buffer on the stack with its strings escaped, then written with one
 * write(2), so lines of several threads and processes never mix. What does not fit is cut at a
 * field's end and the line says "cut":true.
 */
#include "base/log.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"

#define LINE_MAX_BYTES 2048
#define TAIL_ROOM 16 /* for `,"cut":true}\n` */

static const char *log_program = "cloche";
static enum log_level log_lowest = LOG_INFO;
static const char *const level_names[] = { "debug", "info", "warn", "error" };

struct line {
	char b[LINE_MAX_BYTES];
	size_t n;
	bool cut;
};

void log_init(const char *program, enum log_level lowest)
{
	log_program = program;
	log_lowest = lowest;
}

static bool line_put(struct line *l, const char *s, size_t n)
{
	if (l->n + n > sizeof(l->b) - TAIL_ROOM)
		return false;
	memcpy(l->b + l->n, s, n);
	l->n += n;
	return true;
}

static bool line_quoted(struct line *l, const char *s)
{
	static const char hex[] = "0123456789abcdef";

	if (!line_put(l, "\"", 1))
		return false;
	for (; *s; s++) {
		unsigned char c = (unsigned char)*s;
		char esc[6] = { '\\', 'u', '0', '0', hex[c >> 4], hex[c & 15] };
		bool ok;

		if (c == '"' || c == '\\')
			ok = line_put(l, "\\", 1) && line_put(l, s, 1);
		else if (c < 0x20 || c == 0x7f)
			ok = line_put(l, esc, sizeof(esc));
		else
			ok = line_put(l, s, 1);
		if (!ok)
			return false;
	}
	return line_put(l, "\"", 1);
}

static void line_field(struct line *l, const char *key, const char *value)
{
	size_t mark = l->n;
	bool ok;

	if (l->cut)
		return;
	ok = line_put(l, mark == 1 ? "" : ",", mark == 1 ? 0 : 1) && line_quoted(l, key) &&
	     line_put(l, ":", 1) && (value ? line_quoted(l, value) : line_put(l, "null", 4));
	if (!ok) {
		l->n = mark;
		l->cut = true;
	}
}

static void line_start(struct line *l, enum log_level level, const char *msg)
{
	char when[CLOCK_RFC3339_LEN];

	l->n = 0;
	l->cut = false;
	line_put(l, "{", 1);
	clock_rfc3339(clock_wall_ms(), when);
	line_field(l, "time", when);
	line_field(l, "level", level_names[level]);
	line_field(l, "program", log_program);
	line_field(l, "msg", msg);
}

static void line_write(struct line *l)
{
	static const char cut[] = ",\"cut\":true";
	ssize_t ignored;

	if (l->cut) {
		memcpy(l->b + l->n, cut, sizeof(cut) - 1);
		l->n += sizeof(cut) - 1;
	}
	l->b[l->n++] = '}';
	l->b[l->n++] = '\n';
	/* A log that cannot be written has nowhere left to complain to. */
	ignored = write(STDERR_FILENO, l->b, l->n);
	(void)ignored;
}

void log_event(enum log_level level, const char *msg, ...)
{
	struct line l;
	const char *key;
	va_list ap;

	if (level < log_lowest)
		return;
	line_start(&l, level, msg);
	va_start(ap, msg);
	while ((key = va_arg(ap, const char *)))
		line_field(&l, key, va_arg(ap, const char *));
	va_end(ap);
	line_write(&l);
}

void log_msg(enum log_level level, const char *fmt, ...)
{
	char msg[1024];
	struct line l;
	va_list ap;

	if (level < log_lowest)
		return;
	va_start(ap, fmt);
	vsnprintf(msg, sizeof(msg), fmt, ap);
	va_end(ap);
	line_start(&l, level, msg);
	line_write(&l);
}

void log_err(enum log_level level, const struct err *e, const char *what)
{
	char msg[1024];

	snprintf(msg, sizeof(msg), "%s: %s", what, e->msg);
	log_event(level, msg, "code", e->code, NULL);
}
