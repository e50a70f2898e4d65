/*
 * What a person sees: text from elsewhere made harmless, tables, ages, progress. Names and
 * messages may come from a hostile sandbox; nothing of them reaches a terminal unescaped.
 */
#ifndef CLOCHE_CLI_TERM_H
#define CLOCHE_CLI_TERM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct buf;
struct err;

/*
 * Appends s with control characters (C0, DEL, C1), bidirectional overrides and bytes that are not
 * UTF-8 written as \n, \t, \xNN or \u{NNNN}; a backslash stays as it is.
 */
int term_escape(struct buf *b, const char *s);

/* Prints s escaped. */
void term_print(FILE *f, const char *s);

#define TERM_DURATION_LEN 24

/* A duration for people, two digits of truth: "850ms", "12s", "5m", "3h", "2d". */
void term_duration(int64_t ms, char out[TERM_DURATION_LEN]);

/* Aligned columns. Cells are copied and escaped. */
struct table;
int table_new(const char *const *heads, size_t cols, struct table **out, struct err *e);
int table_row(struct table *t, const char *const *cells, struct err *e); /* NULL cell: "-" */
void table_print(const struct table *t, FILE *f);
void table_free(struct table *t); /* NULL-safe */

/*
 * Progress on stderr. A thread draws a spinner line with the elapsed time once a step has lasted a
 * second, and only on a terminal. With `log`, each finished step leaves a line with its time, on
 * any kind of stderr. Never fails: without memory or threads there is just no progress.
 */
struct progress;
struct progress *progress_new(bool log);
void progress_step(struct progress *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Removes the line while the caller prints; the next progress_step() shows it again. */
void progress_pause(struct progress *p);
/* Ends the last step as done (or as failed when !ok) and frees. NULL-safe. */
void progress_free(struct progress *p, bool ok);

#endif
