/* Help texts, made from the command tables; nothing about a command is written twice. */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"

void cli_help_all(void *f)
{
	fprintf(f, "Cloche gives each AI agent a small computer of its own.\n\n"
		   "Usage: cloche COMMAND [options] …\n\nCommands:\n");
	for (size_t i = 0; cli_commands[i]; i++)
		fprintf(f, "  %-16s %s\n", cli_commands[i]->name, cli_commands[i]->summary);
	fprintf(f,
		"\n'cloche COMMAND --help' explains one. Exit status: 0 done; run and exec: the\n"
		"command's own; %d its time limit passed; %d Cloche failed or the outcome is\n"
		"unknown; %d the command line was wrong.\n",
		CLI_TIMEOUT, CLI_FAILED, CLI_USAGE);
}

void cli_help_group(void *f, const char *group)
{
	size_t n = strlen(group);

	fprintf(f, "Usage: cloche %s COMMAND [options] …\n\nCommands:\n", group);
	for (size_t i = 0; cli_commands[i]; i++)
		if (strncmp(cli_commands[i]->name, group, n) == 0 &&
		    cli_commands[i]->name[n] == ' ')
			fprintf(f, "  %-16s %s\n", cli_commands[i]->name, cli_commands[i]->summary);
}

static void option_help(FILE *f, const struct cli_option *o)
{
	char left[64];

	if (o->letter)
		snprintf(left, sizeof(left), "-%c, --%s%s%s", o->letter, o->name, o->arg ? " " : "",
			 o->arg ? o->arg : "");
	else
		snprintf(left, sizeof(left), "    --%s%s%s", o->name, o->arg ? " " : "",
			 o->arg ? o->arg : "");
	fprintf(f, "  %-35s %s%s\n", left, o->help, o->kind == CLI_LIST ? " (repeatable)" : "");
}

void cli_help_command(void *f, const struct cli_command *cmd)
{
	fprintf(f, "Usage: cloche %s [options]%s%s\n\n%s.\n", cmd->name, *cmd->usage ? " " : "",
		cmd->usage, cmd->summary);
	if (cmd->details)
		fprintf(f, "\n%s\n", cmd->details);
	fprintf(f, "\nOptions:\n");
	for (const struct cli_option *o = cmd->options; o && o->name; o++)
		option_help(f, o);
	for (const struct cli_option *o = cli_common_options; o->name; o++)
		option_help(f, o);
}
