/* Blocking calls over one connection; an answer follows its request, so no ids are needed. */
#include "vmm_client.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "proto/vmm.h"

static socklen_t address_of(const struct vmm_client *c, struct sockaddr_un *a)
{
	size_t n = strlen(c->name);

	memset(a, 0, sizeof(*a));
	a->sun_family = AF_UNIX;
	memcpy(a->sun_path + 1, c->name, n); /* abstract: begins with NUL */
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n);
}

static void exec_vmm(const char *program, int listener)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL); /* a failed test leaves no VMM behind */
	/* dup2 onto itself would leave FD_CLOEXEC set. */
	if (listener == VMM_LISTEN_FD ? fcntl(listener, F_SETFD, 0) < 0
				      : dup2(listener, VMM_LISTEN_FD) < 0)
		_exit(126);
	execl(program, "cloche-vmm", (char *)NULL);
	fprintf(stderr, "exec %s: %s\n", program, strerror(errno));
	_exit(127);
}

int vmm_client_spawn(struct vmm_client *c, const char *program, struct err *e)
{
	_cleanup_close_ int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	struct sockaddr_un a;
	socklen_t n;

	*c = (struct vmm_client){ .pid = -1, .sock = -1 };
	snprintf(c->name, sizeof(c->name), "cloche-vmm-test-%ld-%p", (long)getpid(), (void *)c);
	n = address_of(c, &a);
	if (listener < 0 || bind(listener, (struct sockaddr *)&a, n) < 0 || listen(listener, 8) < 0)
		return err_errno(e, errno, "control socket");
	c->pid = fork();
	if (c->pid < 0)
		return err_errno(e, errno, "fork");
	if (c->pid == 0)
		exec_vmm(program, listener);
	c->sock = vmm_client_connect(c);
	return c->sock < 0 ? err_errno(e, -c->sock, "connect to the VMM") : 0;
}

int vmm_client_connect(const struct vmm_client *c)
{
	_cleanup_close_ int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	struct sockaddr_un a;
	socklen_t n = address_of(c, &a);

	if (s < 0 || connect(s, (struct sockaddr *)&a, n) < 0)
		return -errno;
	return steal_fd(&s);
}

json_t *vmm_client_call(int sock, json_t *request, const int *fds, size_t nfds, struct err *e)
{
	_cleanup_free_ char *text = json_dumps(request, JSON_COMPACT);
	_cleanup_free_ char *answer = malloc(VMM_MSG_MAX);
	ssize_t n;
	int r;

	json_decref(request);
	if (!text || !answer) {
		err_errno(e, ENOMEM, "request");
		return NULL;
	}
	r = fd_send_msg(sock, text, strlen(text), fds, nfds);
	if (r < 0) {
		err_errno(e, -r, "send %s", text);
		return NULL;
	}
	n = fd_recv_msg(sock, answer, VMM_MSG_MAX, NULL, NULL);
	if (n <= 0) {
		err_errno(e, n < 0 ? (int)-n : ECONNRESET, "no answer to %s", text);
		return NULL;
	}
	return json_parse(answer, (size_t)n, e);
}

json_t *vmm_client_ask(int sock, json_t *request, const int *fds, size_t nfds, struct err *e)
{
	/* Codes outlive the answer: those of the protocol, as literals. */
	static const char *const codes[] = {
		"bad_request",	   "wrong_state",   "kernel_invalid", "memory_unavailable",
		"kvm_unavailable", "kvm_failed",    "too_many_disks", "connection_refused",
		"timeout",	   "state_invalid", "state_version",  "state_mismatch"
	};
	_cleanup_json_ json_t *answer = vmm_client_call(sock, request, fds, nfds, e);
	const json_t *error;
	const char *code, *known = "unknown";

	if (!answer || json_get_bool(answer, "ok", false))
		return steal_ptr(answer);
	error = json_object_get(answer, "error");
	code = json_get_str(error, "code", "");
	for (size_t i = 0; i < ARRAY_SIZE(codes); i++)
		if (strcmp(code, codes[i]) == 0)
			known = codes[i];
	err_set(e, known, 0, "%s: %s", code, json_get_str(error, "message", ""));
	return NULL;
}

