/*
 * Ownership by scope: a variable marked _cleanup_(f) is released with f(&variable) when it goes
 * out of scope. steal_fd() and steal_ptr() hand ownership on.
 */
#ifndef CLOCHE_BASE_CLEANUP_H
#define CLOCHE_BASE_CLEANUP_H

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define _cleanup_(f) __attribute__((cleanup(f)))
#define _cleanup_free_ _cleanup_(cleanup_freep)
#define _cleanup_close_ _cleanup_(cleanup_closep)
#define _cleanup_fclose_ _cleanup_(cleanup_fclosep)
#define _cleanup_closedir_ _cleanup_(cleanup_closedirp)

/* Defines T's cleanup function `name` from its NULL-safe `free_fn`. */
#define CLEANUP_DEFINE(type, name, free_fn) \
	static inline void name(type *p)    \
	{                                   \
		if (*p)                     \
			free_fn(*p);        \
	}

static inline void cleanup_freep(void *p)
{
	free(*(void **)p);
}

static inline void cleanup_closep(int *fd)
{
	if (*fd >= 0)
		close(*fd);
}

static inline void cleanup_fclosep(FILE **f)
{
	if (*f)
		fclose(*f);
}

static inline void cleanup_closedirp(DIR **d)
{
	if (*d)
		closedir(*d);
}

/* Returns *fd and leaves -1 behind. */
static inline int steal_fd(int *fd)
{
	int f = *fd;

	*fd = -1;
	return f;
}

/* Returns the pointer and leaves NULL behind. */
#define steal_ptr(p)                   \
	({                             \
		__auto_type p_ = &(p); \
		__auto_type v_ = *p_;  \
		*p_ = NULL;            \
		v_;                    \
	})

/* Closes *fd if open and leaves -1 behind. */
static inline void close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))

#endif
