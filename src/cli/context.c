/* What an invocation owns besides its parsed options: the API client and the output. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/err.h"
#include "cli/cli.h"
#include "cli/config.h"
#include "cli/http.h"

int cli_http(struct cli *c, struct http **out, struct err *e)
{
	struct config conf = { 0 };
	int ret = 0;

	if (!c->http) {
		ret = config_load(cli_str(c, "url", NULL), &conf, e);
		if (ret == 0)
			ret = http_new(conf.url, conf.key, &c->http, e);
		config_free(&conf);
	}
	*out = c->http;
	return ret;
}

int cli_print_json(const json_t *v, struct err *e)
{
	if (json_dumpf(v, stdout, JSON_INDENT(2) | JSON_ENCODE_ANY) < 0 || putchar('\n') == EOF)
		return err_errno(e, errno ? errno : EIO, "write the output");
	return 0;
}

void cli_release(struct cli *c)
{
	for (size_t i = 0; i < CLI_OPTIONS_MAX; i++)
		free(c->values[i].list);
	free(c->args);
	http_free(c->http);
	*c = (struct cli){ 0 };
}
