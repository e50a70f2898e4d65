/*
 * A long-lived process that the command line starts and finds again: detached, its output in a log
 * file, its record in a JSON file of its folder. Used for the machine's QEMU and for a cloched that
 * no service manager runs.
 */
#ifndef CLOCHE_MACHINE_SERVICE_H
#define CLOCHE_MACHINE_SERVICE_H

#include "base/json.h"
#include "machine/pidrec.h"

struct err;

/*
 * Starts argv in folder cwd in a session of its own, stdin from /dev/null, stdout and stderr
 * appended to log. Returns when the program has been executed, with its record.
 */
int service_spawn(const char *const *argv, const char *cwd, const char *log, struct pidrec *out,
		  struct err *e);

/* Writes dir/NAME.json: {"pid","start","startedAt"} and the members of extra. */
int service_save(const char *dir, const char *name, const struct pidrec *r, json_t *extra,
		 struct err *e);

/*
 * A pidfd of the service recorded in dir/NAME.json, or -ESRCH when none runs. *doc, if not NULL,
 * gets the record (a new reference) when one runs.
 */
int service_find(const char *dir, const char *name, struct pidrec *r, json_t **doc);

/* Removes the record. */
void service_forget(const char *dir, const char *name);

/* The last lines of a file (at most n bytes), without an incomplete first one; "" if unreadable. */
void service_tail(const char *path, char *out, size_t n);

#endif
