/*
 * One table per object. Requests are checked against them, /openapi.json shows them, and the
 * tests hold real answers against them. Ranges count what json_kind says; ANY means no limit of
 * ours beyond that of the whole body.
 */
#include "api/shapes.h"

#include <signal.h>
#include <string.h>

#include "store/store.h"

#define ANY 0, INT64_MAX
#define SHAPE(id, text, ...)                                            \
	static const struct json_field id##_fields[] = { __VA_ARGS__ }; \
	const struct shape shape_##id = { text, id##_fields, ARRAY_SIZE(id##_fields) }

#define STR(name, ...)                              \
	{                                           \
		name, JSON_KIND_STRING, __VA_ARGS__ \
	}
#define INT(name, ...)                           \
	{                                        \
		name, JSON_KIND_INT, __VA_ARGS__ \
	}
#define BOOL(name)                   \
	{                            \
		name, JSON_KIND_BOOL \
	}
#define REQ true, false
#define OPT false, false
#define NUL_OK false, true
#define REQ_NUL true, true

#define PATH_MAX_BYTES 4096

static const char *const lease_ends[] = { "stop", "pause", "delete", NULL };
static const char *const modes[] = { "none", "open", "allow", NULL };
static const char *const roles[] = { "readOnly", "member", "admin", NULL };
static const char *const states[] = { "creating", "running", "pausing", "paused", "stopping",
				      "stopped",  "failed",  "deleted", NULL };

const char *const signal_names[] = { "HUP",  "INT",  "QUIT", "KILL", "USR1", "USR2",  "PIPE",
				     "ALRM", "TERM", "CONT", "STOP", "TSTP", "WINCH", NULL };
static const int signal_numbers[] = { SIGHUP,  SIGINT,	SIGQUIT, SIGKILL, SIGUSR1, SIGUSR2, SIGPIPE,
				      SIGALRM, SIGTERM, SIGCONT, SIGSTOP, SIGTSTP, SIGWINCH };

int signal_number(const char *name)
{
	for (size_t i = 0; signal_names[i]; i++)
		if (strcmp(signal_names[i], name) == 0)
			return signal_numbers[i];
	return -1;
}

/* ---- queries ---- */

SHAPE(wait_query, "WaitQuery", INT("wait", OPT, 0, 600));
SHAPE(list_query, "ListQuery", INT("limit", OPT, 1, 1000), STR("cursor", OPT, 1, 64),
      STR("state", OPT, 1, 16, states));
SHAPE(page_query, "PageQuery", INT("limit", OPT, 1, 1000), STR("cursor", OPT, 1, 64));
SHAPE(events_query, "EventsQuery", INT("limit", OPT, 1, 1000), STR("cursor", OPT, 1, 64),
      STR("sandbox", OPT, 1, 24));
SHAPE(path_query, "PathQuery", STR("path", REQ, 1, PATH_MAX_BYTES), STR("user", OPT, 1, 64));
SHAPE(file_get_query, "FileGetQuery", STR("path", REQ, 1, PATH_MAX_BYTES), STR("user", OPT, 1, 64));
SHAPE(file_list_query, "FileListQuery", STR("path", REQ, 1, PATH_MAX_BYTES),
      INT("depth", OPT, 1, 16), INT("limit", OPT, 1, 100000), STR("user", OPT, 1, 64));
SHAPE(file_put_query, "FilePutQuery", STR("path", REQ, 1, PATH_MAX_BYTES), STR("mode", OPT, 1, 5),
      BOOL("makeParents"), STR("user", OPT, 1, 64));
SHAPE(output_query, "OutputQuery", STR("cursor", OPT, 1, 64), BOOL("follow"));
SHAPE(stdin_query, "StdinQuery", INT("offset", REQ, ANY), BOOL("eof"));

/* ---- bodies ---- */

