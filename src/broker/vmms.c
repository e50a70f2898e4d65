/*
 * A VMM's life here: record, socket, control group, process; and the other way round when it
 * ended. The record comes first and goes last, so every step in between can be undone by whoever
 * finds the record. The child waits for a byte before it runs, so it is in its control groups and
 * its pid on record before its first instruction; if we die meanwhile it reads end of file and
 * exits.
 *
 * The log is a memory file sealed at its size: a VMM that writes without end fills it and then
 * fails to write, and nobody has to read it meanwhile.
 */
#include "broker/vmms.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/sched.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/log.h"
#include "broker/record.h"
#include "proto/broker.h"

#define BACKLOG 64

static int vmm_path(const struct vmms *v, const char *id, const char *ext, char out[PATH_MAX],
		    struct err *e)
{
	int n = snprintf(out, PATH_MAX, "%s/vmm/%s.%s", v->config->run_dir, id, ext);

	return n >= PATH_MAX ? err_errno(e, ENAMETOOLONG, "run folder") : 0;
}

struct vmm *vmms_find(struct vmms *v, const char *id)
{
	for (struct vmm *vm = v->first; vm; vm = vm->next)
		if (strcmp(vm->id, id) == 0)
			return vm;
	return NULL;
}

static struct vmm *vmm_add(struct vmms *v, const char *id)
{
	struct vmm **p = &v->first, *vm = calloc(1, sizeof(*vm));

	if (!vm)
		return NULL;
	memcpy(vm->id, id, ID_LEN);
	vm->pidfd = vm->log = -1;
	while (*p && strcmp((*p)->id, id) < 0)
		p = &(*p)->next;
	vm->next = *p;
	*p = vm;
	return vm;
}

static void vmm_drop(struct vmms *v, struct vmm *vm)
{
	struct vmm **p = &v->first;

	while (*p != vm)
		p = &(*p)->next;
	*p = vm->next;
	close_fd(&vm->pidfd);
	close_fd(&vm->log);
	free(vm);
}

static int pick_uid(const struct vmms *v, uid_t *out, struct err *e)
{
	for (unsigned i = 0; i < v->config->uid_count; i++) {
		uid_t uid = v->config->uid_first + i;
		const struct vmm *vm = v->first;

		while (vm && vm->uid != uid)
			vm = vm->next;
		if (!vm) {
			*out = uid;
			return 0;
		}
	}
	return err_set(e, "vmm_limit", EAGAIN, "all %u user ids for sandboxes are in use",
		       v->config->uid_count);
}

static int listen_at(const char *path, uid_t uid, gid_t gid, int *out, struct err *e)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	_cleanup_close_ int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return err_errno(e, errno, "control socket");
	if (strlen(path) >= sizeof(a.sun_path))
		return err_errno(e, ENAMETOOLONG, "control socket %s", path);
	memcpy(a.sun_path, path, strlen(path) + 1);
	if (unlink(path) < 0 && errno != ENOENT)
		return err_errno(e, errno, "remove %s", path);
	if (bind(fd, (struct sockaddr *)&a, sizeof(a)) < 0 || chmod(path, 0600) < 0 ||
	    chown(path, uid, gid) < 0 || listen(fd, BACKLOG) < 0)
		return err_errno(e, errno, "listen at %s", path);
	*out = steal_fd(&fd);
	return 0;
}

static int make_log(int *out, struct err *e)
{
	_cleanup_close_ int fd = memfd_create("vmm-log", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd < 0 || ftruncate(fd, BROKER_LOG_BYTES) < 0 ||
	    fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) < 0)
		return err_errno(e, errno, "log of a VMM");
	*out = steal_fd(&fd);
	return 0;
}

/* fork(2) that also opens a pidfd and enters the control group, where there is one. */
static pid_t clone_child(int cgroup_fd, int *pidfd)
{
	struct clone_args a = {
		.flags = CLONE_PIDFD | (cgroup_fd >= 0 ? CLONE_INTO_CGROUP : 0),
		.pidfd = (uintptr_t)pidfd,
		.exit_signal = SIGCHLD,
		.cgroup = cgroup_fd >= 0 ? (uint64_t)cgroup_fd : 0,
	};

	return (pid_t)syscall(SYS_clone3, &a, sizeof(a));
}

struct start {
	int go_r, go_w;		/* a byte: run; end of file: do not */
	int report_r, report_w; /* struct jail_failure, or end of file when it runs */
	int listen, cgroup;
};

#define START_NONE                     \
	{                              \
		-1, -1, -1, -1, -1, -1 \
	}

static void start_close(struct start *s)
{
	close_fd(&s->go_r);
	close_fd(&s->go_w);
	close_fd(&s->report_r);
	close_fd(&s->report_w);
	close_fd(&s->listen);
	close_fd(&s->cgroup);
}

static int start_pipes(struct start *s, struct err *e)
{
	int p[2];

	if (pipe2(p, O_CLOEXEC) < 0)
		return err_errno(e, errno, "start a VMM");
	s->go_r = p[0];
	s->go_w = p[1];
	if (pipe2(p, O_CLOEXEC) < 0)
		return err_errno(e, errno, "start a VMM");
	s->report_r = p[0];
	s->report_w = p[1];
	return 0;
}

