/*
 * An epoll event loop for one thread: descriptors, timers, deferred calls, a wake-up from other
 * threads. All functions but loop_wake() belong to the loop's thread.
 */
#ifndef CLOCHE_BASE_LOOP_H
#define CLOCHE_BASE_LOOP_H

#include <stdint.h>

struct err;
struct loop;
struct loop_source;

/* events: EPOLLIN|EPOLLOUT|EPOLLHUP|EPOLLERR as epoll delivers them. */
typedef void (*loop_fd_fn)(void *ctx, int fd, uint32_t events);
typedef void (*loop_fn)(void *ctx);

int loop_new(struct loop **out, struct err *e);
void loop_free(struct loop *l); /* NULL-safe; frees its sources, closes none of their fds */

/* Watches fd, which stays the caller's and must outlive the source. */
int loop_add_fd(struct loop *l, int fd, uint32_t events, loop_fd_fn fn, void *ctx,
		struct loop_source **out, struct err *e);

/* Changes the watched events; 0 silences the source (EPOLLHUP and EPOLLERR still come). */
int loop_set_events(struct loop_source *s, uint32_t events);

/* Makes a timer, unarmed. */
int loop_add_timer(struct loop *l, loop_fn fn, void *ctx, struct loop_source **out, struct err *e);

/* Arms it once for an absolute clock_mono_ns() time; 0 disarms. */
int loop_set_timer(struct loop_source *s, uint64_t mono_ns);

/* Takes a source out; safe inside any callback, its own included. NULL-safe. */
void loop_remove(struct loop_source *s);

/*
 * The same for a source whose descriptor, never duplicated, was closed just before: closing took it
 * out of the kernel's set already, so one call to it is saved.
 */
void loop_remove_closed(struct loop_source *s);

/* Runs until loop_stop(). Returns 0, or a negative errno if epoll itself failed. */
int loop_run(struct loop *l, struct err *e);
void loop_stop(struct loop *l);

/* From any thread or a signal handler: makes the loop call the function set by loop_on_wake(). */
void loop_wake(struct loop *l);
void loop_on_wake(struct loop *l, loop_fn fn, void *ctx);

#endif
