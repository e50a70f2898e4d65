/* One line of /etc/hosts is ours, the one of 127.0.1.1, as Debian has it. The rest is kept. */
#include "agent/hosts.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/log.h"

#define HOSTS "/etc/hosts"
#define HOSTNAME "/etc/hostname"
#define HOSTS_MAX (1u << 20)
#define OURS "127.0.1.1"

/* In place and without fsync: this is on the way to the first command, and a name lost in a crash
 * is set again by the next adopt. */
static void write_file(const char *path, const struct buf *b)
{
	_cleanup_close_ int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	int r = fd < 0 ? -errno : fd_write_full(fd, b->data, b->len);

	if (r < 0)
		log_warn("write %s: %s", path, strerror(-r));
}

static int compose(const struct buf *old, const char *name, struct buf *out)
{
	const char *at = old->data ? old->data : "";

	if (!*at && buf_str(out, "127.0.0.1\tlocalhost\n::1\tlocalhost\n") < 0)
		return -1;
	while (*at) {
		const char *end = strchrnul(at, '\n');
		size_t n = (size_t)(end - at);

		if (strncmp(at, OURS, strlen(OURS)) != 0 &&
		    (buf_add(out, at, n) < 0 || buf_str(out, "\n") < 0))
			return -1;
		at = *end ? end + 1 : end;
	}
	return buf_printf(out, OURS "\t%s\n", name);
}

void hosts_set_name(const char *name)
{
	_cleanup_buf_ struct buf old = { 0 }, hosts = { 0 }, line = { 0 };

	/* A missing file is as an empty one. */
	(void)fd_read_file(HOSTS, &old, HOSTS_MAX, NULL);
	if (compose(&old, name, &hosts) < 0 || buf_printf(&line, "%s\n", name) < 0) {
		log_error("out of memory for %s", HOSTS);
		return;
	}
	write_file(HOSTS, &hosts);
	write_file(HOSTNAME, &line);
}
