/* A blocking request and its answer; the deadline is kept with poll(2). */
#include "sandbox/vmm_ctl.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "proto/vmm.h"

static const char *const passed_codes[] = { "connection_refused", "timeout", "kernel_invalid",
					    "memory_unavailable", "kvm_unavailable" };

int vmm_ctl_open(const char *run_dir, const char *id, int *fd, struct err *e)
{
	_cleanup_close_ int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	struct sockaddr_un a = { .sun_family = AF_UNIX };

	if (s < 0)
		return err_errno(e, errno, "control socket");
	if (snprintf(a.sun_path, sizeof(a.sun_path), "%s/vmm/%s.sock", run_dir, id) >=
	    (int)sizeof(a.sun_path))
		return err_errno(e, ENAMETOOLONG, "control socket");
	if (connect(s, (struct sockaddr *)&a, sizeof(a)) < 0)
		return err_set(e, "vmm_gone", errno, "the VMM of %s does not listen: %s", id,
			       strerror(errno));
	*fd = steal_fd(&s);
	return 0;
}

int vmm_ctl_send(int fd, json_t *request, const int *fds, size_t nfds, struct err *e)
{
	_cleanup_json_ json_t *req = request;
	_cleanup_free_ char *text = req ? json_dumps(req, JSON_COMPACT) : NULL;
	int r;

	if (!text)
		return err_errno(e, ENOMEM, "ask the VMM");
	if (strlen(text) > VMM_MSG_MAX)
		return err_set(e, "vmm_failed", EMSGSIZE, "a request to the VMM is too long");
	r = fd_send_msg(fd, text, strlen(text), fds, nfds);
	if (r < 0)
		return err_set(e, "vmm_gone", -r, "ask the VMM: %s", strerror(-r));
	return 0;
}

static int wait_readable(int fd, int timeout_ms, struct err *e)
{
	uint64_t end =
		clock_mono_ns() + (uint64_t)(timeout_ms > 0 ? timeout_ms : 0) * NSEC_PER_MSEC;
	struct pollfd p = { .fd = fd, .events = POLLIN };

	for (;;) {
		uint64_t now = clock_mono_ns();
		int left = timeout_ms < 0 ? -1
			   : now >= end	  ? 0
					  : (int)((end - now) / NSEC_PER_MSEC) + 1;
		int n = poll(&p, 1, left);

		if (n > 0)
			return 0;
		if (n == 0)
			return err_set(e, "vmm_timeout", ETIMEDOUT,
				       "the VMM did not answer within %d ms", timeout_ms);
		if (errno != EINTR)
			return err_errno(e, errno, "wait for the VMM");
	}
}

static int refused(const json_t *reply, struct err *e)
{
	const json_t *error = json_object_get(reply, "error");
	const char *code = json_get_str(error, "code", "unknown"), *known = "vmm_failed";

	for (size_t i = 0; i < ARRAY_SIZE(passed_codes); i++)
		if (strcmp(code, passed_codes[i]) == 0)
			known = passed_codes[i];
	return err_set(e, known, EIO, "the VMM: %s (%s)", json_get_str(error, "message", "refused"),
		       code);
}

int vmm_ctl_recv(int fd, json_t **reply, int timeout_ms, struct err *e)
{
	_cleanup_free_ char *buf = malloc(VMM_MSG_MAX);
	_cleanup_json_ json_t *v = NULL;
	ssize_t n;
	int r;

	if (!buf)
		return err_errno(e, ENOMEM, "the VMM's answer");
	r = wait_readable(fd, timeout_ms, e);
	if (r < 0)
		return r;
	n = fd_recv_msg(fd, buf, VMM_MSG_MAX, NULL, NULL);
	if (n == 0 || n == -ECONNRESET)
		return err_set(e, "vmm_gone", EPIPE, "the VMM ended");
	if (n < 0)
		return err_set(e, "vmm_failed", (int)-n, "the VMM's answer: %s", strerror((int)-n));
	v = json_parse(buf, (size_t)n, e);
	if (!v)
		return err_wrap(e, "the VMM's answer");
	if (!json_get_bool(v, "ok", false))
		return refused(v, e);
	if (reply)
		*reply = steal_ptr(v);
	return 0;
}

int vmm_ctl_call(const char *run_dir, const char *id, json_t *request, const int *fds, size_t nfds,
		 json_t **reply, int timeout_ms, struct err *e)
{
	_cleanup_json_ json_t *req = request;
	_cleanup_close_ int fd = -1;
	int r = vmm_ctl_open(run_dir, id, &fd, e);

	if (r == 0)
		r = vmm_ctl_send(fd, steal_ptr(req), fds, nfds, e);
	return r < 0 ? r : vmm_ctl_recv(fd, reply, timeout_ms, e);
}
