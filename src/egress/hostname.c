/* One pass over the bytes, then one look at the last label. No state. */
#include "egress/hostname.h"

#include <errno.h>
#include <string.h>

#define LABEL_MAX 63

static char fold(char c)
{
	if (c >= 'A' && c <= 'Z')
		return (char)(c + ('a' - 'A'));
	return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.'
		       ? c
		       : '\0';
}

/* inet_aton() and friends read such a last label as (part of) an address. */
static bool numeric_label(const char *label)
{
	if (label[0] == '0' && label[1] == 'x')
		return label[2 + strspn(label + 2, "0123456789abcdef")] == '\0';
	return label[strspn(label, "0123456789")] == '\0';
}

int hostname_normalise(const char *s, size_t n, char out[HOSTNAME_LEN])
{
	size_t label = 0;
	const char *last;

	if (n && s[n - 1] == '.')
		n--;
	if (n == 0 || n >= HOSTNAME_LEN)
		return -EINVAL;
	for (size_t i = 0; i < n; i++) {
		char c = fold(s[i]);

		if (!c)
			return -EINVAL;
		if (c == '.' && label == 0)
			return -EINVAL;
		label = c == '.' ? 0 : label + 1;
		if (label > LABEL_MAX)
			return -EINVAL;
		out[i] = c;
	}
	out[n] = '\0';
	if (label == 0)
		return -EINVAL;
	last = strrchr(out, '.');
	return numeric_label(last ? last + 1 : out) ? -EINVAL : 0;
}

bool hostname_below(const char *name, const char *suffix)
{
	size_t n = strlen(name), s = strlen(suffix);

	return n > s + 1 && name[n - s - 1] == '.' && memcmp(name + n - s, suffix, s) == 0;
}
