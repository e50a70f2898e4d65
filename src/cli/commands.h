/* Every command of the program, each defined in its cmd_*.c. */
#ifndef CLOCHE_CLI_COMMANDS_H
#define CLOCHE_CLI_COMMANDS_H

#include "cli/cli.h"

extern const struct cli_command cmd_run, cmd_exec;
extern const struct cli_command cmd_new, cmd_ls, cmd_show, cmd_logs, cmd_stop, cmd_start, cmd_renew,
	cmd_rm;
extern const struct cli_command cmd_cp;
extern const struct cli_command cmd_up, cmd_down, cmd_doctor;
extern const struct cli_command cmd_image_build, cmd_image_import, cmd_image_ls, cmd_image_rm;
extern const struct cli_command cmd_machine_start, cmd_machine_stop, cmd_machine_status,
	cmd_machine_shell;
extern const struct cli_command cmd_version, cmd_completion;

#endif
