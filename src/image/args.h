/* Putting an argument vector together, some of its words formatted. */
#ifndef CLOCHE_IMAGE_ARGS_H
#define CLOCHE_IMAGE_ARGS_H

#include <stdbool.h>
#include <stddef.h>

#define ARGS_MAX 80

struct args {
	const char *argv[ARGS_MAX]; /* NULL-terminated */
	char *owned[ARGS_MAX];	    /* words to free, at the index of their use */
	size_t n;
	bool failed; /* out of memory or too many words */
};

#define _cleanup_args_ __attribute__((cleanup(args_free)))

/* The word must outlive a. */
void args_add(struct args *a, const char *word);

/* Two words, as in "-m", "2048". */
void args_pair(struct args *a, const char *option, const char *value);

void args_printf(struct args *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

void args_free(struct args *a);

#endif
