/*
 * A cold boot: a jailed VMM from the broker, its resources as descriptors, then the wait for the
 * agent. The wait is a chain of connection attempts, because until the guest's driver is up
 * nobody can tell us that it is; between two attempts we sleep on the VMM's pidfd and the pending
 * `wait`, so a guest that dies ends it at once.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/base64.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "proto/agent.h"
#include "proto/frame.h"
#include "proto/vmm.h"
#include "sandbox/agent_conn.h"
#include "sandbox/images.h"
#include "sandbox/manager.h"
#include "sandbox/state.h"
#include "sandbox/vmm_ctl.h"

/*
 * quiet: a serial line is one exit to the VMM a byte; panics print anyway. panic=-1 turns them
 * into a reset that we see at once. trust_cpu and notests save seconds until Python has its
 * random numbers on slow hosts.
 */
#define KERNEL_WORDS "console=ttyS0 quiet panic=-1 reboot=t random.trust_cpu=on cryptomgr.notests"
#define CONFIGURE_MS 10000
#define START_MS 30000	/* loads the kernel and touches the first memory */
#define CONNECT_MS 2000 /* one attempt: until the guest's driver answers or refuses */
#define PAUSE_MIN_MS 2
#define PAUSE_MAX_MS 50
#define ADOPT_MIN_MS 10000
#define SERIAL_BYTES 65536
#define TAIL_LINES 20
#define VMM_LINES 5
#define ENTROPY_BYTES 64

/* ---- resources ---- */

static int open_file(const char *path, int flags, int *fd, struct err *e)
{
	*fd = open(path, flags | O_CLOEXEC | O_NOFOLLOW);
	return *fd < 0 ? err_errno(e, errno, "open %s", path) : 0;
}

struct resources {
	struct image image;
	int kvm, agent, disk;
};

static void resources_close(struct resources *r)
{
	image_close(&r->image);
	close_fd(&r->kvm);
	close_fd(&r->agent);
	close_fd(&r->disk);
}

static int open_agent(const struct sandbox_manager *m, int *fd, struct err *e)
{
	char path[PATH_MAX];

	if (snprintf(path, sizeof(path), "%s/agent.cpio", m->config.libexec_dir) >=
	    (int)sizeof(path))
		return err_errno(e, ENAMETOOLONG, "agent.cpio");
	return open_file(path, O_RDONLY, fd, e);
}

static int open_disk(const struct sandbox_manager *m, const struct sandbox *s, int *fd,
		     struct err *e)
{
	char path[PATH_MAX];
	int r = manager_path(m, s->row.id, "disk.raw", path, sizeof(path), e);

	return r < 0 ? r : open_file(path, O_RDWR, fd, e);
}

static int resources_open(struct sandbox_manager *m, const struct sandbox *s, struct resources *out,
			  struct err *e)
{
	int r = images_open(m->images, s->row.image, &out->image, e);

	if (r == 0)
		r = broker_open_kvm(m->config.broker, &out->kvm, e);
	if (r == 0)
		r = open_agent(m, &out->agent, e);
	return r < 0 ? r : open_disk(m, s, &out->disk, e);
}

static void hostname_of(const struct store_sandbox *row, char out[STORE_NAME_LEN])
{
	snprintf(out, STORE_NAME_LEN, "%s", row->name[0] ? row->name : row->id);
	for (char *p = out; *p; p++)
		if (*p == '_')
			*p = '-';
}

static json_t *configure_request(const struct sandbox *s, const struct resources *res)
{
	char cmdline[MANIFEST_CMDLINE_MAX + 512], hostname[STORE_NAME_LEN];
	const char *extra = res->image.manifest.cmdline;

	hostname_of(&s->row, hostname);
	snprintf(cmdline, sizeof(cmdline), "%s%s%s " AGENT_ROOT_PARAM "/dev/vda %s%s", KERNEL_WORDS,
		 extra[0] ? " " : "", extra, AGENT_HOSTNAME_PARAM, hostname);
	return json_pack("{s:s,s:I,s:I,s:s,s:i,s:[{s:b}],s:i,s:i}", "verb", "configure", "vcpus",
			 (json_int_t)s->row.vcpus, "memoryMiB", (json_int_t)s->row.memory_mib,
			 "cmdline", cmdline, "cid", VMM_GUEST_CID, "disks", "readOnly", 0,
			 "initrds", res->image.fds[MANIFEST_INITRD] >= 0 ? 2 : 1, "serialBytes",
			 SERIAL_BYTES);
}