/* Opens the paths of a NULL-terminated list onto the end of fds. */
static int open_all(const char *const *paths, int flags, int *fds, size_t *n, struct err *e)
{
	for (; paths && *paths; paths++) {
		if (*n == FD_PASS_MAX)
			return err_set(e, "bad_request", E2BIG, "too many files");
		fds[*n] = open(*paths, flags | O_CLOEXEC);
		if (fds[*n] < 0)
			return err_errno(e, errno, "open %s", *paths);
		(*n)++;
	}
	return 0;
}

static size_t list_len(const char *const *list)
{
	size_t n = 0;

	while (list && list[n])
		n++;
	return n;
}

int vmm_client_configure(struct vmm_client *c, const struct vmm_guest *g, struct err *e)
{
	const char *const first[] = { "/dev/kvm", NULL }, *const kernel[] = { g->kernel, NULL };
	_cleanup_json_ json_t *answer = NULL;
	json_t *disks = json_array();
	int fds[FD_PASS_MAX];
	size_t n = 0;
	int r = open_all(first, O_RDWR, fds, &n, e);

	if (r == 0)
		r = open_all(kernel, O_RDONLY, fds, &n, e);
	if (r == 0)
		r = open_all(g->initrds, O_RDONLY, fds, &n, e);
	if (r == 0)
		r = open_all(g->disks, O_RDWR, fds, &n, e);
	for (size_t i = 0; i < list_len(g->disks); i++)
		json_array_append_new(disks, json_pack("{s:b}", "readOnly", 0));
	if (r == 0) {
		answer = vmm_client_ask(c->sock,
					json_pack("{s:s,s:i,s:i,s:s,s:i,s:i,s:O}", "verb",
						  "configure", "vcpus", (int)g->vcpus, "memoryMiB",
						  (int)g->memory_mib, "cmdline", g->cmdline, "cid",
						  VMM_GUEST_CID, "initrds",
						  (int)list_len(g->initrds), "disks", disks),
					fds, n, e);
		r = answer ? 0 : -EIO;
	}
	json_decref(disks);
	for (size_t i = 0; i < n; i++)
		close(fds[i]);
	return r;
}

int vmm_client_save(struct vmm_client *c, struct vmm_saved *out, struct err *e)
{
	_cleanup_json_ json_t *answer = NULL;
	int fds[2];

	*out = (struct vmm_saved){ memfd_create("state", MFD_CLOEXEC),
				   memfd_create("memory", MFD_CLOEXEC) };
	if (out->state < 0 || out->memory < 0)
		return err_errno(e, errno, "memory file");
	fds[0] = out->state;
	fds[1] = out->memory;
	answer = vmm_client_ask(c->sock, json_pack("{s:s}", "verb", "save"), fds, 2, e);
	return answer ? 0 : -EIO;
}

int vmm_client_restore(struct vmm_client *c, const struct vmm_saved *s, struct err *e)
{
	int fds[3] = { open("/dev/kvm", O_RDWR | O_CLOEXEC), s->state, s->memory };
	_cleanup_json_ json_t *answer = NULL;

	if (fds[0] < 0)
		return err_errno(e, errno, "open /dev/kvm");
	if (lseek(s->state, 0, SEEK_SET) < 0)
		return err_errno(e, errno, "state file");
	answer = vmm_client_ask(c->sock, json_pack("{s:s,s:[]}", "verb", "restore", "disks"), fds,
				3, e);
	close(fds[0]);
	return answer ? 0 : -EIO;
}

void vmm_saved_close(struct vmm_saved *s)
{
	close_fd(&s->state);
	close_fd(&s->memory);
}

int vmm_client_stream(struct vmm_client *c, uint32_t port, unsigned timeout_ms, struct err *e)
{
	_cleanup_json_ json_t *answer = NULL;
	int pair[2];

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
		return err_errno(e, errno, "socketpair");
	answer = vmm_client_ask(c->sock,
				json_pack("{s:s,s:I,s:i}", "verb", "connect", "port",
					  (json_int_t)port, "timeoutMs", (int)timeout_ms),
				&pair[1], 1, e);
	close(pair[1]);
	if (!answer) {
		close(pair[0]);
		return -EIO;
	}
	return pair[0];
}

int vmm_client_reap(struct vmm_client *c)
{
	int status = -1;

	close_fd(&c->sock);
	while (c->pid > 0 && waitpid(c->pid, &status, 0) < 0 && errno == EINTR)
		;
	c->pid = -1;
	return status;
}
