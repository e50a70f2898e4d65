/* doctor: what this host offers, what is missing, and how to mend it. */
#include <stdio.h>
#include <unistd.h>

#include "base/json.h"
#include "cli/commands.h"
#include "machine/doctor.h"
#include "machine/machine.h"
#include "machine/paths.h"

static int doctor_command(struct cli *c, struct err *e)
{
	struct cloche_paths paths;
	struct doctor_report r = { 0 };
	int ret = paths_get(&paths, e);

	if (ret < 0)
		return ret;
	doctor_run(&paths, (uint16_t)cli_int(c, "port", MACHINE_API_PORT), &r);
	if (c->json) {
		_cleanup_json_ json_t *doc = doctor_json(&r);

		ret = cli_print_json(doc, e);
	} else {
		doctor_print(&r, stdout, isatty(STDOUT_FILENO));
	}
	return ret < 0 ? ret : r.worst == DOCTOR_FAIL ? 1 : 0;
}

static const struct cli_option options[] = {
	{ .name = "port",
	  .kind = CLI_INT,
	  .arg = "PORT",
	  .help = "port that the API is to have (7070)",
	  .min = 1,
	  .max = 65535 },
	{ .name = NULL },
};

const struct cli_command cmd_doctor = {
	.name = "doctor",
	.summary = "Check what this host offers for sandboxes, and say what to mend",
	.usage = "",
	.details =
		"Times a small guest under KVM. Exit status 1 when something must be mended first.",
	.options = options,
	.run = doctor_command,
};
