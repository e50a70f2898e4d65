/* Edit distance with three rows of state; words longer than WORD_MAX get no suggestion. */
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

/* Insertions, deletions, substitutions, and swaps of neighbours (what fingers do most). */
static size_t edit_distance(const char *a, const char *b)
{
	size_t la = strlen(a), lb = strlen(b);
	size_t rows[3][WORD_MAX + 1]; /* of a's characters i - 2, i - 1 and i, in turn */

	if (la > WORD_MAX || lb > WORD_MAX)
		return WORD_MAX;
	for (size_t j = 0; j <= lb; j++)
		rows[0][j] = j;
	for (size_t i = 1; i <= la; i++) {
		size_t *now = rows[i % 3], *last = rows[(i + 2) % 3], *before = rows[(i + 1) % 3];

		now[0] = i;
		for (size_t j = 1; j <= lb; j++) {
			now[j] = min3(last[j] + 1, now[j - 1] + 1,
				      last[j - 1] + (a[i - 1] != b[j - 1]));
			if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
			    before[j - 2] + 1 < now[j])
				now[j] = before[j - 2] + 1;
		}
	}
	return rows[la % 3][lb];
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