static int configure(struct sandbox_manager *m, const struct sandbox *s, struct err *e)
{
	_cleanup_(resources_close) struct resources res = {
		.image = IMAGE_NONE, .kvm = -1, .agent = -1, .disk = -1
	};
	int fds[5], r = resources_open(m, s, &res, e);
	size_t n = 0;

	if (r < 0)
		return r;
	fds[n++] = res.kvm;
	fds[n++] = res.image.fds[MANIFEST_KERNEL];
	if (res.image.fds[MANIFEST_INITRD] >= 0)
		fds[n++] = res.image.fds[MANIFEST_INITRD];
	fds[n++] = res.agent;
	fds[n++] = res.disk;
	return vmm_ctl_call(m->config.run_dir, s->row.id, configure_request(s, &res), fds, n, NULL,
			    CONFIGURE_MS, e);
}

/* ---- the agent ---- */

int boot_connect(struct sandbox_manager *m, const char *id, int timeout_ms, int *fd, struct err *e)
{
	_cleanup_close_ int ours = -1, theirs = -1;
	int p[2], r;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, p) < 0)
		return err_errno(e, errno, "connect to the agent");
	ours = p[0];
	theirs = p[1];
	r = vmm_ctl_call(m->config.run_dir, id,
			 json_pack("{s:s,s:i}", "verb", "connect", "port", AGENT_VSOCK_PORT),
			 &theirs, 1, NULL, timeout_ms, e);
	if (r == 0)
		*fd = steal_fd(&ours);
	return r;
}

static int adopt_request(const struct sandbox *s, json_t **out, struct err *e)
{
	unsigned char entropy[ENTROPY_BYTES];
	_cleanup_buf_ struct buf b64 = { 0 };
	char hostname[STORE_NAME_LEN];
	json_t *env;

	if (getrandom(entropy, sizeof(entropy), 0) != (ssize_t)sizeof(entropy))
		return err_errno(e, EIO, "entropy for the guest");
	env = s->row.env_json ? json_loads(s->row.env_json, 0, NULL) : json_object();
	hostname_of(&s->row, hostname);
	if (!env || base64_encode(&b64, entropy, sizeof(entropy)) < 0) {
		json_decref(env);
		return err_errno(e, ENOMEM, "adopt the guest");
	}
	*out = json_pack("{s:s,s:I,s:s,s:o,s:I}", "hostname", hostname, "wallMs",
			 (json_int_t)clock_wall_ms(), "entropy", b64.data, "env", env, "generation",
			 (json_int_t)s->row.generation);
	return *out ? 0 : err_errno(e, ENOMEM, "adopt the guest");
}

static int adopt(struct sandbox_manager *m, const struct sandbox *s, int timeout_ms, struct err *e)
{
	_cleanup_json_ json_t *request = NULL;
	int fd, r = boot_connect(m, s->row.id, timeout_ms, &fd, e);

	/* The clock in it is read last. */
	if (r == 0 && (r = adopt_request(s, &request, e)) < 0)
		close(fd);
	if (r == 0)
		r = agent_call(fd, "adopt", request, NULL, timeout_ms, e);
	return r < 0 ? err_wrap(e, "adopt the guest") : 0;
}

/*
 * Once connected the agent has all the time there is left: on a busy host it mounts its disk for
 * seconds before it answers, and a guest that dies ends the stream.
 */
