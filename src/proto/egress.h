/*
 * The control protocol of cloche-egress: one JSON object a message on a SOCK_SEQPACKET unix socket,
 * descriptors by SCM_RIGHTS. The program is started with a listening socket as descriptor 3 and
 * accepts any number of connections. Each request {"verb":…,"id":n?} gets one answer
 * {"id":n,"ok":true,…} or {"id":n,"ok":false,"error":{"code","message","fix"?,"problems"?:[…]}}.
 *
 * hello         {}                            answers {version, ca: PEM or null}
 * slot_add      {slot}                        fds: the slot's sockets in the order of
 *                                             enum slot_socket; closed until a policy is set
 * policy_set    {slot, sandbox, generation, policy}   puts it in force for new and open
 *                                             connections; answers {cut: connections ended}
 * policy_check  {policy}                      answers {problems:[…]}; changes nothing
 * explain       {slot, host, port}            answers {allowed, reason, rule, message, fix}
 * log           {slot, after?, limit?}        answers {records:[…], next}
 * stats         {slot?}                       answers counters of one slot, or {slots:[…]}
 * slot_remove   {slot}                        cuts everything and closes the sockets
 * secret_check  {secret:{value?, hosts, in}}   answers {problems:[…]}; changes nothing
 * secret_seal   {id, value}                   answers {sealed}: the value encrypted for the store
 * secrets_set   {slot, scope, secrets:[{id, name, hosts, in, sealed}]}   replaces all of the
 *                                             slot's; answers {placeholders:{id: text}, cut}.
 *                                             scope: a sandbox's id; a fork keeps its parent's, so
 *                                             that placeholders in its memory stay good
 *
 * Error codes: bad_request, unknown_slot, slot_exists, policy_invalid, secret_invalid, system.
 * State lives with the caller: after a restart it adds the slots and sets everything again.
 */
#ifndef CLOCHE_PROTO_EGRESS_H
#define CLOCHE_PROTO_EGRESS_H

#define EGRESS_MSG_MAX (256u << 10)
#define EGRESS_LISTEN_FD 3
#define EGRESS_SLOT_MAX 32
#define EGRESS_SANDBOX_MAX 32
#define EGRESS_SECRETS_MAX 64
#define EGRESS_VERSION 1

/*
 * A placeholder is EGRESS_PLACEHOLDER_PREFIX and EGRESS_PLACEHOLDER_HEX digits of lower-case hex.
 * It stands for the value inside the sandbox and is worth nothing elsewhere.
 */
#define EGRESS_PLACEHOLDER_PREFIX "clsec-"
#define EGRESS_PLACEHOLDER_HEX 40
#define EGRESS_PLACEHOLDER_LEN 46 /* both together, without NUL */

#endif
