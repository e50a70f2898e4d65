/*
 * The environment is laid together from three: the base that every command has, the account's and
 * the request's; a later one wins. argv is the request's, or a shell with the command's text.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "agent/agent.h"
#include "agent/process.h"
#include "agent/users.h"
#include "base/cleanup.h"
#include "base/json.h"

#define PATH_ROOT "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

static void strings_free(char **v)
{
	for (char **p = v; p && *p; p++)
		free(*p);
	free(v);
}

void command_free(struct command *c)
{
	strings_free(c->argv);
	strings_free(c->env);
	*c = (struct command){ 0 };
}

static char **make_argv(const json_t *request)
{
	const char *command = json_get_str(request, "command", NULL);
	const json_t *argv = json_object_get(request, "argv");
	size_t n = command ? 3 : json_array_size(argv);
	char **v = calloc(n + 1, sizeof(*v));

	for (size_t i = 0; v && i < n; i++) {
		const char *s;

		if (!command)
			s = json_string_value(json_array_get(argv, i));
		else if (i == 0)
			s = access("/bin/bash", X_OK) == 0 ? "/bin/bash" : "/bin/sh";
		else
			s = i == 1 ? "-c" : command;
		v[i] = strdup(s);
		if (!v[i]) {
			strings_free(v);
			return NULL;
		}
	}
	return v;
}

static json_t *base_env(const struct user *u, bool tty)
{
	return json_pack("{s:s,s:s,s:s,s:s,s:s,s:s,s:s}", "PATH", PATH_ROOT, "HOME", u->home,
			 "USER", u->name, "LOGNAME", u->name, "SHELL", u->shell, "LANG", "C.UTF-8",
			 "TERM", tty ? "xterm-256color" : "dumb");
}

static char **make_env(const json_t *all)
{
	char **v = calloc(json_object_size(all) + 1, sizeof(*v));
	const char *key;
	size_t n = 0;
	json_t *item;

	if (!v)
		return NULL;
	json_object_foreach ((json_t *)(uintptr_t)all, key, item) {
		if (asprintf(&v[n], "%s=%s", key, json_string_value(item)) < 0) {
			v[n] = NULL;
			strings_free(v);
			return NULL;
		}
		n++;
	}
	return v;
}

int command_make(struct agent *a, const json_t *request, const struct user *u, const char *id,
		 struct command *c, struct err *e)
{
	const json_t *own = json_object_get(request, "env"), *tty = json_object_get(request, "tty");
	_cleanup_json_ json_t *env = base_env(u, json_is_object(tty));

	if (!env || (a->env && json_object_update(env, a->env) < 0) ||
	    (json_is_object(own) && json_object_update(env, (json_t *)(uintptr_t)own) < 0) ||
	    json_object_set_new(env, AGENT_MARK, json_string(id)) < 0)
		return err_set(e, "out_of_memory", ENOMEM, "start a command");
	c->argv = make_argv(request);
	c->env = make_env(env);
	if (c->argv && c->env)
		return 0;
	command_free(c);
	return err_set(e, "out_of_memory", ENOMEM, "start a command");
}
