/*
 * How the unprivileged api child asks the broker (cloched's root parent) for the few things that
 * need root. One JSON object a message on a SOCK_SEQPACKET socketpair, descriptors by SCM_RIGHTS;
 * one answer a request, in order: {"ok":true,…} or {"ok":false,"error":{"code","message"}}.
 * Unknown operations and fields are refused. Nothing in a request is a path or a user id.
 *
 * op         request                    answer
 * vmm_spawn  {id, vcpus, memoryMiB}     {pid}; fds: pidfd, log. Starts a jailed VMM whose control
 *                                       socket (proto/vmm.h) listens at RUN/vmm/ID.sock. The log is
 *                                       a file of fixed size that holds its stderr from offset 0,
 *                                       ended by a NUL.
 * vmm_open   {id}                       {pid}; fds as above: takes over one that already lives
 * vmm_kill   {id}                       {}: SIGKILL to it and to every process it made
 * vmm_reap   {id}                       {exitCode|null, signal|null, oomKilled}: forgets an ended
 *                                       one: socket, cgroup, uid. vmm_alive while it lives;
 *                                       exitCode and signal are null when a former broker was its
 *                                       parent. An unknown id is vmm_not_found.
 * vmm_list   {after?}                   {vmms:[{id, pid, alive}], more}: ordered by id, those
 *                                       behind `after`
 * open_kvm   {}                         {}; fd: /dev/kvm
 *
 * Error codes: bad_request, vmm_exists, vmm_not_found, vmm_alive, vmm_limit, kvm_unavailable,
 * system.
 */
#ifndef CLOCHE_PROTO_BROKER_H
#define CLOCHE_PROTO_BROKER_H

#define BROKER_MSG_MAX (32u << 10)
#define BROKER_LIST_MAX 256	     /* VMMs in one answer */
#define BROKER_LOG_BYTES (64u << 10) /* size of a VMM's log */

#endif
