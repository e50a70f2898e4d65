/* What several commands do with sandboxes through the API. */
#ifndef CLOCHE_CLI_SANDBOX_H
#define CLOCHE_CLI_SANDBOX_H

#include <jansson.h>

#include "cli/cli.h"

struct buf;
struct err;
struct http;

/* The options of `new` and `run` that describe a sandbox, for use in an option table. */
#define SANDBOX_OPTIONS                                                                                \
	{ "image", 0, CLI_STR, "NAME", "the image to start from", 0, 0, NULL },                        \
		{ "name", 0, CLI_STR, "NAME", "a name for people", 0, 0, NULL },                       \
		{ "vcpus", 0, CLI_INT, "N", "virtual CPUs", 1, 32, NULL },                             \
		{ "memory", 0, CLI_INT, "MIB", "memory in MiB", 1, 65536, NULL },                      \
		{ "disk", 0, CLI_INT, "MIB", "size of the disk in MiB", 1, 1 << 24, NULL },            \
		{ "ttl-seconds",                                                                       \
		  0,                                                                                   \
		  CLI_INT,                                                                             \
		  "N",                                                                                 \
		  "the lease: what happens at its end is on-lease-end",                                \
		  1,                                                                                   \
		  1LL << 32,                                                                           \
		  NULL },                                                                              \
		{ "on-lease-end",                                                                      \
		  0,                                                                                   \
		  CLI_STR,                                                                             \
		  "stop|pause|delete",                                                                 \
		  "what the end of the lease does",                                                    \
		  0,                                                                                   \
		  0,                                                                                   \
		  sandbox_lease_ends },                                                                \
		{ "env", 'e', CLI_LIST, "NAME=VALUE", "an environment variable of every command",      \
		  0,	 0,   NULL },                                                                  \
		{ "no-env", 0, CLI_FLAG, NULL, "nothing from the account's environment", 0, 0, NULL }, \
		{ "metadata", 0, CLI_LIST, "KEY=VALUE", "a label for ls and for programs",             \
		  0,	      0, NULL },                                                               \
		{ "net",                                                                               \
		  0,                                                                                   \
		  CLI_STR,                                                                             \
		  "none|open|allow",                                                                   \
		  "which network the sandbox may reach",                                               \
		  0,                                                                                   \
		  0,                                                                                   \
		  sandbox_net_modes },                                                                 \
	{                                                                                              \
		"allow-domain", 0, CLI_LIST, "DOMAIN",                                                 \
			"a name it may reach (implies --net allow)", 0, 0, NULL                        \
	}

extern const char *const sandbox_lease_ends[], *const sandbox_net_modes[];

/* The body of POST /v1/sandboxes from those options. */
int sandbox_body(const struct cli *c, json_t **out, struct err *e);

/* Creates; *out is the sandbox object. */
int sandbox_create(struct cli *c, json_t **out, struct err *e);

/* Appends "/v1/sandboxes/{id}" and tail ("" or "/exec"); id is escaped. */
int sandbox_path(struct buf *b, const char *id, const char *tail, struct err *e);

/* One call on /v1/sandboxes/{id}{tail}; *out may be NULL. */
int sandbox_call(struct cli *c, const char *method, const char *id, const char *tail,
		 const json_t *body, json_t **out, struct err *e);

/* The same over a client of the caller's. */
int sandbox_call_on(struct http *h, const char *method, const char *id, const char *tail,
		    const json_t *body, json_t **out, struct err *e);

/* {"NAME":"VALUE",…} from NAME=VALUE strings of the option called name. */
int sandbox_pairs(const struct cli *c, const char *name, json_t **out, struct err *e);

#endif
