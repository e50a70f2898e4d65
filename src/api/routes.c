/* Everything the daemon answers to, in one table. */
#include "api/handlers.h"
#include "api/route.h"
#include "api/shapes.h"

#define RO KEY_READ_ONLY
#define MEMBER KEY_MEMBER
#define ADMIN KEY_ADMIN
#define SBX "/v1/sandboxes/{sandbox}"
#define PRC SBX "/processes/{process}"

const struct route api_routes[] = {
	{ "GET", "/healthz", RO, ROUTE_OPEN, health_get, .answer = &shape_health,
	  .summary = "Whether the daemon works" },
	{ "GET", "/openapi.json", RO, ROUTE_OPEN, openapi_get, .summary = "This description" },
	{ "GET", "/metrics", RO, ROUTE_BYTES, metrics_get,
	  .summary = "Counters in the text format of Prometheus" },

	{ "GET", "/v1/whoami", RO, 0, whoami_get, .answer = &shape_whoami,
	  .summary = "The key of this request" },
	{ "GET", "/v1/keys", ADMIN, ROUTE_LIST, keys_get, .answer = &shape_key,
	  .summary = "The API keys that are valid" },
	{ "POST", "/v1/keys", ADMIN, 0, key_post, key_post_check, .body = &shape_key_create,
	  .answer = &shape_key, .summary = "Makes an API key; its secret is shown this once" },
	{ "DELETE", "/v1/keys/{key}", ADMIN, 0, key_delete, .summary = "Revokes an API key" },
	{ "GET", "/v1/events", RO, ROUTE_LIST, events_get, .query = &shape_events_query,
	  .answer = &shape_event,
	  .summary = "Audit events, oldest first; nextCursor follows them" },
	{ "GET", "/v1/images", RO, ROUTE_LIST, images_get, .answer = &shape_image,
	  .summary = "The images of this host" },

	{ "GET", "/v1/sandboxes", RO, ROUTE_LIST | ROUTE_METADATA, sandboxes_get,
	  .query = &shape_list_query, .answer = &shape_sandbox,
	  .summary = "The sandboxes, newest first" },
	{ "POST", "/v1/sandboxes", MEMBER, 0, sandbox_post, sandbox_post_check,
	  .query = &shape_wait_query, .body = &shape_sandbox_create, .answer = &shape_sandbox,
	  .summary = "Creates a sandbox, or several, and waits until they run" },
	{ "GET", SBX, RO, 0, sandbox_one_get, .answer = &shape_sandbox,
	  .summary = "One sandbox, by id or name" },
	{ "DELETE", SBX, MEMBER, 0, sandbox_one_delete, .answer = &shape_sandbox,
	  .summary = "Deletes a sandbox and its disk, from every state" },
	{ "POST", SBX "/start", MEMBER, 0, sandbox_start_post, .answer = &shape_sandbox,
	  .summary = "Starts a stopped sandbox from its disk" },
	{ "POST", SBX "/stop", MEMBER, 0, sandbox_stop_post, .answer = &shape_sandbox,
	  .summary = "Stops a sandbox; its disk is kept" },
	{ "POST", SBX "/renew", MEMBER, 0, sandbox_renew_post, sandbox_renew_check,
	  .body = &shape_renew, .answer = &shape_sandbox,
	  .summary = "Sets a new end of the lease" },
	{ "GET", SBX "/console", RO, 0, sandbox_console_get, .answer = &shape_console,
	  .summary = "The last output of the guest's serial console" },
	{ "POST", SBX "/pause", MEMBER, 0, not_available_yet, .body = &shape_pause,
	  .answer = &shape_sandbox, .summary = "Pauses a sandbox with its memory" },
	{ "POST", SBX "/resume", MEMBER, 0, not_available_yet, .answer = &shape_sandbox,
	  .summary = "Resumes a paused sandbox" },
	{ "POST", SBX "/fork", MEMBER, 0, not_available_yet, .body = &shape_fork,
	  .answer = &shape_sandbox, .summary = "Forks a sandbox" },
	{ "POST", SBX "/snapshot", MEMBER, 0, not_available_yet, .body = &shape_snapshot,
	  .summary = "Keeps a snapshot of a sandbox" },
	{ "POST", SBX "/rollback", MEMBER, 0, not_available_yet, .body = &shape_rollback,
	  .answer = &shape_sandbox, .summary = "Goes back to a snapshot" },

	{ "POST", SBX "/exec", MEMBER, ROUTE_NDJSON | ROUTE_LARGE, exec_post, exec_check,
	  .body = &shape_exec, .answer = &shape_exec_answer,
	  .summary = "Runs a command and waits for its end" },
	{ "GET", SBX "/processes", RO, ROUTE_LIST, processes_get, .answer = &shape_process,
	  .summary = "The processes started through the API" },
	{ "POST", SBX "/processes", MEMBER, ROUTE_LARGE, process_post, process_post_check,
	  .body = &shape_process_create, .answer = &shape_process,
	  .summary = "Starts a command in the background" },
	{ "GET", PRC, RO, 0, process_get, .answer = &shape_process, .summary = "One process" },
	{ "DELETE", PRC, MEMBER, 0, process_delete,
	  .summary = "Kills a process if it runs, and drops its output" },
	{ "GET", PRC "/output", RO, ROUTE_NDJSON, process_output_get, .query = &shape_output_query,
	  .summary = "Kept and coming output, from a cursor on" },
	{ "POST", PRC "/stdin", MEMBER, 0, process_stdin_post, .query = &shape_stdin_query,
	  .upload = &process_stdin_upload, .answer = &shape_stdin_answer,
	  .summary = "Sends the raw body to a process's input, at an offset" },
	{ "POST", PRC "/signal", MEMBER, 0, process_signal_post, .body = &shape_signal,
	  .summary = "Sends a signal to a process's group" },

	{ "GET", SBX "/files", RO, ROUTE_BYTES, file_get, .query = &shape_file_get_query,
	  .summary = "A file's bytes" },
	{ "PUT", SBX "/files", MEMBER, 0, file_put, .query = &shape_file_put_query,
	  .upload = &file_upload, .answer = &shape_file,
	  .summary = "Writes the raw body to a file, as a whole or not at all" },
	{ "GET", SBX "/files/list", RO, 0, file_list_get, .query = &shape_file_list_query,
	  .answer = &shape_file_list, .summary = "The entries of a folder" },
	{ "GET", SBX "/files/stat", RO, 0, file_stat_get, .query = &shape_path_query,
	  .answer = &shape_file, .summary = "What is at a path" },
	{ "POST", SBX "/files/mkdir", MEMBER, 0, file_mkdir_post, file_mkdir_check,
	  .body = &shape_mkdir, .answer = &shape_file, .summary = "Makes a folder" },
	{ "POST", SBX "/files/move", MEMBER, 0, file_move_post, file_move_check,
	  .body = &shape_move, .answer = &shape_file, .summary = "Moves a file or folder" },
	{ "POST", SBX "/files/remove", MEMBER, 0, file_remove_post, file_remove_check,
	  .body = &shape_remove, .summary = "Removes a file or folder" },
};

const size_t api_routes_n = ARRAY_SIZE(api_routes);
