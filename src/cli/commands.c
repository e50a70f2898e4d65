/* The one list of commands, in the order in which help shows them. */
#include "cli/commands.h"

#include <stddef.h>

/* clang-format off */
const struct cli_command *const cli_commands[] = {
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
	&cmd_version,
	&cmd_completion,
	NULL,
};
/* clang-format on */