_Noreturn static void child(const struct vmms *v, const struct vmm *vm, struct start *s)
{
	char argv0[ID_LEN + 16], go;
	const struct jail_spec spec = {
		.jail = &v->config->jail,
		.uid = vm->uid,
		.gid = (gid_t)vm->uid,
		.exe = v->exe,
		.log = vm->log,
		.listen = s->listen,
		.argv0 = argv0,
		.keep_user = v->config->unjailed,
	};

	snprintf(argv0, sizeof(argv0), "cloche-vmm:%s", vm->id);
	close_fd(&s->go_w);
	if (fd_read_full(s->go_r, &go, 1) != 1)
		_exit(125);
	jail_exec(&spec, s->report_w);
}

/* Lets the child go and learns whether the program runs. */
static int release(struct start *s, struct err *e)
{
	struct jail_failure f;
	ssize_t n;
	int r;

	close_fd(&s->report_w);
	close_fd(&s->go_r);
	r = fd_write_full(s->go_w, "g", 1);
	if (r < 0)
		return err_errno(e, -r, "start a VMM");
	n = fd_read_full(s->report_r, &f, sizeof(f));
	if (n == 0)
		return 0;
	if (n != (ssize_t)sizeof(f))
		return err_set(e, "system", EIO, "start a VMM: it died in its jail's set-up");
	f.step[sizeof(f.step) - 1] = '\0';
	return err_errno(e, f.errnum, "start a VMM: %s", f.step);
}

static int start_process(struct vmms *v, struct vmm *vm, struct start *s, const char *record,
			 struct err *e)
{
	int r = start_pipes(s, e);

	if (r < 0)
		return r;
	vm->pid = clone_child(s->cgroup, &vm->pidfd);
	if (vm->pid < 0) {
		vm->pid = 0;
		return err_errno(e, errno, "start a VMM");
	}
	if (vm->pid == 0)
		child(v, vm, s);
	vm->is_child = true;
	if (record_process_start(vm->pid, &vm->start) < 0)
		return err_set(e, "system", EIO, "start a VMM: it has no /proc entry");
	r = cgroup_add_v1(&v->config->cgroup, vm->id, vm->pid, e);
	if (r == 0)
		r = record_write(record, &(struct record){ vm->pid, vm->start, vm->uid }, e);
	return r < 0 ? r : release(s, e);
}

static int vmm_start(struct vmms *v, struct vmm *vm, unsigned vcpus, unsigned memory_mib,
		     struct err *e)
{
	_cleanup_(start_close) struct start s = START_NONE;
	const struct vmms_config *c = v->config;
	const struct cgroup_limits limits = {
		.memory_bytes = ((uint64_t)memory_mib + c->memory_overhead_mib) << 20,
		.cpu_percent = vcpus * 100 + 50, /* the I/O thread beside them */
		.pids = vcpus + c->pids_extra,
	};
	char record[PATH_MAX], sock[PATH_MAX];
	int r = pick_uid(v, &vm->uid, e);

	if (r == 0)
		r = vmm_path(v, vm->id, "json", record, e);
	if (r == 0)
		r = vmm_path(v, vm->id, "sock", sock, e);
	if (r == 0)
		r = record_write(record, &(struct record){ 0, 0, vm->uid }, e);
	if (r == 0)
		r = make_log(&vm->log, e);
	if (r == 0)
		r = listen_at(sock, c->api_uid, c->api_gid, &s.listen, e);
	if (r == 0)
		r = cgroup_make(&c->cgroup, vm->id, &limits, &s.cgroup, e);
	return r < 0 ? r : start_process(v, vm, &s, record, e);
}

/* What a failed start left: at most one process, which never ran or is about to end. */
static void undo_start(struct vmms *v, struct vmm *vm)
{
	struct vmm_exit ignored;
	struct err e;

	if (vm->is_child) {
		kill(vm->pid, SIGKILL);
		while (waitpid(vm->pid, NULL, 0) < 0 && errno == EINTR)
			;
		vm->is_child = false;
		close_fd(&vm->pidfd);
	}
	if (vmms_reap(v, vm, &ignored, &e) < 0)
		log_err(LOG_WARN, &e, "clean up after a VMM that did not start");
}

int vmms_spawn(struct vmms *v, const char *id, unsigned vcpus, unsigned memory_mib,
	       struct vmm **out, struct err *e)
{
	struct vmm *vm;
	int r;

	if (vmms_find(v, id))
		return err_set(e, "vmm_exists", EEXIST, "%s has a VMM", id);
	vm = vmm_add(v, id);
	if (!vm)
		return err_errno(e, ENOMEM, "start a VMM");
	r = vmm_start(v, vm, vcpus, memory_mib, e);
	if (r < 0) {
		undo_start(v, vm);
		return r;
	}
	*out = vm;
	return 0;
}

bool vmm_alive(const struct vmm *vm)
{
	struct pollfd p = { .fd = vm->pidfd, .events = POLLIN };

	return vm->pidfd >= 0 && poll(&p, 1, 0) == 0;
}

