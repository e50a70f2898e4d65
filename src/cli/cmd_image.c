/* image build|import|ls|rm: the images on this host that daemons import. */
#include <stdio.h>

#include "base/err.h"
#include "base/json.h"
#include "cli/commands.h"
#include "cli/host.h"
#include "cli/term.h"
#include "image/store.h"
#include "image/tree.h"
#include "machine/paths.h"

static int build_run(struct cli *c, struct err *e)
{
	struct cloche_paths paths;
	int ret = paths_get(&paths, e);

	if (ret == 0)
		ret = host_build_image(c, &paths, c->args[0], cli_str(c, "name", NULL),
				       cli_str(c, "npm-registry", NULL), e);
	return ret;
}

static int import_run(struct cli *c, struct err *e)
{
	struct cloche_paths paths;
	struct progress *p;
	int ret = paths_get(&paths, e);

	if (ret == 0)
		ret = tree_mkdirs(paths.images, e);
	if (ret < 0)
		return ret;
	p = progress_new(false);
	progress_step(p, "Copying and checking the image");
	ret = image_import(c->args[0], paths.images, cli_str(c, "name", NULL), e);
	progress_free(p, ret == 0);
	return ret;
}

static int collect(void *ctx, const struct image_manifest *m)
{
	return json_array_append_new(ctx, manifest_to_json(m));
}

static int ls_row(struct table *t, const json_t *m, struct err *e)
{
	json_int_t bytes = 0;
	char mib[32];

	json_unpack((json_t *)(uintptr_t)m, "{s:{s:{s:I}}}", "files", "disk", "bytes", &bytes);
	snprintf(mib, sizeof(mib), "%lld MiB", (long long)(bytes >> 20));
	return table_row(t,
			 (const char *[]){ json_get_str(m, "name", NULL),
					   json_get_str(m, "distribution", NULL),
					   json_get_str(m, "release", NULL),
					   json_get_str(m, "kernelVersion", NULL), mib,
					   json_get_str(m, "createdAt", NULL) },
			 e);
}

static int ls_run(struct cli *c, struct err *e)
{
	static const char *const heads[] = { "NAME",   "SYSTEM", "RELEASE",
					     "KERNEL", "DISK",	 "CREATED" };
	_cleanup_json_ json_t *all = json_array();
	struct cloche_paths paths;
	struct table *t = NULL;
	const json_t *m;
	size_t i;
	int ret = paths_get(&paths, e);

	if (ret == 0)
		ret = image_list(paths.images, collect, all, e);
	if (ret < 0)
		return ret;
	if (c->json)
		return cli_print_json(all, e);
	ret = table_new(heads, ARRAY_SIZE(heads), &t, e);
	json_array_foreach (all, i, m)
		ret = ret ?: ls_row(t, m, e);
	if (ret == 0)
		table_print(t, stdout);
	table_free(t);
	return ret;
}

static int rm_run(struct cli *c, struct err *e)
{
	struct cloche_paths paths;
	int ret = paths_get(&paths, e);

	for (size_t i = 0; i < c->n_args && ret == 0; i++)
		ret = image_remove(paths.images, c->args[i], e);
	return ret;
}

static const struct cli_option build_options[] = {
	{ .name = "name",
	  .kind = CLI_STR,
	  .arg = "NAME",
	  .help = "name of the image (the recipe's)" },
	{ .name = "mirror",
	  .kind = CLI_STR,
	  .arg = "URL",
	  .help = "archive to take packages from (the host's own apt sources)" },
	{ .name = "security-mirror",
	  .kind = CLI_STR,
	  .arg = "URL",
	  .help = "archive of security updates, with --mirror" },
	{ .name = "npm-registry",
	  .kind = CLI_STR,
	  .arg = "URL",
	  .help = "npm registry for Node.js and Bun (the host's own)" },
	{ .name = NULL },
};

const struct cli_command cmd_image_build = {
	.name = "image build",
	.summary = "Build a guest image by recipe: base, full, ubuntu",
	.usage = "RECIPE",
	.details = "Takes minutes. An image of that name is replaced when the new one is whole.",
	.options = build_options,
	.min_args = 1,
	.max_args = 1,
	.run = build_run,
};

static const struct cli_option import_options[] = {
	{ .name = "name", .kind = CLI_STR, .arg = "NAME", .help = "name of the image (its own)" },
	{ .name = NULL },
};

const struct cli_command cmd_image_import = {
	.name = "image import",
	.summary = "Copy an image from a folder, checking its digests",
	.usage = "FOLDER",
	.options = import_options,
	.min_args = 1,
	.max_args = 1,
	.run = import_run,
};

const struct cli_command cmd_image_ls = {
	.name = "image ls",
	.summary = "List the images of this host",
	.usage = "",
	.run = ls_run,
};

const struct cli_command cmd_image_rm = {
	.name = "image rm",
	.summary = "Remove images from this host",
	.usage = "NAME…",
	.details = "A daemon that has imported the image keeps its own copy.",
	.min_args = 1,
	.max_args = 100,
	.run = rm_run,
};
