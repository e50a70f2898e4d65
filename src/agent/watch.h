/*
 * Streams that belong to a command: the one that started it (exec), those that look at it later
 * (attach), and those that bring input (stdin).
 */
#ifndef CLOCHE_AGENT_WATCH_H
#define CLOCHE_AGENT_WATCH_H

#include <jansson.h>
#include <stdint.h>

struct err;
struct process;
struct stream;

/* Each takes the stream over; on failure it has been answered with the error. */
void watch_exec(struct stream *s, struct process *p);
void watch_attach(struct stream *s, struct process *p, const json_t *request);
void watch_stdin(struct stream *s, struct process *p, const json_t *request);

/* Sends to every watcher what it can take, EXIT included; resumes held output. Frees p when that
 * let the last watcher of a forgotten process go: do not touch p afterwards. */
void watch_pump(struct process *p);

/* Answers every watcher with e and lets it go. */
void watch_fail(struct process *p, const struct err *e);

/* The first byte of output `which` that a watcher that must get all still needs; UINT64_MAX: none.
 */
uint64_t watch_keep_from(const struct process *p, int which);

#endif
