/*
 * Tables are kept whole and printed at once; widths count code points, which is right for all but
 * East Asian and combining text, where columns may shift but nothing is lost.
 *
 * The progress thread and its owner share `struct progress` under its lock. The thread sleeps on
 * the condition until a step lasts a second, then redraws ten times a second.
 */
#include "cli/term.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"

#define TABLE_COLS_MAX 12

/* The code point at s and its length in *len; -1 (length 1) when it is not UTF-8. */
static int32_t utf8_next(const unsigned char *s, size_t *len)
{
	static const int32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
	size_t n = s[0] < 0x80	     ? 1
		   : s[0] >> 5 == 6  ? 2
		   : s[0] >> 4 == 14 ? 3
		   : s[0] >> 3 == 30 ? 4
				     : 0;
	int32_t cp;

	*len = 1;
	if (n == 1)
		return s[0];
	if (n == 0)
		return -1;
	cp = s[0] & (0x7f >> n);
	for (size_t i = 1; i < n; i++) {
		if ((s[i] & 0xc0) != 0x80)
			return -1;
		cp = cp << 6 | (s[i] & 0x3f);
	}
	if (cp < least[n] || cp > 0x10ffff || (cp >= 0xd800 && cp <= 0xdfff))
		return -1;
	*len = n;
	return cp;
}

/* Code points that move the cursor, talk to the terminal or reorder what is read. */
static bool is_unsafe(int32_t cp)
{
	return cp < 0x20 || (cp >= 0x7f && cp < 0xa0) || cp == 0x61c || cp == 0x200e ||
	       cp == 0x200f || cp == 0x2028 || cp == 0x2029 || (cp >= 0x202a && cp <= 0x202e) ||
	       (cp >= 0x2066 && cp <= 0x2069) || cp == 0xfeff;
}

int term_escape(struct buf *b, const char *s)
{
	const unsigned char *p = (const unsigned char *)s;
	size_t len;
	int ret = buf_reserve(b, strlen(s));

	for (; *p && ret == 0; p += len) {
		int32_t cp = utf8_next(p, &len);

		if (cp < 0)
			ret = buf_printf(b, "\\x%02x", *p);
		else if (cp == '\n' || cp == '\t' || cp == '\r')
			ret = buf_printf(b, "\\%c", cp == '\n' ? 'n' : cp == '\t' ? 't' : 'r');
		else if (is_unsafe(cp) && cp < 0x80)
			ret = buf_printf(b, "\\x%02x", (unsigned)cp);
		else if (is_unsafe(cp))
			ret = buf_printf(b, "\\u{%04x}", (unsigned)cp);
		else
			ret = buf_add(b, p, len);
	}
	return ret;
}

void term_print(FILE *f, const char *s)
{
	_cleanup_buf_ struct buf b = { 0 };

	if (term_escape(&b, s) == 0)
		fwrite(b.data, 1, b.len, f);
}

void term_duration(int64_t ms, char out[TERM_DURATION_LEN])
{
	static const struct {
		int64_t ms;
		const char *unit;
	} units[] = { { 86400000, "d" }, { 3600000, "h" }, { 60000, "m" }, { 1000, "s" } };

	if (ms < 0)
		ms = 0;
	for (size_t i = 0; i < ARRAY_SIZE(units); i++) {
		if (ms < units[i].ms * (i + 1 < ARRAY_SIZE(units) ? 2 : 1))
			continue;
		snprintf(out, TERM_DURATION_LEN, "%lld%s", (long long)(ms / units[i].ms),
			 units[i].unit);
		return;
	}
	snprintf(out, TERM_DURATION_LEN, "%dms", (int)ms);
}

struct table {
	size_t cols, rows;
	size_t width[TABLE_COLS_MAX];
	char **cells; /* rows * cols, escaped */
};

static size_t width_of(const char *s)
{
	size_t n = 0;

	for (; *s; s++)
		n += ((unsigned char)*s & 0xc0) != 0x80;
	return n;
}

int table_row(struct table *t, const char *const *cells, struct err *e)
{
	char **grown = reallocarray(t->cells, (t->rows + 1) * t->cols, sizeof(*grown));

	if (!grown)
		return err_errno(e, ENOMEM, "print the table");
	t->cells = grown;
	memset(&t->cells[t->rows * t->cols], 0, t->cols * sizeof(*grown));
	t->rows++;
	for (size_t i = 0; i < t->cols; i++) {
		_cleanup_buf_ struct buf b = { 0 };
		char *cell = NULL;

		if (term_escape(&b, cells[i] ? cells[i] : "-") == 0)
			cell = buf_steal(&b);
		if (!cell)
			return err_errno(e, ENOMEM, "print the table");
		t->cells[(t->rows - 1) * t->cols + i] = cell;
		if (width_of(cell) > t->width[i])
			t->width[i] = width_of(cell);
	}
	return 0;
}

