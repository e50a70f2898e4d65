/* Options become the API's fields one to one; checking their values is the API's work. */
#include "cli/sandbox.h"

#include <errno.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "cli/http.h"

const char *const sandbox_lease_ends[] = { "stop", "pause", "delete", NULL };
const char *const sandbox_net_modes[] = { "none", "open", "allow", NULL };

static int no_memory(struct err *e)
{
	return err_errno(e, ENOMEM, "write the request");
}

int sandbox_pairs(const struct cli *c, const char *name, json_t **out, struct err *e)
{
	_cleanup_json_ json_t *map = json_object();
	const char *const *list;
	size_t n = cli_list(c, name, &list);

	for (size_t i = 0; i < n; i++) {
		const char *eq = strchr(list[i], '=');

		if (!eq || eq == list[i])
			return cli_usage(e, "--%s needs NAME=VALUE, not \"%s\"", name, list[i]);
		if (json_object_setn_new(map, list[i], (size_t)(eq - list[i]),
					 json_string(eq + 1)) < 0)
			return cli_usage(e, "--%s %s is not UTF-8", name, list[i]);
	}
	*out = steal_ptr(map);
	return 0;
}

static int add_pairs(const struct cli *c, const char *option, json_t *body, const char *field,
		     struct err *e)
{
	json_t *map = NULL;
	int ret;

	if (!cli_given(c, option))
		return 0;
	ret = sandbox_pairs(c, option, &map, e);
	if (ret < 0)
		return ret;
	return json_object_set_new(body, field, map) < 0 ? no_memory(e) : 0;
}

static int add_network(const struct cli *c, json_t *body, struct err *e)
{
	const char *mode = cli_str(c, "net", NULL);
	const char *const *names;
	size_t n = cli_list(c, "allow-domain", &names);
	json_t *net, *allow;

	if (!mode && !n)
		return 0;
	if (mode && n && strcmp(mode, "allow") != 0)
		return cli_usage(e, "--allow-domain goes with --net allow, not with --net %s",
				 mode);
	net = json_pack("{s:s,s:[]}", "mode", mode ? mode : "allow", "allow");
	allow = json_object_get(net, "allow");
	for (size_t i = 0; i < n; i++)
		if (json_array_append_new(allow, json_string(names[i])) < 0)
			return cli_usage(e, "--allow-domain %s is not UTF-8", names[i]);
	if (!n)
		json_object_del(net, "allow");
	return json_object_set_new(body, "network", net) < 0 ? no_memory(e) : 0;
}

int sandbox_body(const struct cli *c, json_t **out, struct err *e)
{
	static const struct {
		const char *option, *field;
	} strings[] = { { "image", "image" },
			{ "name", "name" },
			{ "on-lease-end", "onLeaseEnd" } },
	  numbers[] = { { "vcpus", "vcpus" },
			{ "memory", "memoryMiB" },
			{ "disk", "diskMiB" },
			{ "ttl-seconds", "timeoutSeconds" } };
	_cleanup_json_ json_t *body = json_object();
	int ret;

	for (size_t i = 0; i < ARRAY_SIZE(strings); i++) {
		const char *v = cli_str(c, strings[i].option, NULL);

		if (v && json_object_set_new(body, strings[i].field, json_string(v)) < 0)
			return cli_usage(e, "--%s is not UTF-8", strings[i].option);
	}
	for (size_t i = 0; i < ARRAY_SIZE(numbers); i++)
		if (cli_given(c, numbers[i].option) &&
		    json_object_set_new(body, numbers[i].field,
					json_integer(cli_int(c, numbers[i].option, 0))) < 0)
			return no_memory(e);
	if (cli_flag(c, "no-env") && json_object_set_new(body, "noEnv", json_true()) < 0)
		return no_memory(e);
	ret = add_pairs(c, "env", body, "env", e);
	ret = ret ?: add_pairs(c, "metadata", body, "metadata", e);
	ret = ret ?: add_network(c, body, e);
	if (ret == 0)
		*out = steal_ptr(body);
	return ret;
}

int sandbox_create(struct cli *c, json_t **out, struct err *e)
{
	_cleanup_json_ json_t *body = NULL;
	struct http *h = NULL;
	int ret = sandbox_body(c, &body, e);

	if (ret == 0)
		ret = cli_http(c, &h, e);
	if (ret == 0)
		ret = http_json(h, "POST", "/v1/sandboxes", body, out, e);
	return ret;
}

int sandbox_path(struct buf *b, const char *id, const char *tail, struct err *e)
{
	if (!*id)
		return cli_usage(e, "the sandbox's id is empty");
	if (buf_str(b, "/v1/sandboxes/") < 0 || http_escape(b, id) < 0 || buf_str(b, tail) < 0)
		return no_memory(e);
	return 0;
}

int sandbox_call_on(struct http *h, const char *method, const char *id, const char *tail,
		    const json_t *body, json_t **out, struct err *e)
{
	_cleanup_buf_ struct buf path = { 0 };
	int ret = sandbox_path(&path, id, tail, e);

	return ret ?: http_json(h, method, path.data, body, out, e);
}

int sandbox_call(struct cli *c, const char *method, const char *id, const char *tail,
		 const json_t *body, json_t **out, struct err *e)
{
	struct http *h = NULL;
	int ret = cli_http(c, &h, e);

	return ret ?: sandbox_call_on(h, method, id, tail, body, out, e);
}
