/* The one list of commands, in the order in which help shows them. */
#include "cli/commands.h"

#include <stddef.h>

/* clang-format off */
const struct cli_command *const cli_commands[] = {
	&cmd_up,
	&cmd_down,
	&cmd_doctor,
	&cmd_run,
	&cmd_new,
	&cmd_ls,
	&cmd_show,
	&cmd_exec,
	&cmd_cp,
	&cmd_logs,
	&cmd_stop,
	&cmd_start,
	&cmd_renew,
	&cmd_rm,
	&cmd_image_build,
	&cmd_image_import,
	&cmd_image_ls,
	&cmd_image_rm,
	&cmd_machine_start,
	&cmd_machine_stop,
	&cmd_machine_status,
	&cmd_machine_shell,
	&cmd_version,
	&cmd_completion,
	NULL,
};
/* clang-format on */