int vmms_kill(struct vmms *v, struct vmm *vm, struct err *e)
{
	int r;

	if (vmm_alive(vm) && syscall(SYS_pidfd_send_signal, vm->pidfd, SIGKILL, NULL, 0) < 0 &&
	    errno != ESRCH)
		return err_errno(e, errno, "kill the VMM of %s", vm->id);
	r = cgroup_kill(&v->config->cgroup, vm->id, e);
	return r < 0 ? r : 0;
}

static void take_status(struct vmm *vm, struct vmm_exit *out)
{
	siginfo_t si = { 0 };

	if (!vm->is_child || waitid(P_PIDFD, (id_t)vm->pidfd, &si, WEXITED | WNOHANG) < 0)
		return;
	vm->is_child = false;
	out->known = true;
	if (si.si_code == CLD_EXITED)
		out->code = si.si_status;
	else
		out->signal = si.si_status;
}

int vmms_reap(struct vmms *v, struct vmm *vm, struct vmm_exit *out, struct err *e)
{
	char record[PATH_MAX], sock[PATH_MAX];
	int r;

	*out = (struct vmm_exit){ 0 };
	if (vmm_alive(vm))
		return err_set(e, "vmm_alive", EBUSY, "the VMM of %s lives", vm->id);
	out->oom_killed = cgroup_oom_killed(&v->config->cgroup, vm->id);
	r = cgroup_remove(&v->config->cgroup, vm->id, e);
	if (r == -EBUSY) {
		r = cgroup_kill(&v->config->cgroup, vm->id, e);
		return r < 0 ? r
			     : err_set(e, "vmm_alive", EBUSY, "processes of %s still end", vm->id);
	}
	if (r == 0)
		r = vmm_path(v, vm->id, "json", record, e);
	if (r == 0)
		r = vmm_path(v, vm->id, "sock", sock, e);
	if (r < 0)
		return r;
	take_status(vm, out);
	if ((unlink(sock) < 0 && errno != ENOENT) || (unlink(record) < 0 && errno != ENOENT))
		return err_errno(e, errno, "remove %s", sock);
	vmm_drop(v, vm);
	return 0;
}

/* A record names a live process, or one whose remains wait to be reaped. */
static int adopt(struct vmms *v, const char *id, const char *path, struct err *e)
{
	_cleanup_close_ int pidfd = -1;
	unsigned long long start;
	struct record rec;
	struct vmm *vm;
	char log[64];

	if (record_read(path, &rec, e) < 0) {
		log_err(LOG_WARN, e, "treat a VMM as gone");
		rec = (struct record){ 0 };
	}
	vm = vmm_add(v, id);
	if (!vm)
		return err_errno(e, ENOMEM, "adopt a VMM");
	vm->uid = rec.uid;
	pidfd = rec.pid ? (int)syscall(SYS_pidfd_open, rec.pid, 0) : -1;
	/* After pidfd_open the pid cannot be given to another process unnoticed. */
	if (pidfd < 0 || record_process_start(rec.pid, &start) < 0 || start != rec.start)
		return 0;
	vm->pid = rec.pid;
	vm->start = rec.start;
	vm->pidfd = steal_fd(&pidfd);
	snprintf(log, sizeof(log), "/proc/%d/fd/2", (int)rec.pid);
	vm->log = open(log, O_RDWR | O_CLOEXEC);
	return 0;
}

static int load(struct vmms *v, struct err *e)
{
	_cleanup_closedir_ DIR *d = NULL;
	char dir[PATH_MAX], path[PATH_MAX];
	struct dirent *de;
	int r = 0;

	if (snprintf(dir, sizeof(dir), "%s/vmm", v->config->run_dir) >= (int)sizeof(dir))
		return err_errno(e, ENAMETOOLONG, "run folder");
	d = opendir(dir);
	if (!d)
		return err_errno(e, errno, "open %s", dir);
	while (r == 0 && (de = readdir(d))) {
		char id[ID_LEN];

		if (strlen(de->d_name) != ID_LEN - 1 + 5 ||
		    strcmp(de->d_name + ID_LEN - 1, ".json") != 0)
			continue;
		memcpy(id, de->d_name, ID_LEN - 1);
		id[ID_LEN - 1] = '\0';
		if (!id_valid("sbx", id))
			continue;
		r = vmm_path(v, id, "json", path, e);
		if (r == 0)
			r = adopt(v, id, path, e);
	}
	return r;
}

int vmms_open(struct vmms *v, const struct vmms_config *c, struct err *e)
{
	int r;

	*v = (struct vmms){ .config = c, .exe = -1 };
	v->exe = open(c->vmm_path, O_PATH | O_CLOEXEC);
	if (v->exe < 0)
		return err_errno(e, errno, "open the virtual machine monitor %s", c->vmm_path);
	r = load(v, e);
	if (r < 0)
		vmms_close(v);
	return r;
}

void vmms_close(struct vmms *v)
{
	while (v->first)
		vmm_drop(v, v->first);
	close_fd(&v->exe);
}
