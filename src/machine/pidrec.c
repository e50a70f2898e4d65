/*
 * The pidfd is opened first and the start time compared after: from then on the descriptor names
 * that very process, so no later signal can reach another.
 */
#include "machine/pidrec.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/fd.h"

/* Field 3 is the state letter; fields are counted from behind the last ')'. */
static const char *after_name(const char *stat)
{
	const char *p = strrchr(stat, ')');

	return p && p[1] == ' ' ? p + 2 : NULL;
}

uint64_t pidrec_parse_start(const char *stat)
{
	const char *p = after_name(stat);
	char *end;
	uint64_t v;

	for (int field = 3; p && field < 22; field++) {
		p = strchr(p, ' ');
		p = p ? p + 1 : NULL;
	}
	if (!p)
		return 0;
	v = strtoull(p, &end, 10);
	return end == p || (*end != ' ' && *end != '\0') ? 0 : v;
}

int pidrec_of(pid_t pid, struct pidrec *out)
{
	_cleanup_buf_ struct buf text = { 0 };
	const char *state;
	char path[64];

	if (pid <= 0)
		return -ESRCH;
	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	if (fd_read_file(path, &text, 4096, NULL) < 0 || !text.len)
		return -ESRCH;
	state = after_name(text.data);
	if (!state || *state == 'Z' || *state == 'X')
		return -ESRCH;
	out->pid = pid;
	out->start = pidrec_parse_start(text.data);
	return out->start ? 0 : -ESRCH;
}

int pidrec_open(const struct pidrec *r)
{
	_cleanup_close_ int fd = -1;
	struct pidrec now;

	if (r->pid <= 0)
		return -ESRCH;
	fd = pidfd_open(r->pid, 0);
	if (fd < 0)
		return errno == ESRCH ? -ESRCH : -errno;
	if (pidrec_of(r->pid, &now) < 0 || now.start != r->start)
		return -ESRCH;
	return steal_fd(&fd);
}

int pidrec_wait(int pidfd, unsigned timeout_ms)
{
	struct pollfd p = { .fd = pidfd, .events = POLLIN };
	int n = poll(&p, 1, (int)timeout_ms);

	if (n < 0)
		return -errno;
	return n == 0 ? -ETIME : 0;
}

int pidrec_end(int pidfd, unsigned term_ms)
{
	if (pidfd_send_signal(pidfd, SIGTERM, NULL, 0) < 0)
		return errno == ESRCH ? 0 : -errno;
	if (pidrec_wait(pidfd, term_ms) == 0)
		return 0;
	if (pidfd_send_signal(pidfd, SIGKILL, NULL, 0) < 0 && errno != ESRCH)
		return -errno;
	return pidrec_wait(pidfd, 10000);
}
