/*
 * The agent's operations. A stream carries one: FRAME_REQUEST holds a JSON object {"op":…,…} and
 * the answer follows. Field names are camelCase as in the public API. Unknown fields and wrong
 * types are refused (bad_request names all of them). Paths are absolute; NUL is refused; "..", "."
 * and links are resolved by the guest's kernel with the rights of "user", which is a name (or
 * decimal uid) in the guest's /etc/passwd, default "agent" when there is one, else "root".
 */
/* clang-format off */
/*
 * op           request                                   answer
 *
 * hello        {}                                        REPLY {version, kernel, bootId, uptimeMs,
 *                                                          adopted, generation, processes}
 * adopt        {hostname, wallMs, entropy, env{}?,       REPLY {}
 *               generation}
 *              Identity, clock, entropy (base64 of >= 32 bytes), account environment. Idempotent
 *              per generation (the clock is set again). exec before the first adopt: not_adopted.
 *
 * exec         {argv[] | command, cwd?, env{}?, user?,   REPLY {processId, pid}, then STDOUT,
 *               stdin?, timeoutMs?, background?,          STDERR…, STDIN_TAKEN…, at last EXIT.
 *               tty?{rows, cols}}
 *              argv runs directly; command is shell text for /bin/bash -c (or /bin/sh). cwd is
 *              /workspace, or the user's home where that is missing. With stdin true the host may
 *              send STDIN and STDIN_EOF; otherwise stdin is /dev/null. SIGNAL and CANCEL always.
 *              timeoutMs: SIGTERM to the group, SIGKILL to all its descendants 2 s later; EXIT has
 *              timedOut true. background: the stream ends after REPLY; stdin stays open for the
 *              stdin operation when it was asked for. tty: a terminal of that size, all output is
 *              STDOUT, RESIZE is taken, stdin is the terminal.
 *              A stream that merely breaks leaves the command running; only CANCEL kills.
 * attach       {processId, stdoutOffset?, stderrOffset?, REPLY {process}, DROPPED where output was
 *               follow?}                                  overrun, STDOUT, STDERR, then EXIT when
 *                                                         it has ended. Without follow: what is
 *                                                         kept now, then EXIT or END {state}.
 *              SIGNAL, CANCEL, RESIZE are taken as in exec; STDIN is not.
 * ps           {}                                        REPLY {processes:[process…]}
 * process      {processId}                               REPLY {process}
 *              process: {processId, pid, argv[] | command, cwd, user, state:"running"|"exited",
 *              startedAtMs, exit?{code, signal, timedOut, durationMs}, stdoutBytes, stderrBytes,
 *              stdinBytes, background}. exit as in EXIT: code is null when a signal ended it and
 *              signal is null when it did not.
 * signal       {processId, signal}                       REPLY {}; to the process group
 * kill         {processId}                               REPLY {}; SIGKILL to all descendants
 * stdin        {processId, offset, eof?}, DATA…,         REPLY {offset} when all of it is taken;
 *              DATA_EOF {}                                offset_mismatch when offset is not
 *                                                         stdinBytes. Also while an exec stream is
 *                                                         open that has sent no STDIN itself
 * forget       {processId}                               REPLY {}: kills if it runs, drops output
 *
 * file.read    {path, offset?, length?, user?}           REPLY {stat}, DATA…, DATA_EOF {sha256} of
 *                                                         the bytes sent
 * file.write   {path, mode?, size?, makeParents?,        REPLY {stat} after fsync and rename. A
 *               user?}, DATA…, DATA_EOF {sha256?}         stream that breaks before DATA_EOF leaves
 *                                                         the old file. mode: of the old file, else
 *                                                         0644 (decimal integer as in stat)
 * file.list    {path, depth? (1..16), limit?, user?}     REPLY {stat}, ENTRIES [stat…]…, END
 *                                                         {truncated}; links are not followed
 * file.stat    {path, user?}                             REPLY {stat}
 * file.mkdir   {path, mode?, parents?, user?}            REPLY {stat}; parents: exists is no error
 * file.move    {from, to, overwrite?, user?}             REPLY {stat}
 * file.remove  {path, recursive?, user?}                 REPLY {}; links are never followed
 *              stat: {path, type:"file"|"directory"|"symlink"|"fifo"|"socket"|"device", size, mode,
 *              user, group, uid, gid, mtimeMs, target?}; a name that is not UTF-8 is shown with
 *              U+FFFD and has lossyName true.
 *
 * sync         {}                                        REPLY {} after sync(2)
 * stop         {timeoutMs?}                              REPLY {}: SIGTERM to all, wait, SIGKILL,
 *                                                         sync, remount read-only, power off
 *
 * ERROR {code, message, fix} may come instead of, or after, REPLY and ends the stream.
 */
/* clang-format on */
#ifndef CLOCHE_PROTO_AGENT_H
#define CLOCHE_PROTO_AGENT_H

/* Kernel command line words the agent reads: cloche.root=/dev/vda cloche.hostname=… */
#define AGENT_ROOT_PARAM "cloche.root="
#define AGENT_HOSTNAME_PARAM "cloche.hostname="

#define AGENT_ARGV_BYTES_MAX (128u << 10) /* a request's argv + env; must fit one frame */
#define AGENT_KEEP_OUTPUT (4u << 20)	  /* bytes of each stream kept for attach */
#define AGENT_STDIN_WINDOW (256u << 10)	  /* STDIN bytes sent beyond the last STDIN_TAKEN */
#define AGENT_KILL_GRACE_MS 2000	  /* between the SIGTERM and the SIGKILL of a timeout */
#define AGENT_LIST_MAX 100000		  /* entries of one file.list */

/* Every code the agent puts in ERROR. */
#define AGENT_ERROR_CODES(X)      \
	X(bad_request)            \
	X(not_adopted)            \
	X(not_found)              \
	X(not_a_directory)        \
	X(is_a_directory)         \
	X(not_a_file)             \
	X(not_empty)              \
	X(exists)                 \
	X(permission_denied)      \
	X(read_only)              \
	X(no_space)               \
	X(too_large)              \
	X(name_too_long)          \
	X(too_many_links)         \
	X(user_not_found)         \
	X(command_not_found)      \
	X(command_not_executable) \
	X(cwd_not_found)          \
	X(process_not_found)      \
	X(process_ended)          \
	X(stdin_closed)           \
	X(offset_mismatch)        \
	X(too_many_processes)     \
	X(too_many_streams)       \
	X(out_of_memory)          \
	X(checksum_mismatch)      \
	X(cross_device)           \
	X(stopping)               \
	X(io_error)

#endif
