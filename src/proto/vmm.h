/*
 * The VMM's control protocol: one JSON object a message on a SOCK_SEQPACKET unix socket, with
 * descriptors by SCM_RIGHTS. cloche-vmm is started with a listening socket as descriptor 3 and
 * accepts any number of connections; each request {"verb":…,"id":n?} gets one answer
 * {"id":n,"ok":true,…} or {"id":n,"ok":false,"error":{"code","message"}}. Messages are at most
 * VMM_MSG_MAX bytes.
 *
 * configure {vcpus, memoryMiB, cmdline, cid, disks:[{readOnly}], initrds:n, net?:{mac, mtu?},
 *            serialBytes?}
 *           fds: kvm, kernel (ELF with PVH note), the initrds in order (concatenated for the
 *           guest), the disks in order, with net the tap. Once, before start. A flat payload is a
 *           kernel ELF without initrds. The VMM needs no other resource.
 * start     {}         loads, creates vCPUs, seals seccomp, runs.
 * restore   {disks:[{readOnly}], net?:{mac, mtu?}, serialBytes?}
 *           fds: kvm, state, memory, the disks, with net the tap. Instead of configure and start:
 *           a saved machine, which is then paused. The memory file is mapped privately and must
 *           never change; disks and net must be as they were when it was saved.
 * pause     {}         vCPUs and devices stand still at a point where nothing is in flight.
 * resume    {}
 * save      {}         fds: state, memory: two empty regular files. Of a paused machine, which
 *                      stays paused and unharmed whatever happens. Answer {memoryBytes}: written, not
 *                      zero. The caller syncs the files.
 * balloon   {targetMiB}  asks the guest to give up that much memory; 0: none
 * connect   {port, timeoutMs?}
 *                      fd: one end of a stream socketpair, which becomes the guest's vsock stream
 *                      to that port. Answer after the guest accepted; error connection_refused
 *                      (nobody listens, retryable), timeout (10 s unless given).
 * serial    {}         answer {text, dropped}: the last bytes the guest wrote, UTF-8 repaired.
 * stats     {}         answer {state, uptimeMs, exits:{io, mmio, …}, cpuNs:[per vCPU thread],
 *                      memoryMiB, blk:[{reads, writes, bytesRead, bytesWritten, errors}],
 *                      vsock:{…}, net:{…}, balloon:{…}}
 * wait      {}         answers when the guest ended: {state:"stopped", reason}
 * stop      {}         ends the guest at once and answers; the process exits after the answer and
 *                      after every wait was answered.
 *
 * reason: "poweroff" (ACPI S5), "reset" (reboot or panic=…), "triple_fault", "stop" (the verb),
 * "error" (internal; the log has it). States: created, configured, running,
 * paused, stopped.
 * When the guest ended by itself the process stays 1 s for wait and serial callers, then exits 0.
 *
 * Error codes: bad_request, wrong_state, kernel_invalid, memory_unavailable, kvm_unavailable,
 * kvm_failed, too_many_disks, connection_refused, timeout, state_invalid (truncated, altered),
 * state_version, state_mismatch (other CPU, disks, memory), system (a call of the host failed).
 */
#ifndef CLOCHE_PROTO_VMM_H
#define CLOCHE_PROTO_VMM_H

#define VMM_MSG_MAX (64u << 10)
#define VMM_LISTEN_FD 3
#define VMM_DISKS_MAX 4
#define VMM_INITRDS_MAX 4
#define VMM_VCPUS_MAX 32
#define VMM_MEMORY_MIN_MIB 32
#define VMM_MEMORY_MAX_MIB 65536
#define VMM_GUEST_CID 3

#endif
