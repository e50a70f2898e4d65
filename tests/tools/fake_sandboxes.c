/*
 * sandbox/sandbox.h without machines. A running sandbox is a cloche-agent process in --no-init
 * mode; "stop" kills it. Names steer what a real host would do: an image "missing" is not found,
 * "full" is out of memory, "broken" does not boot, "slow" takes two seconds.
 */
#include "fake_sandboxes.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base64.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/str.h"
#include "sandbox/agent_conn.h"
#include "sandbox/sandbox.h"

struct sandbox_manager {
	struct store *store;
	const char *agent, *dir;
};

struct sandbox_manager *fake_sandboxes_new(struct store *s, const char *agent, const char *dir)
{
	struct sandbox_manager *m = calloc(1, sizeof(*m));

	m->store = s;
	m->agent = agent;
	m->dir = dir;
	return m;
}

static void agent_path(const struct sandbox_manager *m, const char *id, struct sockaddr_un *sa)
{
	sa->sun_family = AF_UNIX;
	snprintf(sa->sun_path, sizeof(sa->sun_path), "%s/%s.sock", m->dir, id);
}

/* DIR/ID.pid holds the agent's process, so that a restarted api_host still finds it. */
static void pid_path(const struct sandbox_manager *m, const char *id, char out[256])
{
	snprintf(out, 256, "%s/%s.pid", m->dir, id);
}

static void agent_end(struct sandbox_manager *m, const char *id)
{
	_cleanup_buf_ struct buf text = { 0 };
	struct sockaddr_un sa;
	char path[256];
	int64_t pid;

	pid_path(m, id, path);
	if (fd_read_file(path, &text, 32, NULL) < 0 || str_to_int(text.data, 2, INT32_MAX, &pid))
		return;
	kill((pid_t)pid, SIGTERM);
	waitpid((pid_t)pid, NULL, 0);
	unlink(path);
	agent_path(m, id, &sa);
	unlink(sa.sun_path);
}

static int agent_connect(struct sandbox_manager *m, const char *id, int *fd)
{
	struct sockaddr_un sa = { 0 };
	int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	agent_path(m, id, &sa);
	if (s < 0 || connect(s, (struct sockaddr *)&sa, sizeof(sa)) < 0) {
		int r = -errno;

		if (s >= 0)
			close(s);
		return r;
	}
	*fd = s;
	return 0;
}

/* Says who it is to the agent; commands are refused before. */
static int agent_adopt(struct sandbox_manager *m, const struct store_sandbox *row, struct err *e)
{
	_cleanup_buf_ struct buf entropy = { 0 };
	_cleanup_json_ json_t *env = json_loads(row->env_json ? row->env_json : "{}", 0, NULL);
	_cleanup_json_ json_t *arguments = NULL;
	static const unsigned char zeros[32];
	int fd = -1;

	base64_encode(&entropy, zeros, sizeof(zeros));
	for (int i = 0; agent_connect(m, row->id, &fd) < 0; i++) {
		if (i == 1000)
			return err_set(e, "boot_timeout", ETIMEDOUT, "the agent does not listen");
		usleep(5000);
	}
	arguments = json_pack("{s:s,s:I,s:s,s:O,s:I}", "hostname", "test", "wallMs",
			      (json_int_t)clock_wall_ms(), "entropy", entropy.data, "env", env,
			      "generation", (json_int_t)row->generation);
	return agent_call(fd, "adopt", arguments, NULL, 10000, e);
}

static int agent_begin(struct sandbox_manager *m, const struct store_sandbox *row, struct err *e)
{
	struct sockaddr_un sa;
	char run[160], path[256], text[16];
	pid_t pid;

	if (!m->agent)
		return 0;
	agent_path(m, row->id, &sa);
	snprintf(run, sizeof(run), "%s/%s", m->dir, row->id);
	pid = fork();
	if (pid == 0) {
		execl(m->agent, m->agent, "--no-init", "--listen-unix", sa.sun_path, "--run-dir",
		      run, NULL);
		_exit(127);
	}
	snprintf(text, sizeof(text), "%d", pid);
	pid_path(m, row->id, path);
	if (fd_write_file_atomic(path, text, strlen(text), 0600, e))
		return -EIO;
	return agent_adopt(m, row, e);
}

void fake_sandboxes_free(struct sandbox_manager *m)
{
	free(m);
}

static void event_fill(struct store_event *ev, const char *type, const char *actor, const char *id)
{
	snprintf(ev->type, sizeof(ev->type), "%s", type);
	snprintf(ev->actor, sizeof(ev->actor), "%s", actor);
	snprintf(ev->sandbox, sizeof(ev->sandbox), "%s", id);
}

static int change(struct sandbox_manager *m, struct store_sandbox *row, enum sandbox_state state,
		  const char *type, const char *actor, struct err *e)
{
	struct store_event ev = { 0 };

	row->state = state;
	if (state == SANDBOX_RUNNING) {
		row->started_ms = clock_wall_ms();
		row->generation++;
		row->lease_ends_ms = row->timeout_s ? row->started_ms + row->timeout_s * 1000 : 0;
	}
	event_fill(&ev, type, actor, row->id);
	return store_sandbox_update(m->store, row, &ev, e);
}

