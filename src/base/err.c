/*
 * Errors live in the caller's stack frame; nothing here allocates, so an out-of-memory error can
 * be reported like any other. Messages too long for the struct are cut, never overrun.
 */
#include "base/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static int err_ret(int errnum)
{
	return errnum > 0 ? -errnum : -EIO;
}

int err_set(struct err *e, const char *code, int errnum, const char *fmt, ...)
{
	va_list ap;

	if (!e)
		return err_ret(errnum);
	e->code = code;
	e->errnum = errnum;
	e->fix[0] = '\0';
	va_start(ap, fmt);
	vsnprintf(e->msg, sizeof(e->msg), fmt, ap);
	va_end(ap);
	return err_ret(errnum);
}

int err_errno(struct err *e, int errnum, const char *fmt, ...)
{
	va_list ap;
	size_t n;

	if (!e)
		return err_ret(errnum);
	e->code = "system";
	e->errnum = errnum;
	e->fix[0] = '\0';
	va_start(ap, fmt);
	vsnprintf(e->msg, sizeof(e->msg), fmt, ap);
	va_end(ap);
	n = strlen(e->msg);
	snprintf(e->msg + n, sizeof(e->msg) - n, ": %s", strerror(errnum));
	return err_ret(errnum);
}

void err_fix(struct err *e, const char *fmt, ...)
{
	va_list ap;

	if (!e)
		return;
	va_start(ap, fmt);
	vsnprintf(e->fix, sizeof(e->fix), fmt, ap);
	va_end(ap);
}

int err_wrap(struct err *e, const char *fmt, ...)
{
	char old[sizeof(e->msg)];
	va_list ap;
	size_t n;

	if (!e)
		return -EIO;
	memcpy(old, e->msg, sizeof(old));
	va_start(ap, fmt);
	vsnprintf(e->msg, sizeof(e->msg), fmt, ap);
	va_end(ap);
	n = strlen(e->msg);
	snprintf(e->msg + n, sizeof(e->msg) - n, ": %s", old);
	return err_ret(e->errnum);
}
