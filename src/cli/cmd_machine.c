/* machine start|stop|status|shell: machine mode by hand. `up` and `down` use the same calls. */
#include <stdio.h>
#include <unistd.h>

#include "base/err.h"
#include "base/json.h"
#include "cli/commands.h"
#include "cli/host.h"
#include "cli/term.h"
#include "machine/machine.h"
#include "machine/paths.h"

static int print_json(const struct machine_status *st, struct err *e)
{
	_cleanup_json_ json_t *doc = machine_status_json(st);

	return cli_print_json(doc, e);
}

static int start_run(struct cli *c, struct err *e)
{
	struct machine_status st;
	struct cloche_paths paths;
	int ret = paths_get(&paths, e);

	if (ret == 0)
		ret = host_machine_start(c, &paths, e);
	if (ret == 0 && c->json)
		ret = machine_status(paths.machine, &st, e);
	if (ret < 0)
		return ret;
	return c->json ? print_json(&st, e) : 0;
}

static int stop_run(struct cli *c, struct err *e)
{
	struct cloche_paths paths;
	struct progress *p;
	int ret = paths_get(&paths, e);

	if (ret < 0)
		return ret;
	p = progress_new(false);
	progress_step(p, "Stopping the machine");
	ret = machine_stop(paths.machine, (unsigned)cli_int(c, "timeout", 30), e);
	progress_free(p, ret >= 0);
	return ret < 0 ? ret : 0;
}

static void print_status(const struct machine_status *st)
{
	char up[TERM_DURATION_LEN];

	if (!st->running) {
		printf("stopped\n");
		return;
	}
	term_duration((int64_t)st->uptime_s * 1000, up);
	printf("running      pid %d, for %s\n", (int)st->pid, up);
	printf("accelerator  %s, QEMU %s\n", st->kvm ? "KVM" : "software emulation (TCG)",
	       st->qemu_version);
	printf("size         %u vCPUs, %u MiB of memory, %u GiB of disk\n", st->vcpus,
	       st->memory_mib, st->disk_gib);
	printf("API          http://127.0.0.1:%u %s\n", (unsigned)st->api_port,
	       st->api_reachable ? "answers" : "does not answer");
	if (st->outdated)
		printf("programs     older than those installed; restart the machine to change "
		       "over\n");
}

static int status_run(struct cli *c, struct err *e)
{
	struct machine_status st;
	struct cloche_paths paths;
	int ret = paths_get(&paths, e);

	if (ret == 0)
		ret = machine_status(paths.machine, &st, e);
	if (ret < 0)
		return ret;
	if (c->json)
		return print_json(&st, e);
	print_status(&st);
	return 0;
}

static int shell_run(struct cli *c, struct err *e)
{
	struct cloche_paths paths;
	int ret = paths_get(&paths, e);

	(void)c;
	return ret < 0 ? ret : machine_shell(paths.machine, e);
}

const struct cli_command cmd_machine_start = {
	.name = "machine start",
	.summary = "Start the virtual machine that holds the sandboxes",
	.usage = "",
	.details = "Makes its system image first where that is missing or out of date.",
	.options = host_machine_options,
	.run = start_run,
};

static const struct cli_option stop_options[] = {
	{ .name = "timeout",
	  .kind = CLI_INT,
	  .arg = "SECONDS",
	  .help = "how long it may take to power off by itself (30)",
	  .min = 0,
	  .max = 3600 },
	{ .name = NULL },
};

const struct cli_command cmd_machine_stop = {
	.name = "machine stop",
	.summary = "Power the machine off; its data disk stays",
	.usage = "",
	.options = stop_options,
	.run = stop_run,
};

const struct cli_command cmd_machine_status = {
	.name = "machine status",
	.summary = "Show whether the machine runs, and how",
	.usage = "",
	.run = status_run,
};

const struct cli_command cmd_machine_shell = {
	.name = "machine shell",
	.summary = "Open a root shell in the machine (not in a sandbox)",
	.usage = "",
	.run = shell_run,
};
