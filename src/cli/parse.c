/*
 * The option parser. Every argument that begins with a dash is an option until "--" or, for a
 * command that takes a command, until the first operand too many: `cloche run python3 -c …` needs
 * no "--". One dash serves for a long name too; a single letter is looked up first. Nothing is
 * abbreviated, so that a script keeps its meaning when options are added.
 */
#include "cli/cli.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/str.h"

const struct cli_option cli_common_options[] = {
	{ "json", 0, CLI_FLAG, NULL, "print JSON as the API gives it", 0, 0, NULL },
	{ "url", 0, CLI_STR, "URL", "the daemon to talk to (else CLOCHE_URL, else the config file)",
	  0, 0, NULL },
	{ "help", 'h', CLI_FLAG, NULL, "show this help", 0, 0, NULL },
	{ NULL, 0, CLI_FLAG, NULL, NULL, 0, 0, NULL },
};

int cli_usage(struct err *e, const char *fmt, ...)
{
	char msg[400];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(msg, sizeof(msg), fmt, ap);
	va_end(ap);
	return err_set(e, "usage", EINVAL, "%s", msg);
}

/* The i-th option: the command's own first, then the common ones; NULL past the end. */
static const struct cli_option *option_at(const struct cli_command *cmd, size_t i)
{
	size_t own = 0;

	while (cmd->options && cmd->options[own].name) {
		if (own == i)
			return &cmd->options[i];
		own++;
	}
	i -= own;
	for (size_t k = 0; cli_common_options[k].name; k++)
		if (k == i)
			return &cli_common_options[k];
	return NULL;
}

/* Index of the option called name[0..len), or -1. */
static int option_find(const struct cli_command *cmd, const char *name, size_t len)
{
	const struct cli_option *o;

	for (size_t i = 0; (o = option_at(cmd, i)); i++)
		if (len == 1 && o->letter == name[0])
			return (int)i;
	for (size_t i = 0; (o = option_at(cmd, i)); i++)
		if (strlen(o->name) == len && strncmp(o->name, name, len) == 0)
			return (int)i;
	return -1;
}

static int option_unknown(const struct cli_command *cmd, const char *name, size_t len,
			  struct err *e)
{
	const char *names[CLI_OPTIONS_MAX], *near;
	const struct cli_option *o;
	char word[64];
	size_t n = 0;

	for (; n < ARRAY_SIZE(names) && (o = option_at(cmd, n)); n++)
		names[n] = o->name;
	snprintf(word, sizeof(word), "%.*s", (int)len, name);
	near = str_nearest(word, names, n);
	cli_usage(e, "%s has no option --%s", cmd->name, word);
	if (near)
		err_fix(e, "Did you mean --%s?", near);
	return -EINVAL;
}

static int choice_check(const struct cli_option *o, const char *v, struct err *e)
{
	const char *near;
	size_t n = 0;

	if (!o->choices)
		return 0;
	for (; o->choices[n]; n++)
		if (strcmp(o->choices[n], v) == 0)
			return 0;
	cli_usage(e, "--%s cannot be \"%s\"", o->name, v);
	near = str_nearest(v, o->choices, n);
	if (near)
		err_fix(e, "Did you mean %s?", near);
	else
		err_fix(e, "It is one of %s.", o->arg);
	return -EINVAL;
}

static int value_set(struct cli_value *v, const struct cli_option *o, const char *s, struct err *e)
{
	const char **list;
	int ret;

	switch (o->kind) {
	case CLI_FLAG:
		break;
	case CLI_STR:
		ret = choice_check(o, s, e);
		if (ret < 0)
			return ret;
		v->str = s;
		break;
	case CLI_INT:
		if (str_to_int(s, o->min, o->max, &v->num) < 0)
			return cli_usage(e, "--%s must be a number from %lld to %lld, not \"%s\"",
					 o->name, (long long)o->min, (long long)o->max, s);
		break;
	case CLI_LIST:
		list = reallocarray(v->list, v->n + 1, sizeof(*list));
		if (!list)
			return err_errno(e, ENOMEM, "read the options");
		list[v->n] = s;
		v->list = list;
		break;
	}
	v->n++;
	return 0;
}

