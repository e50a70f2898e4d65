/*
 * cloche: finds the command, parses, runs it, prints what went wrong. Everything a person or a
 * script asked for goes to stdout; errors, hints and progress go to stderr.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/http.h"
#include "cli/term.h"

#define COMMANDS_MAX 128

/* What the API takes a field for that it does not know; its message has named the fields. */
static void print_hints(const json_t *error)
{
	const json_t *p, *list = json_object_get(json_object_get(error, "details"), "fields");
	size_t i;

	json_array_foreach (list, i, p) {
		if (!json_get_str(p, "hint", NULL))
			continue;
		fputs("  ", stderr);
		term_print(stderr, json_get_str(p, "field", ""));
		fputs(": did you mean ", stderr);
		term_print(stderr, json_get_str(p, "hint", ""));
		fputs("?\n", stderr);
	}
}

/* The guest's last words, when a sandbox did not start. */
static void print_serial_tail(const json_t *error)
{
	const json_t *line,
		*tail = json_object_get(json_object_get(error, "details"), "serialTail");
	size_t i;

	json_array_foreach (tail, i, line) {
		fputs("  | ", stderr);
		term_print(stderr, json_is_string(line) ? json_string_value(line) : "");
		fputc('\n', stderr);
	}
}

/* What to do next in this program's words, where the API's speak of its own routes. */
static const char *fix_for(const struct http_failure *f, const struct err *e)
{
	static const struct {
		const char *code, *fix;
	} fixes[] = {
		{ "sandbox_not_running", "Start it with 'cloche start'." },
		{ "sandbox_not_found", "'cloche ls' lists the sandboxes." },
		{ "image_not_found", "'cloche image ls' lists the images." },
		{ "key_missing",
		  "Set CLOCHE_API_KEY, or let 'cloche up' write the configuration." },
		{ "key_unknown",
		  "Set CLOCHE_API_KEY, or let 'cloche up' write the configuration." },
		{ "boot_failed", "Above are the last lines of the guest's console." },
		{ "boot_timeout", "Above are the last lines of the guest's console." },
	};

	for (size_t i = 0; f && i < ARRAY_SIZE(fixes); i++)
		if (strcmp(f->code, fixes[i].code) == 0)
			return fixes[i].fix;
	return e->fix;
}

static void print_error_json(const struct err *e, const struct http_failure *f)
{
	_cleanup_json_ json_t *v = f && f->error
					   ? json_pack("{s:O}", "error", f->error)
					   : json_pack("{s:{s:s,s:s,s:s}}", "error", "code",
						       e->code, "message", e->msg, "fix", e->fix);

	if (v)
		json_dumpf(v, stderr, JSON_COMPACT);
	fputc('\n', stderr);
}

static void print_error(const struct cli *c, const struct err *e)
{
	const struct http_failure *f = c && c->http ? http_failure(c->http) : NULL;

	if (c && c->json) {
		print_error_json(e, f);
		return;
	}
	fputs("cloche: ", stderr);
	term_print(stderr, e->msg);
	fputc('\n', stderr);
	if (f && f->error)
		print_hints(f->error);
	if (f && f->error)
		print_serial_tail(f->error);
	if (*fix_for(f, e)) {
		fputs("  ", stderr);
		term_print(stderr, fix_for(f, e));
		fputc('\n', stderr);
	}
	if (f && f->code[0]) {
		fputs("  (", stderr);
		term_print(stderr, f->code);
		fputs(", request ", stderr);
		term_print(stderr, f->request_id);
		fputs(")\n", stderr);
	}
}

/* The command whose one or two words begin argv; *used is their number. */
static const struct cli_command *find(int argc, char **argv, int *used)
{
	for (size_t i = 0; cli_commands[i]; i++) {
		const char *name = cli_commands[i]->name, *space = strchr(name, ' ');
		size_t n = space ? (size_t)(space - name) : strlen(name);

		if (strlen(argv[0]) != n || strncmp(name, argv[0], n) != 0)
			continue;
		if (!space || (argc > 1 && strcmp(space + 1, argv[1]) == 0)) {
			*used = space ? 2 : 1;
			return cli_commands[i];
		}
	}
	return NULL;
}