int table_new(const char *const *heads, size_t cols, struct table **out, struct err *e)
{
	struct table *t = cols <= TABLE_COLS_MAX ? calloc(1, sizeof(*t)) : NULL;
	int ret;

	if (!t)
		return err_errno(e, ENOMEM, "make a table");
	t->cols = cols;
	ret = table_row(t, heads, e);
	if (ret < 0) {
		table_free(t);
		return ret;
	}
	*out = t;
	return 0;
}

void table_print(const struct table *t, FILE *f)
{
	for (size_t r = 0; r < t->rows; r++) {
		for (size_t i = 0; i < t->cols; i++) {
			const char *cell = t->cells[r * t->cols + i];
			size_t pad = i + 1 < t->cols ? t->width[i] - width_of(cell) + 2 : 0;

			fprintf(f, "%s%*s", cell, (int)pad, "");
		}
		fputc('\n', f);
	}
}

void table_free(struct table *t)
{
	if (!t)
		return;
	for (size_t i = 0; i < t->rows * t->cols; i++)
		free(t->cells[i]);
	free(t->cells);
	free(t);
}

struct progress {
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t wake;
	bool started, ended, log, tty, drawn;
	uint64_t since; /* clock_mono_ns() of the current step; 0: none */
	char text[160];
};

static void clear_line(struct progress *p)
{
	if (p->drawn)
		fputs("\r\033[K", stderr);
	p->drawn = false;
}

static void draw(struct progress *p)
{
	static const char *const frames[] = { "|", "/", "-", "\\" };
	uint64_t ns = clock_mono_ns() - p->since;

	fprintf(stderr, "\r\033[K%s %.60s  %.1f s", frames[ns / (100 * NSEC_PER_MSEC) % 4], p->text,
		(double)ns / (double)NSEC_PER_SEC);
	p->drawn = true;
}

static void *progress_run(void *ctx)
{
	struct progress *p = ctx;

	pthread_mutex_lock(&p->lock);
	while (!p->ended) {
		struct timespec t;
		uint64_t at;

		if (!p->since) {
			pthread_cond_wait(&p->wake, &p->lock);
			continue;
		}
		if (clock_mono_ns() - p->since >= NSEC_PER_SEC)
			draw(p);
		at = p->drawn ? clock_mono_ns() + 100 * NSEC_PER_MSEC : p->since + NSEC_PER_SEC;
		t = (struct timespec){ .tv_sec = (time_t)(at / NSEC_PER_SEC),
				       .tv_nsec = (long)(at % NSEC_PER_SEC) };
		pthread_cond_timedwait(&p->wake, &p->lock, &t);
	}
	pthread_mutex_unlock(&p->lock);
	return NULL;
}

struct progress *progress_new(bool log)
{
	struct progress *p = calloc(1, sizeof(*p));
	pthread_condattr_t attr;

	if (!p)
		return NULL;
	p->log = log;
	p->tty = isatty(STDERR_FILENO);
	pthread_mutex_init(&p->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&p->wake, &attr);
	pthread_condattr_destroy(&attr);
	if (p->tty)
		p->started = pthread_create(&p->thread, NULL, progress_run, p) == 0;
	return p;
}

/* Leaves the line of a finished step. Under the lock. */
static void step_end(struct progress *p, bool ok)
{
	clear_line(p);
	if (p->since && p->log)
		fprintf(stderr, "%s %-48s %6.1f s\n", ok ? " ok " : "FAIL", p->text,
			(double)(clock_mono_ns() - p->since) / (double)NSEC_PER_SEC);
	p->since = 0;
}

void progress_step(struct progress *p, const char *fmt, ...)
{
	va_list ap;

	if (!p)
		return;
	pthread_mutex_lock(&p->lock);
	step_end(p, true);
	va_start(ap, fmt);
	vsnprintf(p->text, sizeof(p->text), fmt, ap);
	va_end(ap);
	p->since = clock_mono_ns();
	pthread_cond_signal(&p->wake);
	pthread_mutex_unlock(&p->lock);
}

void progress_pause(struct progress *p)
{
	if (!p)
		return;
	pthread_mutex_lock(&p->lock);
	clear_line(p);
	p->since = 0;
	pthread_mutex_unlock(&p->lock);
}

void progress_free(struct progress *p, bool ok)
{
	if (!p)
		return;
	pthread_mutex_lock(&p->lock);
	step_end(p, ok);
	p->ended = true;
	pthread_cond_signal(&p->wake);
	pthread_mutex_unlock(&p->lock);
	if (p->started)
		pthread_join(p->thread, NULL);
	pthread_cond_destroy(&p->wake);
	pthread_mutex_destroy(&p->lock);
	free(p);
}