/* Takes the option at argv[*i] and its value, and leaves *i at the last argument used. */
static int option_take(struct cli *c, int argc, const char *const *argv, int *i, struct err *e)
{
	const char *name = argv[*i] + (argv[*i][1] == '-' ? 2 : 1);
	size_t len = strcspn(name, "=");
	const char *value = name[len] == '=' ? name + len + 1 : NULL;
	const struct cli_option *o;
	int at = option_find(c->cmd, name, len);

	if (at < 0)
		return option_unknown(c->cmd, name, len, e);
	o = option_at(c->cmd, (size_t)at);
	if (o->kind == CLI_FLAG && value)
		return cli_usage(e, "--%s takes no value", o->name);
	if (o->kind != CLI_FLAG && !value) {
		if (*i + 1 >= argc)
			return cli_usage(e, "--%s needs a value: %s", o->name, o->arg);
		value = argv[++*i];
	}
	return value_set(&c->values[at], o, value, e);
}

static int operands_check(const struct cli *c, struct err *e)
{
	const struct cli_command *cmd = c->cmd;

	if (c->n_args < cmd->min_args)
		cli_usage(e, "%s needs %s", cmd->name, cmd->usage);
	else if (cmd->takes_command && !c->n_command)
		cli_usage(e, "%s needs a command", cmd->name);
	else if (c->n_args > cmd->max_args)
		cli_usage(e, "%s does not take \"%s\"", cmd->name, c->args[cmd->max_args]);
	else
		return 0;
	err_fix(e, "Usage: cloche %s [options] %s", cmd->name, cmd->usage);
	return -EINVAL;
}

int cli_parse(struct cli *c, const struct cli_command *cmd, int argc, const char *const *argv,
	      struct err *e)
{
	bool ended = false;

	assert(!option_at(cmd, CLI_OPTIONS_MAX));
	*c = (struct cli){ .cmd = cmd };
	c->args = calloc((size_t)argc + 1, sizeof(*c->args));
	if (!c->args)
		return err_errno(e, ENOMEM, "read the command line");
	for (int i = 0; i < argc; i++) {
		if (!ended && strcmp(argv[i], "--") == 0) {
			ended = true;
			if (!cmd->takes_command)
				continue;
			i++;
		} else if (!ended && argv[i][0] == '-' && argv[i][1]) {
			int ret = option_take(c, argc, argv, &i, e);

			if (ret < 0)
				return ret;
			continue;
		}
		if (cmd->takes_command && (ended || c->n_args == cmd->max_args)) {
			c->command = argv + i;
			c->n_command = (size_t)(argc - i);
			break;
		}
		c->args[c->n_args++] = argv[i];
	}
	c->json = cli_flag(c, "json");
	return cli_asked_help(c) ? 0 : operands_check(c, e);
}

static const struct cli_value *value_of(const struct cli *c, const char *name)
{
	int at = option_find(c->cmd, name, strlen(name));

	assert(at >= 0);
	return &c->values[at];
}

bool cli_asked_help(const struct cli *c)
{
	return cli_flag(c, "help");
}

bool cli_flag(const struct cli *c, const char *name)
{
	return value_of(c, name)->n > 0;
}

bool cli_given(const struct cli *c, const char *name)
{
	return value_of(c, name)->n > 0;
}

const char *cli_str(const struct cli *c, const char *name, const char *absent)
{
	const struct cli_value *v = value_of(c, name);

	return v->n ? v->str : absent;
}

int64_t cli_int(const struct cli *c, const char *name, int64_t absent)
{
	const struct cli_value *v = value_of(c, name);

	return v->n ? v->num : absent;
}

size_t cli_list(const struct cli *c, const char *name, const char *const **out)
{
	const struct cli_value *v = value_of(c, name);

	*out = v->list;
	return v->n;
}