static int refuse(const struct store_sandbox *row, json_t **details, struct err *e)
{
	if (strcmp(row->image, "missing") == 0)
		return err_set(e, "image_not_found", ENOENT,
			       "no image \"missing\"; there is: base");
	if (strcmp(row->image, "full") == 0)
		return err_set(e, "capacity_memory", EAGAIN, "needs more memory than is free");
	if (strcmp(row->image, "broken") == 0) {
		*details = json_pack("{s:[s]}", "serialTail", "Kernel panic");
		return err_set(e, "boot_failed", EIO, "the guest ended while it booted");
	}
	if (strcmp(row->image, "odd") == 0)
		return err_set(e, "never_heard_of", EIO, "a secret detail");
	return 0;
}

int sandbox_create(struct sandbox_manager *m, struct store_sandbox *row, const char *actor,
		   json_t **details, struct err *e)
{
	struct store_event ev = { 0 };
	int r;

	if (!row->image[0])
		snprintf(row->image, sizeof(row->image), "base");
	if (!row->vcpus)
		row->vcpus = 2;
	if (!row->memory_mib)
		row->memory_mib = 512;
	if (!row->disk_mib)
		row->disk_mib = 10240;
	r = refuse(row, details, e);
	if (r)
		return r;
	if (!row->id[0])
		id_new("sbx", row->id);
	row->created_ms = clock_wall_ms();
	snprintf(row->host, sizeof(row->host), "test");
	event_fill(&ev, "sandbox.created", actor, row->id);
	r = store_sandbox_insert(m->store, row, &ev, e);
	if (strcmp(row->image, "slow") == 0)
		sleep(2);
	if (r == 0)
		r = agent_begin(m, row, e);
	return r ? r : change(m, row, SANDBOX_RUNNING, "sandbox.started", actor, e);
}

static int live_row(struct sandbox_manager *m, const char *id, struct store_sandbox *row,
		    struct err *e)
{
	int r = store_sandbox_get(m->store, id, row, e);

	if (r == 0 && row->state == SANDBOX_DELETED) {
		store_sandbox_free(row);
		r = err_set(e, "sandbox_not_found", ENOENT, "%s is deleted", id);
	}
	return r;
}

int sandbox_stop(struct sandbox_manager *m, const char *id, const char *actor, const char *reason,
		 unsigned timeout_ms, struct err *e)
{
	struct store_sandbox row = { 0 };
	int r = live_row(m, id, &row, e);

	(void)timeout_ms;
	if (r)
		return r;
	agent_end(m, id);
	snprintf(row.stop_reason, sizeof(row.stop_reason), "%s", reason);
	r = change(m, &row, SANDBOX_STOPPED, "sandbox.stopped", actor, e);
	store_sandbox_free(&row);
	return r;
}

int sandbox_start(struct sandbox_manager *m, const char *id, const char *actor, json_t **details,
		  struct err *e)
{
	struct store_sandbox row = { 0 };
	int r = live_row(m, id, &row, e);

	(void)details;
	if (r)
		return r;
	if (row.state != SANDBOX_RUNNING) {
		row.stop_reason[0] = '\0';
		r = agent_begin(m, &row, e);
		if (r == 0)
			r = change(m, &row, SANDBOX_RUNNING, "sandbox.started", actor, e);
	}
	store_sandbox_free(&row);
	return r;
}

int sandbox_delete(struct sandbox_manager *m, const char *id, const char *actor, struct err *e)
{
	struct store_sandbox row = { 0 };
	int r = live_row(m, id, &row, e);

	if (r)
		return r;
	agent_end(m, id);
	r = change(m, &row, SANDBOX_DELETED, "sandbox.deleted", actor, e);
	store_sandbox_free(&row);
	return r;
}

int sandbox_renew(struct sandbox_manager *m, const char *id, const char *actor, int64_t timeout_s,
		  struct err *e)
{
	struct store_sandbox row = { 0 };
	struct store_event ev = { 0 };
	int r = live_row(m, id, &row, e);

	if (r)
		return r;
	row.timeout_s = timeout_s;
	row.lease_ends_ms = timeout_s ? clock_wall_ms() + timeout_s * 1000 : 0;
	event_fill(&ev, "sandbox.renewed", actor, id);
	r = store_sandbox_update(m->store, &row, &ev, e);
	store_sandbox_free(&row);
	return r;
}

int sandbox_connect(struct sandbox_manager *m, const char *id, int *fd, struct err *e)
{
	struct store_sandbox row = { 0 };
	enum sandbox_state state;
	int r = live_row(m, id, &row, e);

	if (r)
		return r;
	state = row.state;
	store_sandbox_free(&row);
	if (state != SANDBOX_RUNNING)
		return err_set(e, "sandbox_not_running", EBUSY, "%s is %s", id,
			       sandbox_state_name(state));
	r = agent_connect(m, id, fd);
	return r ? err_set(e, "guest_unreachable", -r, "the agent of %s does not answer", id) : 0;
}

int sandbox_serial(struct sandbox_manager *m, const char *id, char **text, struct err *e)
{
	(void)m;
	(void)id;
	(void)e;
	*text = strdup("login:");
	return 0;
}

int sandbox_usage(struct sandbox_manager *m, const char *id, int64_t from_ms,
		  struct store_usage *out, struct err *e)
{
	return store_usage_sum(m->store, id, from_ms, out, e);
}

int sandbox_images(struct sandbox_manager *m, json_t **out, struct err *e)
{
	(void)m;
	(void)e;
	*out = json_pack("[{s:s,s:s,s:i,s:s}]", "name", "base", "kernelVersion", "6.1", "diskMiB",
			 400, "importedAt", "2026-01-01T00:00:00.000Z");
	return 0;
}
