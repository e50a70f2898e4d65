/* A kernel image as a package brings it: refused, or an ELF whose size the image announced. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "image/bzimage.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct buf out = { 0 };
	struct err e = { 0 };
	int r = bzimage_extract(data, n, &out, &e);

	if (r < 0 && (out.len != 0 || !e.code))
		abort();
	if (r == 0 && (out.len < 64 || memcmp(out.data, "\177ELF", 4) != 0))
		abort();
	buf_free(&out);
	return 0;
}