SHAPE(sandbox_create, "SandboxCreate", STR("image", OPT, 1, 63), STR("snapshot", OPT, 1, 63),
      STR("name", OPT, 1, 63), INT("vcpus", OPT, 1, 32), INT("memoryMiB", OPT, 128, 65536),
      INT("diskMiB", OPT, 512, 1048576), INT("timeoutSeconds", NUL_OK, INT64_MIN, INT64_MAX),
      STR("onLeaseEnd", OPT, 1, 16, lease_ends), INT("idleSeconds", NUL_OK, 60, 31622400),
      { "env", JSON_KIND_MAP, OPT, 0, 1000 }, BOOL("noEnv"),
      { "network", JSON_KIND_OBJECT, OPT, 0, 16 }, { "secrets", JSON_KIND_STRINGS, OPT, 0, 64 },
      INT("maxCostMicros", NUL_OK, ANY), { "metadata", JSON_KIND_MAP, OPT, 0, 64 },
      INT("count", OPT, 1, 100));
SHAPE(network, "Network", STR("mode", REQ, 1, 16, modes),
      { "allow", JSON_KIND_STRINGS, OPT, 0, 1000 }, { "deny", JSON_KIND_STRINGS, OPT, 0, 1000 });
SHAPE(renew, "Renew", INT("timeoutSeconds", REQ_NUL, INT64_MIN, INT64_MAX));
SHAPE(fork, "Fork", INT("count", OPT, 1, 100), BOOL("memory"));
SHAPE(pause, "Pause", INT("keepDays", OPT, 1, 365));
SHAPE(snapshot, "SnapshotCreate", STR("name", OPT, 1, 63), BOOL("memory"));
SHAPE(rollback, "Rollback", STR("snapshot", REQ, 1, 63));

#define COMMAND_FIELDS                                                                         \
	{ "argv", JSON_KIND_STRINGS, OPT, 1, 100000 }, STR("command", OPT, 1, INT64_MAX),      \
		STR("cwd", OPT, 1, PATH_MAX_BYTES), { "env", JSON_KIND_MAP, OPT, 0, 10000 },   \
		STR("user", OPT, 1, 64), STR("stdin", OPT, ANY), STR("stdinBase64", OPT, ANY), \
		INT("timeoutSeconds", NUL_OK, 1, 31622400)

SHAPE(exec, "Exec", COMMAND_FIELDS, BOOL("openStdin"), INT("maxOutputBytes", OPT, 0, 16 << 20));
SHAPE(process_create, "ProcessCreate", COMMAND_FIELDS, BOOL("openStdin"));
SHAPE(signal, "Signal", STR("signal", REQ, 1, 8, signal_names));
SHAPE(mkdir, "Mkdir", STR("path", REQ, 1, PATH_MAX_BYTES), STR("mode", OPT, 1, 5), BOOL("parents"),
      STR("user", OPT, 1, 64));
SHAPE(move, "Move", STR("from", REQ, 1, PATH_MAX_BYTES), STR("to", REQ, 1, PATH_MAX_BYTES),
      BOOL("overwrite"), STR("user", OPT, 1, 64));
SHAPE(remove, "Remove", STR("path", REQ, 1, PATH_MAX_BYTES), BOOL("recursive"),
      STR("user", OPT, 1, 64));
SHAPE(key_create, "KeyCreate", STR("name", REQ, 1, 63), STR("role", REQ, 1, 16, roles));

/* ---- answers ---- */

SHAPE(sandbox, "Sandbox", STR("id", REQ, 24, 24), STR("name", REQ_NUL, 1, 63),
      STR("state", REQ, 1, 16, states), STR("image", REQ, 1, 127), INT("vcpus", REQ, 1, 32),
      INT("memoryMiB", REQ, ANY), INT("diskMiB", REQ, ANY), STR("host", REQ, 0, 63),
      STR("createdAt", REQ, 24, 24), STR("startedAt", REQ_NUL, 24, 24),
      STR("leaseEndsAt", REQ_NUL, 24, 24), INT("timeoutSeconds", REQ_NUL, ANY),
      STR("onLeaseEnd", REQ, 1, 16, lease_ends), STR("stopReason", REQ_NUL, 1, 63),
      { "network", JSON_KIND_OBJECT, REQ, 0, 16 }, { "metadata", JSON_KIND_MAP, REQ, 0, 64 },
      { "usage", JSON_KIND_OBJECT, REQ, 4, 4 }, { "lastSnapshot", JSON_KIND_OBJECT, REQ_NUL, 3, 3 },
      STR("parent", REQ_NUL, 24, 24), INT("generation", REQ, ANY));
