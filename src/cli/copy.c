/* What both directions of a copy need: URLs, stat, and telling what was left out. */
#include "cli/copy.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "cli/http.h"
#include "cli/sandbox.h"
#include "cli/term.h"

char *copy_url(const struct copy *c, const char *tail, const char *path, const char *query)
{
	_cleanup_buf_ struct buf b = { 0 };

	if (sandbox_path(&b, c->sandbox, "/files", NULL) < 0 || buf_str(&b, tail) < 0 ||
	    buf_str(&b, "?path=") < 0 || http_escape(&b, path) < 0 || buf_str(&b, query) < 0)
		return NULL;
	return buf_steal(&b);
}

json_t *copy_stat(struct copy *c, const char *path, int *ret, struct err *e)
{
	_cleanup_free_ char *url = copy_url(c, "/stat", path, "");
	json_t *v = NULL;

	if (!url) {
		*ret = err_errno(e, ENOMEM, "look at %s", path);
		return NULL;
	}
	*ret = http_json(c->http, "GET", url, NULL, &v, e);
	if (*ret < 0 && http_failure(c->http)->status == 404 &&
	    strcmp(http_failure(c->http)->code, "sandbox_not_found") != 0)
		*ret = 0;
	return v;
}

void copy_skip(struct copy *c, const char *name, const char *why)
{
	progress_pause(c->progress);
	fputs("cloche: left out ", stderr);
	term_print(stderr, name);
	fprintf(stderr, ": %s\n", why);
	c->skipped++;
}