static int hello(struct sandbox_manager *m, const struct sandbox *s, int timeout_ms, struct err *e)
{
	int fd, r = boot_connect(m, s->row.id, timeout_ms < CONNECT_MS ? timeout_ms : CONNECT_MS,
				 &fd, e);

	return r < 0 ? r : agent_call(fd, "hello", NULL, NULL, timeout_ms, e);
}

/* Sleeps ms, or until the guest ended or is to end: then false. */
static bool pause_while_alive(struct sandbox_manager *m, const struct sandbox *s, int wait_fd,
			      int ms)
{
	struct pollfd p[2] = { { .fd = s->guest.pidfd, .events = POLLIN },
			       { .fd = wait_fd, .events = POLLIN } };
	bool deleting;

	poll(p, 2, ms);
	pthread_mutex_lock(&m->lock);
	deleting = s->deleting;
	pthread_mutex_unlock(&m->lock);
	return !p[0].revents && !p[1].revents && !deleting;
}

/* Milliseconds left until `end` on the monotonic clock, 0 when it is past. */
static int ms_until(uint64_t end)
{
	uint64_t now = clock_mono_ns();

	return now < end ? (int)((end - now) / NSEC_PER_MSEC) : 0;
}

/* 0 when the agent answered before `end`, "boot_failed" or "boot_timeout". */
static int wait_agent(struct sandbox_manager *m, const struct sandbox *s, int wait_fd, uint64_t end,
		      struct err *e)
{
	int nap = PAUSE_MIN_MS, left;

	while ((left = ms_until(end)) > 0) {
		if (hello(m, s, left, e) == 0)
			return 0;
		if (!pause_while_alive(m, s, wait_fd, nap))
			return err_set(e, "boot_failed", EIO,
				       "the guest ended before its agent answered");
		nap = nap * 2 > PAUSE_MAX_MS ? PAUSE_MAX_MS : nap * 2;
	}
	return err_set(e, "boot_timeout", ETIMEDOUT, "the guest's agent did not answer within %u s",
		       m->config.boot_timeout_ms / 1000);
}

/* ---- what to tell when it fails ---- */

/* The last `most` lines of text as an array. */
static json_t *tail_lines(char *text, size_t most)
{
	json_t *list = json_array();
	char *save = NULL;

	for (char *line = strtok_r(text, "\r\n", &save); line;
	     line = strtok_r(NULL, "\r\n", &save)) {
		json_array_append_new(list, json_string(line));
		if (json_array_size(list) > most)
			json_array_remove(list, 0);
	}
	return list;
}

/* Why the guest ended, and the end of its console; while the VMM still answers. */
static json_t *explain(struct sandbox_manager *m, const struct sandbox *s, int wait_fd)
{
	_cleanup_free_ char *serial = guest_serial(m, s->row.id);
	_cleanup_json_ json_t *end = NULL;
	struct pollfd p = { .fd = wait_fd, .events = POLLIN };
	json_t *details = json_object();

	if (wait_fd >= 0 && poll(&p, 1, 0) == 1 && vmm_ctl_recv(wait_fd, &end, 0, NULL) == 0)
		json_object_set_new(details, "reason",
				    json_string(state_end_reason(json_get_str(end, "reason", NULL),
								 serial, false)));
	else if (guest_wait_end(&s->guest, 0))
		json_object_set_new(details, "reason", json_string("vmm_crashed"));
	json_object_set_new(details, "serialTail",
			    serial ? tail_lines(serial, TAIL_LINES) : json_array());
	return details;
}

/* ---- the whole ---- */

/* The wait that tells of the guest's end, sent ahead of it. */
int boot_wait_open(struct sandbox_manager *m, const struct sandbox *s, int *wait_fd, struct err *e)
{
	_cleanup_close_ int fd = -1;
	int r = vmm_ctl_open(m->config.run_dir, s->row.id, &fd, e);

	if (r == 0)
		r = vmm_ctl_send(fd, json_pack("{s:s}", "verb", "wait"), NULL, 0, e);
	if (r == 0)
		*wait_fd = steal_fd(&fd);
	return r;
}

