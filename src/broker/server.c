/*
 * The table at the end maps an operation to its function. A function puts its answer's members
 * into `reply` and the descriptors to pass into fds; those that are its own to close are dup'ed,
 * the others stay where they belong.
 */
#include "broker/server.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/log.h"
#include "broker/msg.h"
#include "broker/vmms.h"
#include "proto/broker.h"

struct answer {
	json_t *reply;
	int fds[2]; /* lent, but for owned */
	size_t nfds;
	int owned; /* closed after sending, or -1 */
};

typedef int (*op_fn)(struct broker_server *s, const struct broker_request *req, struct answer *a,
		     struct err *e);

static int find(struct broker_server *s, const struct broker_request *req, struct vmm **out,
		struct err *e)
{
	*out = vmms_find(s->vmms, req->id);
	return *out ? 0 : err_set(e, "vmm_not_found", ENOENT, "%s has no VMM", req->id);
}

static int set(struct answer *a, const char *name, json_t *value, struct err *e)
{
	return json_object_set_new(a->reply, name, value) < 0 ? err_errno(e, ENOMEM, "answer") : 0;
}

static int give_vmm(const struct vmm *vm, struct answer *a, struct err *e)
{
	a->fds[a->nfds++] = vm->pidfd;
	if (vm->log >= 0)
		a->fds[a->nfds++] = vm->log;
	return set(a, "pid", json_integer(vm->pid), e);
}

static int do_spawn(struct broker_server *s, const struct broker_request *req, struct answer *a,
		    struct err *e)
{
	struct vmm *vm;
	int r = vmms_spawn(s->vmms, req->id, req->vcpus, req->memory_mib, &vm, e);

	return r < 0 ? r : give_vmm(vm, a, e);
}

static int do_open(struct broker_server *s, const struct broker_request *req, struct answer *a,
		   struct err *e)
{
	struct vmm *vm;
	int r = find(s, req, &vm, e);

	if (r == 0 && vm->pidfd < 0)
		r = err_set(e, "vmm_not_found", ENOENT, "the VMM of %s has ended", req->id);
	return r < 0 ? r : give_vmm(vm, a, e);
}

static int do_kill(struct broker_server *s, const struct broker_request *req, struct answer *a,
		   struct err *e)
{
	struct vmm *vm;
	int r = find(s, req, &vm, e);

	(void)a;
	return r < 0 ? r : vmms_kill(s->vmms, vm, e);
}

static int do_reap(struct broker_server *s, const struct broker_request *req, struct answer *a,
		   struct err *e)
{
	struct vmm_exit x;
	struct vmm *vm;
	int r = find(s, req, &vm, e);

	if (r == 0)
		r = vmms_reap(s->vmms, vm, &x, e);
	if (r == 0)
		r = set(a, "exitCode", x.known && !x.signal ? json_integer(x.code) : json_null(),
			e);
	if (r == 0)
		r = set(a, "signal", x.signal ? json_integer(x.signal) : json_null(), e);
	return r < 0 ? r : set(a, "oomKilled", json_boolean(x.oom_killed), e);
}

static int do_list(struct broker_server *s, const struct broker_request *req, struct answer *a,
		   struct err *e)
{
	json_t *list = json_array();
	const struct vmm *vm = s->vmms->first;
	int r = set(a, "vmms", list, e);

	while (vm && req->id[0] && strcmp(vm->id, req->id) <= 0)
		vm = vm->next;
	for (; r == 0 && vm && json_array_size(list) < BROKER_LIST_MAX; vm = vm->next)
		if (json_array_append_new(list, json_pack("{s:s,s:i,s:b}", "id", vm->id, "pid",
							  (int)vm->pid, "alive", vmm_alive(vm))) <
		    0)
			r = err_errno(e, ENOMEM, "answer");
	return r < 0 ? r : set(a, "more", json_boolean(vm), e);
}

static int do_open_kvm(struct broker_server *s, const struct broker_request *req, struct answer *a,
		       struct err *e)
{
	int r;

	(void)req;
	a->owned = open(s->kvm_path, O_RDWR | O_CLOEXEC);
	if (a->owned < 0) {
		r = err_set(e, "kvm_unavailable", errno, "open %s: %s", s->kvm_path,
			    strerror(errno));
		err_fix(e, "Run `cloche doctor`: it says what this host lacks.");
		return r;
	}
	a->fds[a->nfds++] = a->owned;
	return 0;
}

static const op_fn ops[] = {
	[BROKER_VMM_SPAWN] = do_spawn, [BROKER_VMM_OPEN] = do_open, [BROKER_VMM_KILL] = do_kill,
	[BROKER_VMM_REAP] = do_reap,   [BROKER_VMM_LIST] = do_list, [BROKER_OPEN_KVM] = do_open_kvm,
};

static int send_answer(int sock, const struct answer *a, struct err *e)
{
	_cleanup_free_ char *text = json_dumps(a->reply, JSON_COMPACT);
	int r;

	if (!text || strlen(text) > BROKER_MSG_MAX)
		return err_errno(e, text ? EMSGSIZE : ENOMEM, "answer");
	r = fd_send_msg(sock, text, strlen(text), a->fds, a->nfds);
	return r < 0 ? err_errno(e, -r, "answer the api child") : 0;
}

static int send_failure(int sock, const struct err *why, struct err *e)
{
	_cleanup_json_ json_t *reply = json_pack("{s:b,s:{s:s,s:s,s:s}}", "ok", 0, "error", "code",
						 why->code, "message", why->msg, "fix", why->fix);
	struct answer a = { .reply = reply };

	return reply ? send_answer(sock, &a, e) : err_errno(e, ENOMEM, "answer");
}

static int receive(int sock, char buf[BROKER_MSG_MAX], struct err *e)
{
	ssize_t n = fd_recv_msg(sock, buf, BROKER_MSG_MAX, NULL, NULL);

	/* Longer than any request, or with descriptors, which none has: answered, not fatal. */
	if (n == -EMSGSIZE)
		return 1;
	if (n < 0)
		return err_errno(e, (int)-n, "receive from the api child");
	return (int)n;
}

int broker_serve_one(struct broker_server *s, int sock, struct err *e)
{
	_cleanup_json_ json_t *reply = json_pack("{s:b}", "ok", 1);
	_cleanup_close_ int owned = -1;
	struct answer a = { .reply = reply, .owned = -1 };
	struct broker_request req;
	char buf[BROKER_MSG_MAX];
	struct err why;
	int n = receive(sock, buf, e), r;

	if (n <= 0)
		return n;
	if (!reply)
		return err_errno(e, ENOMEM, "answer");
	r = broker_msg_parse(buf, (size_t)n, &req, &why);
	if (r == 0)
		r = ops[req.op](s, &req, &a, &why);
	owned = a.owned;
	if (r < 0) {
		log_err(LOG_DEBUG, &why, "request refused");
		r = send_failure(sock, &why, e);
	} else {
		r = send_answer(sock, &a, e);
	}
	return r < 0 ? r : 1;
}
