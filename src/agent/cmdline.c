/* Words are separated by spaces; the agent's own have no quotes in them. The first one counts. */
#include "agent/cmdline.h"

#include <string.h>

#include "base/buf.h"
#include "base/fd.h"

bool cmdline_find(const char *line, const char *prefix, char *out, size_t n)
{
	size_t skip = strlen(prefix);

	while (*line) {
		size_t len = strcspn(line, " \t\n");

		if (len >= skip && memcmp(line, prefix, skip) == 0 && len - skip < n) {
			memcpy(out, line + skip, len - skip);
			out[len - skip] = '\0';
			return len > skip;
		}
		line += len;
		line += strspn(line, " \t\n");
	}
	return false;
}

bool cmdline_word(const char *prefix, char *out, size_t n)
{
	_cleanup_buf_ struct buf line = { 0 };

	if (fd_read_file("/proc/cmdline", &line, 65536, NULL) < 0 || !line.data)
		return false;
	return cmdline_find(line.data, prefix, out, n);
}
