/*
 * The thread waits for stdin and for `stop`; what it read is sent at an offset and answered when
 * the command has taken it, so at most one piece is in flight and memory is bounded. An answer
 * that came too late or not at all leaves open how much was taken: the process is asked, and the
 * rest is sent again.
 */
#include "cli/feed.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/json.h"
#include "cli/http.h"
#include "cli/sandbox.h"

#define PIECE (128u << 10)

struct feed {
	pthread_t thread;
	struct http *http;
	int stop; /* eventfd */
	char *sandbox;
	struct buf process; /* "/processes/ID" */
	uint64_t offset;    /* of the next byte to send */
	char piece[PIECE];
};

bool feed_wanted(void)
{
	struct stat st;

	return !isatty(STDIN_FILENO) && fstat(STDIN_FILENO, &st) == 0 &&
	       !(S_ISCHR(st.st_mode) && st.st_rdev == makedev(1, 3));
}

static int on_stop(void *ctx)
{
	(void)ctx;
	return -EINTR;
}

/* Asks how much of [offset, offset + *n) was taken, and moves on by that. */
static int resync(struct feed *f, const char **p, size_t *n, struct err *e)
{
	_cleanup_json_ json_t *process = NULL;
	uint64_t taken;
	int ret = sandbox_call_on(f->http, "GET", f->sandbox, f->process.data, NULL, &process, e);

	if (ret < 0)
		return ret;
	taken = (uint64_t)json_get_int(process, "stdinBytes", 0);
	if (taken < f->offset || taken > f->offset + *n)
		return err_set(e, "broken", EPROTO, "someone else feeds the command too");
	*p += taken - f->offset;
	*n -= (size_t)(taken - f->offset);
	f->offset = taken;
	return 0;
}

/* One piece, all of it; eof: it is the last. */
static int send_piece(struct feed *f, const char *p, size_t n, bool eof, struct err *e)
{
	for (;;) {
		_cleanup_buf_ struct buf tail = { 0 }, path = { 0 };
		int ret;

		if (buf_printf(&tail, "%s/stdin?offset=%llu%s", f->process.data,
			       (unsigned long long)f->offset, eof ? "&eof=true" : "") < 0)
			return err_errno(e, ENOMEM, "send stdin");
		ret = sandbox_path(&path, f->sandbox, tail.data, e);
		ret = ret ?: http_post_bytes(f->http, path.data, p, n, e);
		if (ret == 0) {
			f->offset += n;
			return 0;
		}
		if (strcmp(http_failure(f->http)->code, "agent_timeout") != 0)
			return ret;
		ret = resync(f, &p, &n, e);
		if (ret < 0)
			return ret;
	}
}

static void *feed_run(void *ctx)
{
	struct feed *f = ctx;
	struct pollfd p[2] = { { .fd = STDIN_FILENO, .events = POLLIN },
			       { .fd = f->stop, .events = POLLIN } };
	struct err e = { 0 };
	int ret = 0;

	while (ret == 0) {
		ssize_t n;

		if (poll(p, 2, -1) < 0 && errno != EINTR)
			break;
		if (p[1].revents)
			return NULL;
		if (!p[0].revents)
			continue;
		n = read(STDIN_FILENO, f->piece, sizeof(f->piece));
		if (n < 0 && (errno == EINTR || errno == EAGAIN))
			continue;
		if (n < 0)
			fprintf(stderr, "cloche: stdin: %s\n", strerror(errno));
		ret = send_piece(f, f->piece, n > 0 ? (size_t)n : 0, n <= 0, &e);
		if (n <= 0)
			break;
	}
	if (ret < 0 && strcmp(e.code, "interrupted") != 0 &&
	    strcmp(http_failure(f->http)->code, "process_ended") != 0 &&
	    strcmp(http_failure(f->http)->code, "process_not_found") != 0 &&
	    strcmp(http_failure(f->http)->code, "stdin_closed") != 0)
		fprintf(stderr, "cloche: not all of stdin reached the command: %s\n", e.msg);
	return NULL;
}

static void feed_free(struct feed *f)
{
	http_free(f->http);
	close_fd(&f->stop);
	free(f->sandbox);
	buf_free(&f->process);
	free(f);
}

int feed_start(const struct http *daemon, const char *sandbox, const char *process,
	       struct feed **out, struct err *e)
{
	struct feed *f = calloc(1, sizeof(*f));
	int ret;

	if (!f)
		return err_errno(e, ENOMEM, "send stdin");
	f->stop = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	f->sandbox = strdup(sandbox);
	ret = f->stop < 0 || !f->sandbox || buf_str(&f->process, "/processes/") < 0 ||
			      http_escape(&f->process, process) < 0
		      ? err_errno(e, errno ? errno : ENOMEM, "send stdin")
		      : http_clone(daemon, &f->http, e);
	if (ret == 0) {
		http_set_wake(f->http, f->stop, on_stop, f);
		ret = pthread_create(&f->thread, NULL, feed_run, f);
		ret = ret ? err_errno(e, ret, "send stdin") : 0;
	}
	if (ret < 0)
		feed_free(f);
	else
		*out = f;
	return ret;
}

void feed_stop(struct feed *f)
{
	uint64_t one = 1;

	if (!f)
		return;
	while (write(f->stop, &one, sizeof(one)) < 0 && errno == EINTR)
		;
	pthread_join(f->thread, NULL);
	feed_free(f);
}
