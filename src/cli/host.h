/* What the commands that care for this host share: up, down, machine, image. */
#ifndef CLOCHE_CLI_HOST_H
#define CLOCHE_CLI_HOST_H

#include <stdbool.h>

#include "cli/cli.h"

struct cloche_paths;
struct err;

/* --memory --vcpus --disk --port --software --mirror --security-mirror, NULL-terminated. */
extern const struct cli_option host_machine_options[];

/* Starts the machine with those options, with progress. */
int host_machine_start(struct cli *c, const struct cloche_paths *p, struct err *e);

/* Builds an image with progress (name, npm_registry: NULL for the default); the command must have
 * --mirror and --security-mirror. */
int host_build_image(struct cli *c, const struct cloche_paths *p, const char *recipe,
		     const char *name, const char *npm_registry, struct err *e);

#endif
