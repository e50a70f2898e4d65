/*
 * The agent's operations: the JSON object of FRAME_REQUEST, and what follows. Field names are
 * camelCase as in the public API. Unknown fields are refused. Paths are absolute; NUL is refused.
 * "user" is a name in the guest's /etc/passwd, default "agent" when it exists, else "root".
 *
 * op          request                                      answer
 * hello       {}                                           REPLY {version, kernel, bootId,
 * uptimeMs} adopt       {hostname, wallMs, entropy(base64 >= 32 B),  REPLY {} env{}, generation}
 *             identity, clock, RNDADDENTROPY + RNDRESEEDCRNG; idempotent per generation. Commands
 *             are refused (not_adopted) before the first adopt.
 * exec        {argv[]|command, cwd?, env{}?, user?,        REPLY {processId, pid}, then STDOUT,
 *              timeoutMs?, background?, keepOutput?}        STDERR…, EXIT. Host may send STDIN,
 *                                                           STDIN_EOF, SIGNAL, CANCEL.
 *             timeout: SIGTERM to the group, SIGKILL 2 s later to all of its cgroup; EXIT has
 *             timedOut true. background: the stream ends after REPLY. A stream that merely breaks
 *             leaves the command running as a background one (only CANCEL kills).
 * attach      {processId, stdoutOffset, stderrOffset,      REPLY {processId,…}, STDOUT, STDERR,
 *              follow}                                      DROPPED, EXIT when it ended
 * ps          {}                                           REPLY {processes:[…]}
 * process     {processId}                                  REPLY {processId, pid, argv, state,
 *                                                           startedAtMs, exit?, stdoutBytes,
 *                                                           stderrBytes, stdinBytes}
 * signal      {processId, signal}                          REPLY {}
 * stdin       {processId, offset, eof?}, then DATA…,       REPLY {offset} (offset_mismatch when
 *             DATA_EOF                                      offset is not what was taken so far)
 * forget      {processId}                                  REPLY {}: kills it if it runs, drops
 * output file.read   {path, offset?, length?}                     REPLY {stat}, DATA…, DATA_EOF
 * {sha256} file.write  {path, mode?, user?, size?, makeParents?},   REPLY {stat} after fsync +
 * rename then DATA…, DATA_EOF {sha256?} a stream that breaks before DATA_EOF leaves the old file;
 * sha256 is checked. file.list   {path, depth(1..16), limit?}                 REPLY
 * {entries:[stat…], truncated} file.stat   {path}                                       REPLY
 * {stat}: {path, type, size, mode, user, group, mtimeMs, target?} file.mkdir  {path, mode?,
 * parents?, user?}               REPLY {stat} file.move   {from, to, overwrite?} REPLY {stat}
 * file.remove {path, recursive?}                           REPLY {}
 * sync        {}                                           REPLY {} after sync(2)
 * stop        {timeoutMs}                                  REPLY {}: SIGTERM to all, wait, SIGKILL,
 *                                                           sync, remount read-only, then power off
 *
 * Error codes: bad_request, not_adopted, not_found, not_a_directory, is_a_directory, exists,
 * permission_denied, no_space, too_large, user_not_found, command_not_found,
 * command_not_executable, cwd_not_found, process_not_found, process_ended, offset_mismatch,
 * too_many_processes, checksum_mismatch, io_error.
 */
#ifndef CLOCHE_PROTO_AGENT_H
#define CLOCHE_PROTO_AGENT_H

/* Kernel command line words the agent reads: cloche.root=/dev/vda cloche.hostname=… */
#define AGENT_ROOT_PARAM "cloche.root="

#define AGENT_ARGV_BYTES_MAX (128u << 10) /* a request's argv + env; must fit one frame */
#define AGENT_KEEP_OUTPUT (4u << 20)	  /* bytes of each stream kept for attach */

#endif
