/* The host's apt sources in both formats: what is written holds no entry that was not asked for. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "image/aptsrc.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct buf out = { 0 };
	char *text = n ? strndup((const char *)data + 1, n - 1) : NULL;
	int taken;

	if (!text)
		return 0;
	taken = aptsrc_convert(text, data[0] & 1, "bookworm", "trixie", "main contrib", &out);
	if (taken < 0 || (taken == 0) != (out.len == 0))
		abort();
	if (taken && strncmp(out.data, "Types: deb\nURIs: ", 17) != 0)
		abort();
	free(aptsrc_os_release(text, "ID"));
	buf_free(&out);
	free(text);
	return 0;
}
