/* The one list of commands, in the order in which help shows them. */
#include "cli/commands.h"

#include <stddef.h>

const struct cli_command *const cli_commands[] = {
	&cmd_run,   &cmd_new,	&cmd_ls, &cmd_show,    &cmd_exec,	&cmd_stop,
	&cmd_start, &cmd_renew, &cmd_rm, &cmd_version, &cmd_completion, NULL,
};
