/*
 * One request and its answer under a lock. If the broker falls silent the next answer could be
 * that of an older request, so the client gives up for good; the daemon then restarts.
 */
#include "broker/client.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "proto/broker.h"

#define ANSWER_SECONDS 60

struct broker_client {
	pthread_mutex_t lock;
	int sock;
	bool lost;
};

/* Error codes are literals; what comes over the wire is mapped to one. */
static const char *const codes[] = { "bad_request", "vmm_exists",      "vmm_not_found", "vmm_alive",
				     "vmm_limit",   "kvm_unavailable", "system" };

int broker_client_new(int sock, struct broker_client **out, struct err *e)
{
	const struct timeval limit = { .tv_sec = ANSWER_SECONDS };
	struct broker_client *c = calloc(1, sizeof(*c));

	if (!c)
		return err_errno(e, ENOMEM, "broker client");
	if (setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) < 0 ||
	    setsockopt(sock, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) < 0) {
		int r = err_errno(e, errno, "broker client");

		free(c);
		return r;
	}
	pthread_mutex_init(&c->lock, NULL);
	c->sock = sock;
	*out = c;
	return 0;
}

void broker_client_free(struct broker_client *c)
{
	if (!c)
		return;
	close_fd(&c->sock);
	pthread_mutex_destroy(&c->lock);
	free(c);
}

static int lost(struct broker_client *c, int errnum, struct err *e)
{
	c->lost = true;
	return err_set(e, "broker_lost", errnum ? errnum : EPIPE, "the broker does not answer: %s",
		       strerror(errnum ? errnum : EPIPE));
}

static int refused(const json_t *reply, struct err *e)
{
	const json_t *error = json_object_get(reply, "error");
	const char *code = json_get_str(error, "code", ""), *known = "system";
	int r;

	for (size_t i = 0; i < ARRAY_SIZE(codes); i++)
		if (strcmp(code, codes[i]) == 0)
			known = codes[i];
	r = err_set(e, known, EIO, "%s", json_get_str(error, "message", "refused"));
	err_fix(e, "%s", json_get_str(error, "fix", ""));
	return r;
}

static int exchange(struct broker_client *c, const char *text, char buf[BROKER_MSG_MAX], int *fds,
		    size_t *nfds, struct err *e)
{
	ssize_t n;
	int r;

	if (c->lost)
		return lost(c, 0, e);
	r = fd_send_msg(c->sock, text, strlen(text), NULL, 0);
	if (r < 0)
		return lost(c, -r, e);
	n = fd_recv_msg(c->sock, buf, BROKER_MSG_MAX, fds, nfds);
	return n <= 0 ? lost(c, (int)-n, e) : (int)n;
}

static void close_all(int *fds, size_t n)
{
	for (size_t i = 0; i < n; i++)
		close_fd(&fds[i]);
}

/*
 * Sends request (consumed; NULL is out of memory) and gives the answer for the caller to release.
 * fds has room for 2 and is filled with -1 where nothing came; fewer than `want` is a failure.
 */
static int call(struct broker_client *c, json_t *request, json_t **out, int fds[2], size_t want,
		struct err *e)
{
	_cleanup_json_ json_t *req = request, *reply = NULL;
	_cleanup_free_ char *text = req ? json_dumps(req, JSON_COMPACT) : NULL;
	char buf[BROKER_MSG_MAX];
	int came[2] = { -1, -1 }, r;
	size_t nfds = 2;

	if (!text)
		return err_errno(e, ENOMEM, "ask the broker");
	pthread_mutex_lock(&c->lock);
	r = exchange(c, text, buf, came, &nfds, e);
	pthread_mutex_unlock(&c->lock);
	if (r < 0)
		return r;
	reply = json_parse(buf, (size_t)r, e);
	if (!reply)
		r = err_wrap(e, "the broker's answer");
	else if (!json_get_bool(reply, "ok", false))
		r = refused(reply, e);
	else if (nfds < want)
		r = err_set(e, "system", EPROTO, "the broker passed no descriptor");
	else
		r = 0;
	if (r < 0 || !fds) {
		close_all(came, nfds);
	} else {
		fds[0] = came[0];
		fds[1] = nfds > 1 ? came[1] : -1;
	}
	if (r == 0 && out)
		*out = steal_ptr(reply);
	return r;
}

