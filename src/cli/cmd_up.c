/*
 * up and down: from nothing to an API that answers, and back. `up` picks native or machine mode by
 * measuring KVM, makes the base image where it is missing, starts, and writes the user's
 * configuration; each part is skipped when it is done already.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/json.h"
#include "cli/commands.h"
#include "cli/config.h"
#include "cli/host.h"
#include "cli/term.h"
#include "image/store.h"
#include "machine/doctor.h"
#include "machine/machine.h"
#include "machine/native.h"
#include "machine/paths.h"
#include "machine/probe.h"

#define KEY_MAX 256

/* Which mode: what runs already, else what was asked for, else what fits the host. */
static bool pick_native(struct cli *c, const struct cloche_paths *p, struct err *e)
{
	struct machine_status st;
	struct probe probe;

	if (cli_flag(c, "native") || native_running(p))
		return true;
	if (cli_flag(c, "machine") || (machine_status(p->machine, &st, e) == 0 && st.running))
		return false;
	probe_kvm(&probe);
	if (!c->json)
		fprintf(stderr, "%s. Using %s mode.\n", probe.reason,
			doctor_mode(probe.kind, geteuid() == 0));
	return strcmp(doctor_mode(probe.kind, geteuid() == 0), "native") == 0;
}

static int ensure_base(struct cli *c, const struct cloche_paths *p, struct err *e)
{
	struct image_manifest m;

	if (cli_flag(c, "no-image") || image_load(p->images, "base", &m, NULL) == 0)
		return 0;
	return host_build_image(c, p, "base", NULL, NULL, e);
}

/* Writes URL and key where the other commands read them. */
static int configure(uint16_t port, char *key, struct err *e)
{
	struct config config = { .key = key };
	char url[64];

	snprintf(url, sizeof(url), "http://127.0.0.1:%u", (unsigned)port);
	config.url = url;
	return config_save(&config, e);
}

static int start(struct cli *c, const struct cloche_paths *p, bool native, uint16_t port, char *key,
		 struct err *e)
{
	struct machine_status st;
	struct progress *progress;
	int ret;

	if (!native) {
		ret = host_machine_start(c, p, e);
		if (ret == 0 && machine_status(p->machine, &st, e) == 0 && st.outdated)
			fprintf(stderr, "The machine runs programs older than those installed. "
					"To change over: cloche down, then cloche up.\n");
		return ret < 0 ? ret : machine_key(p->machine, key, KEY_MAX, e);
	}
	progress = progress_new(!c->json);
	progress_step(progress, "starting cloched");
	ret = native_start(p, port, e);
	progress_free(progress, ret == 0);
	return ret < 0 ? ret : native_key(p, key, KEY_MAX, e);
}

static int up_run(struct cli *c, struct err *e)
{
	uint16_t port = (uint16_t)cli_int(c, "port", MACHINE_API_PORT);
	struct cloche_paths paths;
	char key[KEY_MAX] = "";
	bool native;
	int ret = paths_get(&paths, e);

	if (ret < 0)
		return ret;
	if (cli_flag(c, "native") && cli_flag(c, "machine"))
		return cli_usage(e, "--native and --machine exclude each other");
	native = pick_native(c, &paths, e);
	if (native && geteuid() != 0)
		return err_set(e, "usage", 1, "native mode needs root");
	ret = ensure_base(c, &paths, e);
	if (ret == 0)
		ret = start(c, &paths, native, port, key, e);
	if (ret == 0)
		ret = configure(port, key, e);
	explicit_bzero(key, sizeof(key));
	if (ret < 0)
		return ret;
	if (c->json) {
		_cleanup_json_ json_t *out = json_pack(
			"{s:s,s:i}", "mode", native ? "native" : "machine", "apiPort", (int)port);

		return cli_print_json(out, e);
	}
	fprintf(stderr, "Cloche is up: http://127.0.0.1:%u\n", (unsigned)port);
	return 0;
}

static int down_run(struct cli *c, struct err *e)
{
	struct cloche_paths paths;
	struct progress *p;
	int ret = paths_get(&paths, e), stopped;

	if (ret < 0)
		return ret;
	p = progress_new(!c->json);
	progress_step(p, "stopping");
	stopped = native_stop(&paths, e);
	ret = stopped < 0 ? stopped
			  : machine_stop(paths.machine, (unsigned)cli_int(c, "timeout", 30), e);
	progress_free(p, ret >= 0);
	return ret < 0 ? ret : 0;
}

/* clang-format off */
static const struct cli_option up_options[] = {
	{ .name = "native", .kind = CLI_FLAG, .help = "run on this host's KVM, whatever was measured" },
	{ .name = "machine", .kind = CLI_FLAG, .help = "run in a virtual machine, whatever was measured" },
	{ .name = "no-image", .kind = CLI_FLAG, .help = "do not make the base image" },
	{ .name = "memory", .kind = CLI_INT, .arg = "MIB", .min = 1024, .max = 1048576,
	  .help = "memory of the machine (4096, but at most half of the host's)" },
	{ .name = "vcpus", .kind = CLI_INT, .arg = "N", .min = 1, .max = 64,
	  .help = "its virtual processors (2)" },
	{ .name = "disk", .kind = CLI_INT, .arg = "GIB", .min = 4, .max = 65536,
	  .help = "size of its data disk (64)" },
	{ .name = "port", .kind = CLI_INT, .arg = "PORT", .min = 1, .max = 65535,
	  .help = "port of the API on 127.0.0.1 (7070)" },
	{ .name = "software", .kind = CLI_FLAG, .help = "emulate the machine in software" },
	{ .name = "mirror", .kind = CLI_STR, .arg = "URL",
	  .help = "archive to take packages from (the host's own apt sources)" },
	{ .name = "security-mirror", .kind = CLI_STR, .arg = "URL",
	  .help = "archive of security updates, with --mirror" },
	{ .name = NULL },
};
/* clang-format on */

static const struct cli_option down_options[] = {
	{ .name = "timeout",
	  .kind = CLI_INT,
	  .arg = "SECONDS",
	  .help = "how long a machine may take to power off by itself (30)",
	  .min = 0,
	  .max = 3600 },
	{ .name = NULL },
};

const struct cli_command cmd_up = {
	.name = "up",
	.summary = "Bring Cloche up on this host: image, machine where needed, daemon",
	.usage = "",
	.details = "Runs natively where KVM is usable and you are root, else in a virtual machine "
		   "(see `cloche doctor`). Writes the address and the key that the other commands "
		   "use.",
	.options = up_options,
	.run = up_run,
};

const struct cli_command cmd_down = {
	.name = "down",
	.summary = "Stop the daemon or the machine that `up` started; all data stays",
	.usage = "",
	.options = down_options,
	.run = down_run,
};
