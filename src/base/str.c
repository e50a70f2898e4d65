/* Edit distance with one row of state; words longer than WORD_MAX get no suggestion. */
#include "base/str.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define WORD_MAX 64

static size_t min3(size_t a, size_t b, size_t c)
{
	size_t m = a < b ? a : b;

	return m < c ? m : c;
}

static size_t edit_distance(const char *a, const char *b)
{
	size_t la = strlen(a), lb = strlen(b), row[WORD_MAX + 1];

	if (la > WORD_MAX || lb > WORD_MAX)
		return WORD_MAX;
	for (size_t j = 0; j <= lb; j++)
		row[j] = j;
	for (size_t i = 1; i <= la; i++) {
		size_t diag = row[0];

		row[0] = i;
		for (size_t j = 1; j <= lb; j++) {
			size_t up = row[j];

			row[j] = min3(up + 1, row[j - 1] + 1, diag + (a[i - 1] != b[j - 1]));
			diag = up;
		}
	}
	return row[lb];
}

const char *str_nearest(const char *word, const char *const *candidates, size_t n)
{
	size_t best = strlen(word) / 3 + 2;
	const char *found = NULL;

	for (size_t i = 0; i < n; i++) {
		size_t d = edit_distance(word, candidates[i]);

		if (d < best && d < strlen(candidates[i])) {
			best = d;
			found = candidates[i];
		}
	}
	return found;
}

int str_to_int(const char *s, int64_t min, int64_t max, int64_t *out)
{
	const char *digits = *s == '-' && min < 0 ? s + 1 : s;
	long long v;

	if (!*digits || digits[strspn(digits, "0123456789")])
		return -EINVAL;
	errno = 0;
	v = strtoll(s, NULL, 10);
	if (errno || v < min || v > max)
		return -ERANGE;
	*out = v;
	return 0;
}
