/* Failures are remembered, so that only the vector's use has to be guarded. */
#include "image/args.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

void args_add(struct args *a, const char *word)
{
	if (a->n < ARGS_MAX - 1)
		a->argv[a->n++] = word;
	else
		a->failed = true;
}

void args_pair(struct args *a, const char *option, const char *value)
{
	args_add(a, option);
	args_add(a, value);
}

void args_printf(struct args *a, const char *fmt, ...)
{
	char *word = NULL;
	va_list ap;

	va_start(ap, fmt);
	if (vasprintf(&word, fmt, ap) < 0)
		word = NULL;
	va_end(ap);
	if (!word || a->n >= ARGS_MAX - 1) {
		free(word);
		a->failed = true;
		return;
	}
	a->owned[a->n] = word;
	args_add(a, word);
}

void args_free(struct args *a)
{
	for (size_t i = 0; i < a->n; i++)
		free(a->owned[i]);
}