static bool is_group(const char *word)
{
	size_t n = strlen(word);

	for (size_t i = 0; cli_commands[i]; i++)
		if (strncmp(cli_commands[i]->name, word, n) == 0 && cli_commands[i]->name[n] == ' ')
			return true;
	return false;
}

static int unknown(int argc, char **argv)
{
	const char *names[COMMANDS_MAX], *near;
	char word[64];
	size_t n = 0;
	struct err e;

	if (is_group(argv[0]) && argc > 1 && argv[1][0] != '-')
		snprintf(word, sizeof(word), "%s %s", argv[0], argv[1]);
	else if (is_group(argv[0])) {
		bool asked =
			argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0);

		cli_help_group(asked ? stdout : stderr, argv[0]);
		return asked ? CLI_OK : CLI_USAGE;
	} else
		snprintf(word, sizeof(word), "%s", argv[0]);
	for (; n < COMMANDS_MAX && cli_commands[n]; n++)
		names[n] = cli_commands[n]->name;
	near = str_nearest(word, names, n);
	cli_usage(&e, "there is no command \"%s\"", word);
	if (near)
		err_fix(&e, "Did you mean 'cloche %s'?", near);
	else
		err_fix(&e, "'cloche --help' lists them.");
	print_error(NULL, &e);
	return CLI_USAGE;
}

static int finish(const struct cli *c, int status, struct err *e)
{
	if (status < 0) {
		print_error(c, e);
		status = strcmp(e->code, "usage") == 0 ? CLI_USAGE : CLI_FAILED;
	}
	if (fflush(stdout) == EOF || ferror(stdout)) {
		fprintf(stderr, "cloche: the output could not be written\n");
		status = status ? status : CLI_FAILED;
	}
	return status;
}

static int run_command(const struct cli_command *cmd, int argc, const char *const *argv)
{
	struct err e = { .code = "" };
	struct cli c;
	int status = cli_parse(&c, cmd, argc, argv, &e);

	if (status == 0 && cli_asked_help(&c))
		cli_help_command(stdout, cmd);
	else if (status == 0)
		status = cmd->run(&c, &e);
	status = finish(&c, status, &e);
	cli_release(&c);
	return status;
}

/*
 * Common options may stand before the command: they are moved behind its words. Returns the number
 * of arguments that belong to them.
 */
static int leading_options(int argc, char **argv)
{
	int i = 0;

	while (i < argc && argv[i][0] == '-' && argv[i][1]) {
		const char *name = argv[i] + (argv[i][1] == '-' ? 2 : 1);

		i += strcmp(name, "url") == 0 ? 2 : 1;
	}
	return i < argc ? i : argc;
}

static int dispatch(int argc, char **argv)
{
	int lead = leading_options(argc, argv), used = 0;
	_cleanup_free_ const char **moved = calloc((size_t)argc + 1, sizeof(*moved));
	const struct cli_command *cmd = NULL;

	if (!moved)
		return CLI_FAILED;
	if (lead < argc)
		cmd = find(argc - lead, argv + lead, &used);
	if (cmd) {
		for (int i = 0; i < argc - used; i++)
			moved[i] = argv[i < lead ? i : i + used];
		return run_command(cmd, argc - used, moved);
	}
	if (lead < argc && strcmp(argv[lead], "help") != 0)
		return unknown(argc - lead, argv + lead);
	if (lead + 1 < argc && (cmd = find(argc - lead - 1, argv + lead + 1, &used))) {
		cli_help_command(stdout, cmd);
		return CLI_OK;
	}
	if (lead < argc || (argc && (!strcmp(argv[0], "--help") || !strcmp(argv[0], "-h")))) {
		cli_help_all(stdout);
		return CLI_OK;
	}
	if (argc && (!strcmp(argv[0], "--version")))
		return run_command(&cmd_version, 0, NULL);
	cli_help_all(stderr);
	return CLI_USAGE;
}

int main(int argc, char **argv)
{
	int status = dispatch(argc - 1, argv + 1);

	return fflush(stdout) == EOF && !status ? CLI_FAILED : status;
}
