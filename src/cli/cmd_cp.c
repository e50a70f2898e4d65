/* cloche cp: which way, and what to say at the end. */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "cli/commands.h"
#include "cli/copy.h"
#include "cli/path.h"
#include "cli/term.h"

static int copy(struct cli *c, const struct place *from, const struct place *to, struct err *e)
{
	struct copy cp = { .sandbox = from->sandbox ? from->sandbox : to->sandbox };
	_cleanup_json_ json_t *out = NULL;
	int ret = cli_http(c, &cp.http, e);

	if (ret < 0)
		return ret;
	cp.progress = progress_new(false);
	ret = from->sandbox ? copy_down(&cp, from->path, to->path, e)
			    : copy_up(&cp, from->path, to->path, e);
	progress_free(cp.progress, ret == 0);
	if (ret < 0 || !c->json)
		return ret;
	out = json_pack("{s:I,s:I}", "files", (json_int_t)cp.files, "leftOut",
			(json_int_t)cp.skipped);
	return cli_print_json(out, e);
}

static int cp_run(struct cli *c, struct err *e)
{
	struct place from = { 0 }, to = { 0 };
	int ret = place_parse(c->args[0], &from, e);

	ret = ret ?: place_parse(c->args[1], &to, e);
	if (ret == 0 && !from.sandbox == !to.sandbox) {
		ret = cli_usage(e, from.sandbox ? "both sides are in a sandbox: copy in two steps"
						: "neither side is in a sandbox");
		err_fix(e, "A path in a sandbox is written ID:/path.");
	}
	ret = ret ?: copy(c, &from, &to, e);
	place_free(&from);
	place_free(&to);
	return ret;
}

const struct cli_command cmd_cp = {
	.name = "cp",
	.summary = "Copy files and folders into or out of a sandbox",
	.usage = "FROM TO",
	.details = "One of them is ID:/path; the other is a path here, or - for stdin or stdout.\n"
		   "Folders are copied whole. Symbolic links and special files are left out and\n"
		   "named; nothing is written outside the destination.",
	.min_args = 2,
	.max_args = 2,
	.run = cp_run,
};
