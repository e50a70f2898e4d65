/* The first bytes of a TLS connection. A verdict must not change when more bytes are there. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "egress/client_hello.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct client_hello whole, part;
	int r = client_hello_parse(data, n, &whole);

	for (size_t i = 0; i < n && i < 600; i++) {
		int p = client_hello_parse(data, i, &part);

		if (p != 0 && p != r)
			abort();
		if (p == 1 && memcmp(&part, &whole, sizeof(part)) != 0)
			abort();
	}
	return 0;
}
