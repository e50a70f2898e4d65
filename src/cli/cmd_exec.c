/* run and exec. `run` owns the sandbox it makes: it deletes it on every way out but --keep. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "cli/commands.h"
#include "cli/exec.h"
#include "cli/http.h"
#include "cli/sandbox.h"
#include "cli/term.h"

#define DELETE_TIMEOUT_S 60
#define LEAVE_TIMEOUT_S 2

static int exec_run(struct cli *c, struct err *e)
{
	_cleanup_json_ json_t *env = NULL;
	struct watch w;
	int ret = sandbox_pairs(c, "env", &env, e);

	ret = ret ?: watch_begin(&w, e);
	if (ret < 0)
		return ret;
	ret = exec_in_sandbox(c, c->args[0], env, &w, e);
	watch_end(&w);
	return ret;
}

struct creation {
	struct watch *w;
	struct progress *p;
};

/* While the sandbox is being made: it must be known before it can be deleted, so wait once. */
static int on_signal_creating(void *ctx)
{
	struct creation *cr = ctx;

	if (!watch_take(cr->w))
		return 0;
	if (cr->w->count > 1)
		return -EINTR;
	progress_step(cr->p, "Deleting the sandbox once it is made (Ctrl-C again: leave)");
	return 0;
}

static int create(struct cli *c, struct watch *w, json_t **sbx, struct err *e)
{
	struct creation cr = { .w = w, .p = progress_new(false) };
	struct http *h;
	int ret = cli_http(c, &h, e);

	progress_step(cr.p, "Creating the sandbox");
	if (ret == 0) {
		http_set_wake(h, w->fd, on_signal_creating, &cr);
		ret = sandbox_create(c, sbx, e);
		http_set_wake(h, -1, NULL, NULL);
	}
	progress_free(cr.p, ret == 0);
	if (ret < 0 && w->count > 1)
		err_fix(e, "The sandbox may have been made: 'cloche ls' tells.");
	return ret;
}

/*
 * Deletes the sandbox; a failure is told, because it costs money. On a connection of its own: the
 * first one keeps the failure that main() is to print.
 */
static void remove_it(struct cli *c, const char *id, const struct watch *w)
{
	struct progress *p = progress_new(false);
	struct http *h = NULL;
	struct err e;
	int ret;

	progress_step(p, "Deleting the sandbox");
	ret = http_clone(c->http, &h, &e);
	if (ret == 0) {
		http_set_timeout(h, w->count > 1 ? LEAVE_TIMEOUT_S : DELETE_TIMEOUT_S);
		ret = sandbox_call_on(h, "DELETE", id, "", NULL, NULL, &e);
	}
	http_free(h);
	progress_free(p, ret == 0);
	if (ret < 0) {
		fprintf(stderr, "cloche: %s was not deleted: ", id);
		term_print(stderr, e.msg);
		fprintf(stderr, "\n  Delete it with 'cloche rm %s'.\n", id);
	}
}

static int run_in_new(struct cli *c, struct watch *w, struct err *e)
{
	_cleanup_json_ json_t *sbx = NULL;
	const char *id;
	int ret = create(c, w, &sbx, e);

	if (ret < 0)
		return ret;
	id = json_get_str(sbx, "id", NULL);
	if (!id)
		return err_set(e, "broken", EPROTO, "the daemon's answer has no id");
	if (w->count)
		ret = 128 + w->last;
	else
		ret = exec_in_sandbox(c, id, NULL, w, e);
	if (cli_flag(c, "keep"))
		fprintf(stderr, "cloche: kept %s\n", id);
	else
		remove_it(c, id, w);
	return ret;
}

static int run_run(struct cli *c, struct err *e)
{
	struct watch w;
	int ret = watch_begin(&w, e);

	if (ret < 0)
		return ret;
	ret = run_in_new(c, &w, e);
	watch_end(&w);
	return ret;
}

const struct cli_command cmd_exec = {
	.name = "exec",
	.summary = "Run a command in a sandbox",
	.usage = "ID [--] CMD…",
	.details =
		"The exit status is the command's; 124 when --timeout-seconds passed, 125 when\n"
		"Cloche failed or the outcome is unknown. Ctrl-C interrupts the command, a second\n"
		"one kills it and leaves at once. For a shell line: exec ID -- sh -c '…'.",
	.options = (const struct cli_option[]){ { "env", 'e', CLI_LIST, "NAME=VALUE",
						  "an environment variable", 0, 0, NULL },
						EXEC_OPTIONS,
						{ NULL } },
	.min_args = 1,
	.max_args = 1,
	.takes_command = true,
	.run = exec_run,
};

const struct cli_command cmd_run = {
	.name = "run",
	.summary = "Run a command in a new sandbox that is deleted afterwards",
	.usage = "[--] CMD…",
	.details =
		"The exit status is the command's; 124 when --timeout-seconds passed, 125 when\n"
		"Cloche failed or the outcome is unknown. Ctrl-C interrupts the command, a second\n"
		"one leaves at once.",
	.options =
		(const struct cli_option[]){ SANDBOX_OPTIONS,
					     EXEC_OPTIONS,
					     { "keep", 0, CLI_FLAG, NULL,
					       "do not delete the sandbox afterwards", 0, 0, NULL },
					     { NULL } },
	.takes_command = true,
	.run = run_run,
};
