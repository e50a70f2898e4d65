/* cloched: one program in two roles; see roles.h. */
#include <stdio.h>

#include "base/err.h"
#include "cloched/options.h"
#include "cloched/roles.h"

int main(int argc, char **argv)
{
	struct options o;
	struct err e = { 0 };
	int r = 0;

	if (options_parse(argc, (const char *const *)argv, &o, &e) < 0) {
		fprintf(stderr, "cloched: %s\n%s%s", e.msg, e.fix, e.fix[0] ? "\n" : "");
		r = 2;
	} else if (o.help) {
		options_help();
	} else if (o.version) {
		printf("cloched %s\n", CLOCHED_VERSION);
	} else {
		r = o.api_child ? role_api(&o) : role_broker(&o, argv);
	}
	options_free(&o);
	return r;
}
