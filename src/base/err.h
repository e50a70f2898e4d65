/*
 * Errors. A function that can fail takes `struct err *e` last, returns 0 (or a useful value >= 0)
 * on success and a negative errno on failure; e is filled on failure and untouched on success.
 * e may be NULL where the caller does not want the words.
 *
 *	code     stable machine-readable identifier, a string literal ("image_not_found")
 *	msg      one line for a person, context first: "open /x/disk.raw: No such file or directory"
 *	fix      optional: what to do next, one sentence; "" when unknown
 *	errnum   positive errno behind it, 0 if none
 */
#ifndef CLOCHE_BASE_ERR_H
#define CLOCHE_BASE_ERR_H

struct err {
	const char *code;
	int errnum;
	char msg[512];
	char fix[256];
};

/* Fills e (code, errnum, formatted msg) and returns -errnum, or -EIO when errnum is 0. */
int err_set(struct err *e, const char *code, int errnum, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

/* As err_set() with code "system" and ": strerror" appended to the message. */
int err_errno(struct err *e, int errnum, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* Sets what to do next. */
void err_fix(struct err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Puts "context: " before the message; returns -errnum (-EIO when 0), so it can be returned. */
int err_wrap(struct err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
