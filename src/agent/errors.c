/* What the kernel answers, in the protocol's words. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "agent/agent.h"
#include "base/cleanup.h"

static const struct {
	int errnum;
	const char *code;
} codes[] = {
	{ ENOENT, "not_found" },
	{ ENOTDIR, "not_a_directory" },
	{ EISDIR, "is_a_directory" },
	{ ENOTEMPTY, "not_empty" },
	{ EEXIST, "exists" },
	{ EACCES, "permission_denied" },
	{ EPERM, "permission_denied" },
	{ EROFS, "read_only" },
	{ ENOSPC, "no_space" },
	{ EDQUOT, "no_space" },
	{ EFBIG, "too_large" },
	{ E2BIG, "too_large" },
	{ ENAMETOOLONG, "name_too_long" },
	{ ELOOP, "too_many_links" },
	{ ENOMEM, "out_of_memory" },
	{ EXDEV, "cross_device" },
	{ EINVAL, "bad_request" },
};

int agent_errno(struct err *e, int errnum, const char *fmt, ...)
{
	const char *code = "io_error";
	char msg[256];
	va_list ap;

	for (size_t i = 0; i < ARRAY_SIZE(codes); i++)
		if (codes[i].errnum == errnum)
			code = codes[i].code;
	va_start(ap, fmt);
	vsnprintf(msg, sizeof(msg), fmt, ap);
	va_end(ap);
	return err_set(e, code, errnum, "%s: %s", msg, strerror(errnum));
}
