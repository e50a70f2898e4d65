/* The objects that requests carry and answers give, as field tables. */
#ifndef CLOCHE_API_SHAPES_H
#define CLOCHE_API_SHAPES_H

#include "api/route.h"

/* queries */
extern const struct shape shape_wait_query, shape_list_query, shape_path_query,
	shape_file_list_query, shape_file_get_query, shape_file_put_query, shape_output_query,
	shape_stdin_query, shape_page_query, shape_events_query;

/* bodies */
extern const struct shape shape_sandbox_create, shape_network, shape_renew, shape_exec,
	shape_process_create, shape_signal, shape_mkdir, shape_move, shape_remove, shape_key_create,
	shape_fork, shape_pause, shape_snapshot, shape_rollback;

/* answers */
extern const struct shape shape_sandbox, shape_exec_answer, shape_process, shape_file,
	shape_file_list, shape_stdin_answer, shape_key, shape_whoami, shape_event, shape_image,
	shape_health, shape_console, shape_empty;

/* Every shape that an answer may have, for the description; ends with NULL. */
extern const struct shape *const shapes_all[];

/* The signals by name, "TERM" and so on, and their numbers in the guest. */
extern const char *const signal_names[];
int signal_number(const char *name);

#endif
