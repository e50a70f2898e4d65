/* Image manifests: no file name may lead out of the image's folder. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "sandbox/manifest.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct manifest m;
	struct err e;

	if (manifest_parse((const char *)data, n, &m, &e) < 0)
		return 0;
	if (!manifest_name_valid(m.name))
		abort();
	for (int p = 0; p < MANIFEST_PARTS; p++)
		if (strchr(m.files[p].name, '/') || m.files[p].name[0] == '.' ||
		    (m.files[p].name[0] && strlen(m.files[p].sha256) != 64))
			abort();
	return 0;
}
