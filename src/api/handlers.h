/* The handlers that the route table names, grouped by file. See route.h for what they promise. */
#ifndef CLOCHE_API_HANDLERS_H
#define CLOCHE_API_HANDLERS_H

#include <jansson.h>
#include <stdbool.h>

#include "store/store.h"

struct agent_conn;
struct buf;
struct err;
struct request;

#define AGENT_ANSWER_MS 60000 /* for one answer of the agent that needs no command to end */

/* sandboxes.c, sandbox_json.c */
int sandbox_post_check(struct request *r, struct err *e);
int sandbox_post(struct request *r, struct err *e);
int sandboxes_get(struct request *r, struct err *e);
int sandbox_one_get(struct request *r, struct err *e);
int sandbox_one_delete(struct request *r, struct err *e);
int sandbox_start_post(struct request *r, struct err *e);
int sandbox_stop_post(struct request *r, struct err *e);
int sandbox_renew_check(struct request *r, struct err *e);
int sandbox_renew_post(struct request *r, struct err *e);
int sandbox_console_get(struct request *r, struct err *e);
int not_available_yet(struct request *r, struct err *e);

/* The row that the first path parameter names, by id or name. "sandbox_not_found". */
int sandbox_row(struct request *r, struct store_sandbox *row, struct err *e);

/* A time as text, null for 0. */
json_t *time_json(int64_t wall_ms);

/* The public object of a row; NULL and e on failure. */
json_t *sandbox_json(struct request *r, const struct store_sandbox *row, struct err *e);

/* A stream to the agent of the sandbox that the path names, for one operation. */
int sandbox_agent(struct request *r, const char *op, const json_t *arguments,
		  struct agent_conn **out, struct err *e);

/* The whole of an operation that has one reply. */
int sandbox_agent_call(struct request *r, const char *op, const json_t *arguments, json_t **reply,
		       struct err *e);

/* exec.c */
/* What exec and processes have in common. */
int command_check(struct request *r, struct err *e);
int exec_check(struct request *r, struct err *e);
int exec_post(struct request *r, struct err *e);

/* The agent's exec arguments from the request's body. */
json_t *exec_arguments(struct request *r);
/* Appends what the body has for stdin; whether it has any is in exec_has_stdin(). */
int exec_stdin(struct request *r, struct buf *bytes, struct err *e);
bool exec_has_stdin(struct request *r);

/* processes.c */
int process_post_check(struct request *r, struct err *e);
int process_post(struct request *r, struct err *e);
int processes_get(struct request *r, struct err *e);
int process_get(struct request *r, struct err *e);
int process_output_get(struct request *r, struct err *e);
int process_signal_post(struct request *r, struct err *e);
int process_delete(struct request *r, struct err *e);
extern const struct upload_ops process_stdin_upload;
int process_stdin_post(struct request *r, struct err *e);

/* files.c, transfer.c */
int file_get(struct request *r, struct err *e);
extern const struct upload_ops file_upload;
int file_put(struct request *r, struct err *e);
int file_list_get(struct request *r, struct err *e);
int file_stat_get(struct request *r, struct err *e);
int file_mkdir_check(struct request *r, struct err *e);
int file_mkdir_post(struct request *r, struct err *e);
int file_move_check(struct request *r, struct err *e);
int file_move_post(struct request *r, struct err *e);
int file_remove_check(struct request *r, struct err *e);
int file_remove_post(struct request *r, struct err *e);
/* The public object of the agent's stat. */
json_t *file_stat_json(const json_t *stat);

/* account.c */
int health_get(struct request *r, struct err *e);
int whoami_get(struct request *r, struct err *e);
int keys_get(struct request *r, struct err *e);
int key_post_check(struct request *r, struct err *e);
int key_post(struct request *r, struct err *e);
int key_delete(struct request *r, struct err *e);
int events_get(struct request *r, struct err *e);
int images_get(struct request *r, struct err *e);
int metrics_get(struct request *r, struct err *e);

/* openapi.c */
int openapi_get(struct request *r, struct err *e);
json_t *openapi_document(const char *version);

#endif
