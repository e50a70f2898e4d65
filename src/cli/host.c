/* Progress lines come from the library's callback; everything else is passing options on. */
#include "cli/host.h"

#include <stdio.h>

#include "base/err.h"
#include "base/json.h"
#include "cli/term.h"
#include "image/build.h"
#include "machine/machine.h"
#include "machine/paths.h"

#define MIRROR_OPTIONS                                                            \
	{ .name = "mirror",                                                       \
	  .kind = CLI_STR,                                                        \
	  .arg = "URL",                                                           \
	  .help = "archive to take packages from (the host's own apt sources)" }, \
	{                                                                         \
		.name = "security-mirror", .kind = CLI_STR, .arg = "URL",         \
		.help = "archive of security updates, with --mirror"              \
	}

/* clang-format off */
const struct cli_option host_machine_options[] = {
	{ .name = "memory", .kind = CLI_INT, .arg = "MIB", .min = 1024, .max = 1048576,
	  .help = "memory of the machine (4096, but at most half of the host's)" },
	{ .name = "vcpus", .kind = CLI_INT, .arg = "N", .min = 1, .max = 64,
	  .help = "its virtual processors (2)" },
	{ .name = "disk", .kind = CLI_INT, .arg = "GIB", .min = 4, .max = 65536,
	  .help = "size of its data disk (64); it takes only what is used, and only grows" },
	{ .name = "port", .kind = CLI_INT, .arg = "PORT", .min = 1, .max = 65535,
	  .help = "port of the API on 127.0.0.1 (7070)" },
	{ .name = "software", .kind = CLI_FLAG,
	  .help = "emulate in software even where the host's KVM could be used" },
	MIRROR_OPTIONS,
	{ .name = NULL },
};
/* clang-format on */

static void on_step(void *ctx, const char *text)
{
	progress_step(ctx, "%s", text);
}

int host_machine_start(struct cli *c, const struct cloche_paths *p, struct err *e)
{
	struct progress *progress = progress_new(!c->json);
	struct machine_spec s = {
		.state_dir = p->machine,
		.images_dir = p->images,
		.memory_mib = (unsigned)cli_int(c, "memory", 0),
		.vcpus = (unsigned)cli_int(c, "vcpus", 0),
		.disk_gib = (unsigned)cli_int(c, "disk", 0),
		.api_port = (uint16_t)cli_int(c, "port", 0),
		.software = cli_flag(c, "software"),
		.mirror = cli_str(c, "mirror", NULL),
		.security_mirror = cli_str(c, "security-mirror", NULL),
		.on_step = on_step,
		.ctx = progress,
	};
	int ret = machine_start(&s, e);

	progress_free(progress, ret == 0);
	return ret;
}

int host_build_image(struct cli *c, const struct cloche_paths *p, const char *recipe,
		     const char *name, const char *npm_registry, struct err *e)
{
	struct progress *progress = progress_new(!c->json);
	struct image_build b = {
		.recipe = recipe,
		.name = name,
		.images_dir = p->images,
		.mirror = cli_str(c, "mirror", NULL),
		.security_mirror = cli_str(c, "security-mirror", NULL),
		.npm_registry = npm_registry,
		.on_step = on_step,
		.ctx = progress,
	};
	struct image_manifest m;
	int ret = image_build(&b, &m, e);

	progress_free(progress, ret == 0);
	if (ret == 0 && c->json) {
		_cleanup_json_ json_t *doc = manifest_to_json(&m);

		return cli_print_json(doc, e);
	}
	return ret;
}