static int spawn(struct sandbox_manager *m, struct sandbox *s, struct err *e)
{
	struct broker_vmm vmm;
	int r = broker_vmm_spawn(m->config.broker, s->row.id, (unsigned)s->row.vcpus,
				 (unsigned)s->row.memory_mib, &vmm, e);

	if (r < 0 && strcmp(e->code, "vmm_exists") == 0) {
		/* What a failed clean-up left behind. */
		guest_end(m, s, NULL);
		r = broker_vmm_spawn(m->config.broker, s->row.id, (unsigned)s->row.vcpus,
				     (unsigned)s->row.memory_mib, &vmm, e);
	}
	if (r < 0)
		return r;
	s->guest.pidfd = vmm.pidfd;
	s->guest.log = vmm.log;
	pthread_mutex_lock(&m->lock);
	s->row.vmm_pid = vmm.pid;
	s->epoch++;
	pthread_mutex_unlock(&m->lock);
	return 0;
}

/* What a VMM or the broker says, in the words of sandbox.h. */
static void translate(struct err *e)
{
	static const struct {
		const char *from, *to, *fix;
	} words[] = {
		{ "vmm_limit", "capacity_sandboxes",
		  "Stop or delete a sandbox, or try again later." },
		{ "memory_unavailable", "capacity_memory",
		  "Stop or delete a sandbox, or ask for less memory." },
		{ "kernel_invalid", "boot_failed",
		  "The image's kernel is no ELF file with a PVH note: "
		  "build the image again." },
		{ "vmm_gone", "vmm_failed", "" },
		{ "vmm_timeout", "vmm_failed", "" },
		{ "vmm_exists", "vmm_failed", "" },
	};

	for (size_t i = 0; i < ARRAY_SIZE(words); i++) {
		if (strcmp(e->code, words[i].from) != 0)
			continue;
		e->code = words[i].to;
		if (words[i].fix[0])
			err_fix(e, "%s", words[i].fix);
		return;
	}
}

static int boot(struct sandbox_manager *m, struct sandbox *s, int *wait_fd, struct err *e)
{
	uint64_t end;
	int r = configure(m, s, e), left;

	if (r == 0)
		r = boot_wait_open(m, s, wait_fd, e);
	if (r == 0)
		r = vmm_ctl_call(m->config.run_dir, s->row.id, json_pack("{s:s}", "verb", "start"),
				 NULL, 0, NULL, START_MS, e);
	end = clock_mono_ns() + (uint64_t)m->config.boot_timeout_ms * NSEC_PER_MSEC;
	if (r == 0)
		r = wait_agent(m, s, *wait_fd, end, e);
	left = ms_until(end);
	return r < 0 ? r : adopt(m, s, left > ADOPT_MIN_MS ? left : ADOPT_MIN_MS, e);
}

/* The last lines that a VMM wrote to its log may say more than the guest's console. */
static void log_vmm_words(const struct sandbox *s)
{
	_cleanup_free_ char *text = guest_log(s);
	_cleanup_json_ json_t *lines = text ? tail_lines(text, VMM_LINES) : NULL;

	for (size_t i = 0; i < json_array_size(lines); i++)
		log_event(LOG_WARN, "the VMM said", "sandbox", s->row.id, "line",
			  json_string_value(json_array_get(lines, i)), NULL);
}

int boot_guest(struct sandbox_manager *m, struct sandbox *s, int *wait_fd, json_t **details,
	       struct err *e)
{
	_cleanup_close_ int wait = -1;
	uint64_t began = clock_mono_ns();
	int r = spawn(m, s, e);

	if (r < 0) {
		translate(e);
		return r;
	}
	r = boot(m, s, &wait, e);
	if (r < 0) {
		translate(e);
		if (details && wait >= 0)
			*details = explain(m, s, wait);
		log_vmm_words(s);
		guest_end(m, s, NULL);
		return r;
	}
	*wait_fd = steal_fd(&wait);
	log_info("%s: the agent answered after %llu ms", s->row.id,
		 (unsigned long long)((clock_mono_ns() - began) / NSEC_PER_MSEC));
	return 0;
}
