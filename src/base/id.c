/* Rejection sampling keeps every character equally likely: 252 = 7 * 36 of 256 values are used. */
#include "base/id.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define ID_RANDOM 20

static const char alphabet[] = "0123456789abcdefghijklmnopqrstuvwxyz";

void id_new(const char prefix[4], char out[ID_LEN])
{
	int n = 0;

	memcpy(out, prefix, 3);
	out[3] = '_';
	while (n < ID_RANDOM) {
		unsigned char b[32];

		/* Up to 256 bytes never come short once the pool is ready; without it we must stop.
		 */
		if (getrandom(b, sizeof(b), 0) != (ssize_t)sizeof(b))
			abort();
		for (size_t i = 0; i < sizeof(b) && n < ID_RANDOM; i++)
			if (b[i] < 252)
				out[4 + n++] = alphabet[b[i] % 36];
	}
	out[4 + ID_RANDOM] = '\0';
}

bool id_valid(const char prefix[4], const char *s)
{
	return strlen(s) == ID_LEN - 1 && memcmp(s, prefix, 3) == 0 && s[3] == '_' &&
	       strspn(s + 4, alphabet) == ID_RANDOM;
}