SHAPE(exec_answer, "ExecAnswer", STR("processId", REQ, 1, 64), INT("exitCode", REQ_NUL, 0, 255),
      INT("signal", REQ_NUL, 1, 64), { "timedOut", JSON_KIND_BOOL, REQ }, STR("stdout", REQ, ANY),
      STR("stderr", REQ, ANY), STR("stdoutBase64", OPT, ANY), STR("stderrBase64", OPT, ANY),
      INT("stdoutTruncatedBytes", REQ, ANY), INT("stderrTruncatedBytes", REQ, ANY),
      INT("durationMs", REQ, ANY));
SHAPE(process, "Process", STR("id", REQ, 1, 64), INT("pid", REQ, ANY),
      { "argv", JSON_KIND_STRINGS, NUL_OK, 0, 100000 }, STR("command", NUL_OK, ANY),
      STR("cwd", NUL_OK, ANY), STR("user", NUL_OK, ANY), STR("state", REQ, 1, 16),
      STR("startedAt", REQ, 24, 24), { "exit", JSON_KIND_OBJECT, REQ_NUL, 4, 4 },
      INT("stdoutBytes", REQ, ANY), INT("stderrBytes", REQ, ANY), INT("stdinBytes", REQ, ANY),
      BOOL("background"));
SHAPE(file, "File", STR("path", REQ, 1, INT64_MAX), STR("type", REQ, 1, 16), INT("size", REQ, ANY),
      STR("mode", REQ, 4, 5), STR("user", REQ, ANY), STR("group", REQ, ANY), INT("uid", OPT, ANY),
      INT("gid", OPT, ANY), STR("modifiedAt", REQ, 24, 24), STR("target", OPT, ANY),
      BOOL("lossyName"));
SHAPE(file_list, "FileList", { "data", JSON_KIND_ARRAY, REQ, 0, 100000 },
      { "truncated", JSON_KIND_BOOL, REQ });
SHAPE(stdin_answer, "StdinAnswer", INT("offset", REQ, ANY));
SHAPE(key, "Key", STR("id", REQ, 24, 24), STR("name", REQ, 0, 63), STR("role", REQ, 1, 16, roles),
      STR("createdAt", REQ, 24, 24), STR("lastUsedAt", REQ_NUL, 24, 24),
      STR("secret", OPT, 44, 44));
SHAPE(whoami, "WhoAmI", { "key", JSON_KIND_OBJECT, REQ, 5, 5 }, STR("role", REQ, 1, 16, roles));
SHAPE(event, "Event", STR("id", REQ, 24, 24), INT("seq", REQ, ANY), STR("at", REQ, 24, 24),
      STR("type", REQ, 1, 63), STR("actor", REQ_NUL, 24, 24), STR("sandbox", REQ_NUL, 24, 24),
      { "data", JSON_KIND_OBJECT, REQ, 0, INT64_MAX });
SHAPE(image, "Image", STR("name", REQ, 1, 63), STR("kernelVersion", OPT, ANY),
      INT("diskMiB", OPT, ANY), STR("importedAt", OPT, ANY));
SHAPE(health, "Health", STR("status", REQ, 1, 16), STR("version", REQ, 0, 63));
SHAPE(console, "Console", STR("text", REQ, ANY));
SHAPE(empty, "Empty", { 0 });

const struct shape *const shapes_all[] = {
	&shape_sandbox_create, &shape_network,	    &shape_renew,
	&shape_fork,	       &shape_pause,	    &shape_snapshot,
	&shape_rollback,       &shape_exec,	    &shape_process_create,
	&shape_signal,	       &shape_mkdir,	    &shape_move,
	&shape_remove,	       &shape_key_create,   &shape_sandbox,
	&shape_exec_answer,    &shape_process,	    &shape_file,
	&shape_file_list,      &shape_stdin_answer, &shape_key,
	&shape_whoami,	       &shape_event,	    &shape_image,
	&shape_health,	       &shape_console,	    NULL,
};
