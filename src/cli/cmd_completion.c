/*
 * cloche completion: a script for bash, zsh or fish that is made from the command tables. Each
 * completes commands, their second words, and option names; values are left to the shell.
 */
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/str.h"
#include "cli/commands.h"

/* Option names of cmd, "--a --b", common ones included. */
static void print_options(const struct cli_command *cmd)
{
	for (const struct cli_option *o = cmd->options; o && o->name; o++)
		printf("--%s ", o->name);
	for (const struct cli_option *o = cli_common_options; o->name; o++)
		printf("--%s ", o->name);
}

static size_t first_word(const char *name)
{
	return strcspn(name, " ");
}

/* Whether no earlier command has the same first word. */
static bool word_is_new(size_t at)
{
	const char *name = cli_commands[at]->name;
	size_t n = first_word(name);

	for (size_t i = 0; i < at; i++)
		if (first_word(cli_commands[i]->name) == n &&
		    strncmp(cli_commands[i]->name, name, n) == 0)
			return false;
	return true;
}

static void print_first_words(void)
{
	for (size_t i = 0; cli_commands[i]; i++)
		if (word_is_new(i))
			printf("%.*s ", (int)first_word(cli_commands[i]->name),
			       cli_commands[i]->name);
}

static void print_second_words(const char *group, size_t n)
{
	for (size_t i = 0; cli_commands[i]; i++) {
		const char *name = cli_commands[i]->name;

		if (strncmp(name, group, n) == 0 && name[n] == ' ')
			printf("%s ", name + n + 1);
	}
}

static void bash(void)
{
	printf("_cloche()\n{\n\tlocal cur=${COMP_WORDS[COMP_CWORD]} words=\"\"\n"
	       "\tif ((COMP_CWORD == 1)); then\n\t\twords=\"");
	print_first_words();
	printf("\"\n\telse\n\t\tcase \"${COMP_WORDS[1]} ${COMP_WORDS[2]}\" in\n");
	for (size_t i = 0; cli_commands[i]; i++) {
		const char *name = cli_commands[i]->name;

		if (name[first_word(name)]) {
			printf("\t\t\"%s\") words=\"", name);
			print_options(cli_commands[i]);
			printf("\" ;;\n");
		}
	}
	for (size_t i = 0; cli_commands[i]; i++) {
		const char *name = cli_commands[i]->name;
		size_t n = first_word(name);

		if (!word_is_new(i))
			continue;
		printf("\t\t\"%.*s \"*) words=\"", (int)n, name);
		if (name[n])
			print_second_words(name, n);
		else
			print_options(cli_commands[i]);
		printf("\" ;;\n");
	}
	printf("\t\tesac\n\tfi\n\tmapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$cur\")\n}\n"
	       "complete -o default -F _cloche cloche\n");
}

static void zsh(void)
{
	printf("#compdef cloche\nautoload -U +X bashcompinit && bashcompinit\n");
	bash();
}

/* s within single quotes for fish. */
static void fish_quoted(const char *s)
{
	putchar('\'');
	for (; *s; s++) {
		if (*s == '\'' || *s == '\\')
			putchar('\\');
		putchar(*s);
	}
	putchar('\'');
}

static void fish_command(const struct cli_command *cmd, bool new_word)
{
	size_t n = first_word(cmd->name);

	if (new_word) {
		printf("complete -c cloche -n __fish_use_subcommand -f -a '%.*s' -d ", (int)n,
		       cmd->name);
		fish_quoted(cmd->summary);
		putchar('\n');
	}
	if (cmd->name[n]) {
		printf("complete -c cloche -n '__fish_seen_subcommand_from %.*s' -f -a '%s' -d ",
		       (int)n, cmd->name, cmd->name + n + 1);
		fish_quoted(cmd->summary);
		putchar('\n');
	}
	for (const struct cli_option *o = cmd->options; o && o->name; o++) {
		printf("complete -c cloche -n '__fish_seen_subcommand_from %.*s' -l %s%s -d ",
		       (int)n, cmd->name, o->name, o->arg ? " -r" : "");
		fish_quoted(o->help);
		putchar('\n');
	}
}

static void fish(void)
{
	for (size_t i = 0; cli_commands[i]; i++)
		fish_command(cli_commands[i], word_is_new(i));
	for (const struct cli_option *o = cli_common_options; o->name; o++) {
		printf("complete -c cloche -l %s%s -d ", o->name, o->arg ? " -r" : "");
		fish_quoted(o->help);
		putchar('\n');
	}
}

static int completion_run(struct cli *c, struct err *e)
{
	static const struct {
		const char *shell;
		void (*print)(void);
	} shells[] = { { "bash", bash }, { "zsh", zsh }, { "fish", fish } };

	for (size_t i = 0; i < ARRAY_SIZE(shells); i++) {
		if (strcmp(c->args[0], shells[i].shell) == 0) {
			shells[i].print();
			return 0;
		}
	}
	cli_usage(e, "no completion for \"%s\"", c->args[0]);
	err_fix(e, "The shells are bash, zsh and fish.");
	return -1;
}

const struct cli_command cmd_completion = {
	.name = "completion",
	.summary = "Print a completion script for a shell",
	.usage = "bash|zsh|fish",
	.details = "bash: source <(cloche completion bash)\n"
		   "zsh:  cloche completion zsh > \"${fpath[1]}/_cloche\"\n"
		   "fish: cloche completion fish > ~/.config/fish/completions/cloche.fish",
	.min_args = 1,
	.max_args = 1,
	.run = completion_run,
};