static int take_vmm(struct broker_client *c, json_t *request, struct broker_vmm *out, struct err *e)
{
	_cleanup_json_ json_t *reply = NULL;
	int fds[2], r = call(c, request, &reply, fds, 1, e);

	if (r < 0)
		return r;
	out->pid = (pid_t)json_get_int(reply, "pid", 0);
	out->pidfd = fds[0];
	out->log = fds[1];
	return 0;
}

int broker_vmm_spawn(struct broker_client *c, const char *id, unsigned vcpus, unsigned memory_mib,
		     struct broker_vmm *out, struct err *e)
{
	return take_vmm(c,
			json_pack("{s:s,s:s,s:i,s:i}", "op", "vmm_spawn", "id", id, "vcpus",
				  (int)vcpus, "memoryMiB", (int)memory_mib),
			out, e);
}

int broker_vmm_open(struct broker_client *c, const char *id, struct broker_vmm *out, struct err *e)
{
	return take_vmm(c, json_pack("{s:s,s:s}", "op", "vmm_open", "id", id), out, e);
}

int broker_vmm_kill(struct broker_client *c, const char *id, struct err *e)
{
	return call(c, json_pack("{s:s,s:s}", "op", "vmm_kill", "id", id), NULL, NULL, 0, e);
}

int broker_vmm_reap(struct broker_client *c, const char *id, struct broker_exit *out, struct err *e)
{
	_cleanup_json_ json_t *reply = NULL;
	int r = call(c, json_pack("{s:s,s:s}", "op", "vmm_reap", "id", id), &reply, NULL, 0, e);

	if (r < 0)
		return r;
	out->code = (int)json_get_int(reply, "exitCode", -1);
	out->signal = (int)json_get_int(reply, "signal", 0);
	out->known = out->code >= 0 || out->signal;
	out->oom_killed = json_get_bool(reply, "oomKilled", false);
	return 0;
}

static int take_rows(const json_t *list, struct broker_vmm_row **rows, size_t *n, struct err *e)
{
	size_t more = json_array_size(list);
	struct broker_vmm_row *all = reallocarray(*rows, *n + more + 1, sizeof(**rows));

	if (!all)
		return err_errno(e, ENOMEM, "list VMMs");
	*rows = all;
	for (size_t i = 0; i < more; i++) {
		const json_t *item = json_array_get(list, i);
		const char *id = json_get_str(item, "id", "");

		if (!id_valid("sbx", id))
			return err_set(e, "system", EPROTO, "the broker listed a VMM without id");
		memcpy(all[*n].id, id, ID_LEN);
		all[*n].pid = (pid_t)json_get_int(item, "pid", 0);
		all[(*n)++].alive = json_get_bool(item, "alive", false);
	}
	return 0;
}

int broker_vmm_list(struct broker_client *c, struct broker_vmm_row **out, size_t *n, struct err *e)
{
	_cleanup_free_ struct broker_vmm_row *rows = NULL;
	size_t used = 0;
	bool more = true;

	while (more) {
		_cleanup_json_ json_t *reply = NULL;
		json_t *req = json_pack("{s:s}", "op", "vmm_list");
		int r;

		if (req && used)
			json_object_set_new(req, "after", json_string(rows[used - 1].id));
		r = call(c, req, &reply, NULL, 0, e);
		if (r == 0)
			r = take_rows(json_object_get(reply, "vmms"), &rows, &used, e);
		if (r < 0)
			return r;
		more = json_get_bool(reply, "more", false) && used;
	}
	*out = steal_ptr(rows);
	*n = used;
	return 0;
}

int broker_open_kvm(struct broker_client *c, int *fd, struct err *e)
{
	int fds[2], r = call(c, json_pack("{s:s}", "op", "open_kvm"), NULL, fds, 1, e);

	if (r == 0)
		*fd = fds[0];
	return r;
}
