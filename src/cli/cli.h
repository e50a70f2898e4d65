/*
 * The command line's frame. A command is one `const struct cli_command`, listed in commands.c;
 * options are parsed by one parser from its table, so help, completion and suggestions for typos
 * come from the same place.
 *
 * To add a command: write src/cli/cmd_NAME.c with `const struct cli_command cmd_NAME = {…}`,
 * declare and list it in commands.c, add the file to meson.build.
 */
#ifndef CLOCHE_CLI_CLI_H
#define CLOCHE_CLI_CLI_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct http;

#define CLI_OPTIONS_MAX 32 /* options of one command, the common ones included */

enum cli_exit {
	CLI_OK = 0,
	CLI_USAGE = 2,	     /* the command line was wrong; nothing was done */
	CLI_TIMEOUT = 124,   /* run, exec: the command's own time limit passed */
	CLI_FAILED = 125,    /* Cloche itself failed, or the outcome is unknown */
	CLI_INTERRUPT = 130, /* left by a second Ctrl-C */
};

enum cli_kind {
	CLI_FLAG, /* no value */
	CLI_STR,
	CLI_INT,  /* min..max */
	CLI_LIST, /* may be given many times */
};

struct cli_option {
	const char *
		name; /* "ttl-seconds": given as --ttl-seconds N, --ttl-seconds=N, -ttl-seconds N */
	char letter;  /* 'n' for -n, or 0 */
	enum cli_kind kind;
	const char *arg; /* what help calls the value, NULL for a flag */
	const char *help;
	int64_t min, max;
	const char *const *choices; /* CLI_STR: NULL, or the values allowed, NULL-terminated */
};

struct cli;

struct cli_command {
	const char *name;    /* "ls", or two words: "machine start" */
	const char *summary; /* one line, no full stop */
	const char *usage;   /* the operands: "ID… " or "[--] CMD…"; "" when none */
	const char *details; /* more for --help, or NULL */
	const struct cli_option *options; /* ended by a NULL name; NULL when none */
	size_t min_args, max_args;	  /* operands */
	/* Operands beyond max_args, or after "--", are a command for a sandbox: cli.command. */
	bool takes_command;
	/* Returns an exit status >= 0, or negative with e filled (printed; status CLI_FAILED). */
	int (*run)(struct cli *c, struct err *e);
};

struct cli_value {
	const char *str;
	int64_t num;
	const char **list;
	size_t n; /* times given */
};

/* One invocation. All strings are borrowed from argv. */
struct cli {
	const struct cli_command *cmd;
	struct cli_value values[CLI_OPTIONS_MAX];
	const char **args; /* operands */
	size_t n_args;
	const char *const *command; /* takes_command: its argv, not NULL-terminated */
	size_t n_command;
	bool json; /* --json: print the API's objects */
	struct http *http;
};

/* Options every command has: --json, --url, --help. */
extern const struct cli_option cli_common_options[];

/* All commands, ended by NULL, in the order of help. */
extern const struct cli_command *const cli_commands[];

/*
 * Parses what follows the command's name. Failures have code "usage". Release with cli_release().
 * cli_asked_help() tells when --help was among the options (operands are then not checked).
 */
int cli_parse(struct cli *c, const struct cli_command *cmd, int argc, const char *const *argv,
	      struct err *e);
bool cli_asked_help(const struct cli *c);
void cli_release(struct cli *c);

/* Values by option name, which must be in the command's table (or common). */
bool cli_flag(const struct cli *c, const char *name);
const char *cli_str(const struct cli *c, const char *name, const char *absent);
int64_t cli_int(const struct cli *c, const char *name, int64_t absent);
bool cli_given(const struct cli *c, const char *name);
size_t cli_list(const struct cli *c, const char *name, const char *const **out);

/* A mistake on the command line found by the command itself: exit status CLI_USAGE. */
int cli_usage(struct err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* The API client for --url, the environment or the configuration file; lives as long as c. */
int cli_http(struct cli *c, struct http **out, struct err *e);

/* Prints an object or array as JSON, indented, with a newline. */
int cli_print_json(const json_t *v, struct err *e);

/* Help texts, on f (FILE *). */
void cli_help_all(void *f);
void cli_help_command(void *f, const struct cli_command *cmd);
void cli_help_group(void *f, const char *group);

#endif
