/* cloche version: ours, and the daemon's when one answers. */
#include <stdio.h>

#include "base/err.h"
#include "base/json.h"
#include "cli/commands.h"
#include "cli/http.h"

static int version_run(struct cli *c, struct err *e)
{
	_cleanup_json_ json_t *health = NULL, *out = NULL;
	const char *theirs = NULL;
	struct err none;
	struct http *h;
	int ret = cli_http(c, &h, e);

	if (ret < 0)
		return ret;
	http_set_timeout(h, 2);
	if (http_json(h, "GET", "/healthz", NULL, &health, &none) == 0)
		theirs = json_get_str(health, "version", NULL);
	if (c->json) {
		out = json_pack("{s:s,s:s?}", "version", CLOCHE_VERSION, "daemonVersion", theirs);
		return cli_print_json(out, e);
	}
	printf("cloche %s\n", CLOCHE_VERSION);
	if (theirs)
		printf("daemon %s\n", theirs);
	return 0;
}

const struct cli_command cmd_version = {
	.name = "version",
	.summary = "Show the version of the program and of the daemon",
	.usage = "",
	.run = version_run,
};
