/*
 * The host's side for the namespace tests: makes real slots, runs the real cloche-egress, and joins
 * each slot's tap to a tap in a guest's namespace by copying frames, offloads and all, as the VMM's
 * network device does. Driven by JSON lines on stdin, one answer line each:
 *
 *	{"op":"slot","name":N,"guest":PATH}   slot N, its guest end "eth0" in the namespace at PATH
 *	{"op":"wire","guest":PATH,"router":PATH}   the same cable without a slot, to compare with
 *	{"op":"remove","name":N}              slot_remove and destroy
 *	{"op":"kill"}, {"op":"start"}         egress dies (SIGKILL); a new one gets new sockets
 *	{"op":"pid"}                          egress' process
 *	{"verb":…}                            passed on to egress
 *
 * usage: egress_host EGRESS RUN_DIR STATE_DIR UID [egress options…]
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <grp.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/log.h"
#include "broker/slot.h"
#include "proto/egress.h"

#define SLOTS_MAX 64
#define FRAME_MAX (65536 + 64)

struct joined {
	struct slot *slot;
	pid_t cable;
};

struct host {
	char **argv; /* of main */
	uid_t uid;
	pid_t egress;
	int control; /* connection to it */
	struct joined slots[SLOTS_MAX];
	size_t n;
};

static void die(const struct err *e, const char *what)
{
	log_err(LOG_ERROR, e, what);
	exit(1);
}

/* --- the cable --- */

static void copy_frames(int from, int to)
{
	static char frame[FRAME_MAX];

	for (int i = 0; i < 64; i++) {
		ssize_t n = read(from, frame, sizeof(frame));

		if (n <= 0)
			return;
		while (write(to, frame, (size_t)n) < 0 && errno == EINTR)
			;
	}
}

static void cable_run(int a, int b)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (;;) {
		struct pollfd p[2] = { { .fd = a, .events = POLLIN },
				       { .fd = b, .events = POLLIN } };

		if (poll(p, 2, -1) < 0 && errno != EINTR)
			_exit(1);
		if ((p[0].revents | p[1].revents) & (POLLERR | POLLHUP | POLLNVAL))
			_exit(0);
		if (p[0].revents)
			copy_frames(a, b);
		if (p[1].revents)
			copy_frames(b, a);
	}
}

/* A tap belongs to the namespace where /dev/net/tun was opened. */
static int tap_in(const char *path, const char *name)
{
	_cleanup_close_ int ns = open(path, O_RDONLY | O_CLOEXEC);
	_cleanup_close_ int home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
	struct ifreq r = { .ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR };
	_cleanup_close_ int fd = -1;
	int hdr = SLOT_TAP_HDR_LEN, why = 0;

	snprintf(r.ifr_name, sizeof(r.ifr_name), "%s", name);
	if (ns < 0 || home < 0 || setns(ns, CLONE_NEWNET) < 0)
		return -errno;
	fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0 || ioctl(fd, TUNSETIFF, &r) < 0 || ioctl(fd, TUNSETVNETHDRSZ, &hdr) < 0)
		why = errno;
	if (setns(home, CLONE_NEWNET) < 0)
		return -errno;
	return why ? -why : steal_fd(&fd);
}

/* Joins two taps by a process of its own; returns its id. */
static pid_t cable(int a, int b, struct err *e)
{
	unsigned offload = TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6;
	pid_t pid;

	if (ioctl(a, TUNSETOFFLOAD, offload) < 0 || ioctl(b, TUNSETOFFLOAD, offload) < 0)
		return err_errno(e, errno, "offloads");
	pid = fork();
	if (pid < 0)
		return err_errno(e, errno, "cable");
	if (pid == 0)
		cable_run(a, b);
	return pid;
}

static int join(struct joined *j, const char *guest, struct err *e)
{
	_cleanup_close_ int tap = tap_in(guest, "eth0");

	if (tap < 0)
		return err_errno(e, -tap, "make the guest's tap");
	j->cable = cable(tap, j->slot->tap, e);
	if (j->cable < 0)
		return j->cable;
	close_fd(&j->slot->tap); /* the cable holds it now, as a VMM would */
	return 0;
}

/* --- egress --- */

static void egress_exec(const struct host *h, int listener)
{
	static char state_dir[] = "--state-dir";
	char *argv[32] = { h->argv[1], state_dir, h->argv[3] };
	size_t n = 3;

	for (char **a = h->argv + 5; *a && n < 31; a++)
		argv[n++] = *a;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	/* Onto itself dup2 would leave close-on-exec set. */
	if ((listener == EGRESS_LISTEN_FD ? fcntl(listener, F_SETFD, 0)
					  : dup2(listener, EGRESS_LISTEN_FD)) < 0 ||
	    setgroups(0, NULL) < 0 || setgid(h->uid) < 0 || setuid(h->uid) < 0)
		_exit(126);
	close_range(EGRESS_LISTEN_FD + 1, ~0U, 0);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	execv(argv[0], argv);
	_exit(127);
}

static json_t *ask(struct host *h, const json_t *request, const int *fds, size_t nfds,
		   struct err *e)
{
	static char answer[EGRESS_MSG_MAX];
	_cleanup_free_ char *text = json_dumps(request, JSON_COMPACT);
	ssize_t n;
	int r = fd_send_msg(h->control, text, strlen(text), fds, nfds);

	if (r < 0) {
		err_errno(e, -r, "ask egress");
		return NULL;
	}
	n = fd_recv_msg(h->control, answer, sizeof(answer), NULL, NULL);
	if (n <= 0) {
		err_errno(e, n < 0 ? (int)-n : ECONNRESET, "egress' answer");
		return NULL;
	}
	return json_parse(answer, (size_t)n, e);
}

static json_t *give_sockets(struct host *h, struct slot *s, struct err *e)
{
	_cleanup_json_ json_t *q = json_pack("{s:s,s:s}", "verb", "slot_add", "slot", s->id);
	int fds[SLOT_SOCKETS];
	json_t *answer;

	if (slot_listen(s, fds, e) < 0)
		return NULL;
	answer = ask(h, q, fds, SLOT_SOCKETS, e);
	for (int i = 0; i < SLOT_SOCKETS; i++)
		close(fds[i]);
	return answer;
}

static int egress_start(struct host *h, struct err *e)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	_cleanup_close_ int l = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	snprintf(sa.sun_path, sizeof(sa.sun_path), "%s/egress.sock", h->argv[2]);
	unlink(sa.sun_path);
	if (l < 0 || bind(l, (struct sockaddr *)&sa, sizeof(sa)) < 0 || listen(l, 8) < 0)
		return err_errno(e, errno, "control socket");
	h->egress = fork();
	if (h->egress < 0)
		return err_errno(e, errno, "start egress");
	if (h->egress == 0)
		egress_exec(h, l);
	h->control = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (connect(h->control, (struct sockaddr *)&sa, sizeof(sa)) < 0)
		return err_errno(e, errno, "connect to egress");
	for (size_t i = 0; i < h->n; i++) {
		_cleanup_json_ json_t *a = give_sockets(h, h->slots[i].slot, e);

		if (!a)
			return -EIO;
	}
	return 0;
}

static void egress_kill(struct host *h, int sig)
{
	kill(h->egress, sig);
	waitpid(h->egress, NULL, 0);
	close_fd(&h->control);
	h->egress = 0;
}

/* --- operations --- */

static json_t *op_slot(struct host *h, const json_t *q, struct err *e)
{
	struct joined *j = &h->slots[h->n];

	if (h->n == SLOTS_MAX) {
		err_set(e, "too_many", E2BIG, "no more slots");
		return NULL;
	}
	if (slot_make(h->argv[2], json_get_str(q, "name", ""), &j->slot, e) < 0 ||
	    join(j, json_get_str(q, "guest", ""), e) < 0)
		return NULL;
	h->n++;
	return give_sockets(h, j->slot, e);
}

static json_t *op_wire(const json_t *q, struct err *e)
{
	_cleanup_close_ int a = tap_in(json_get_str(q, "guest", ""), "eth0");
	_cleanup_close_ int b = tap_in(json_get_str(q, "router", ""), SLOT_TAP_NAME);

	if (a < 0 || b < 0) {
		err_set(e, "system", EIO, "make taps");
		return NULL;
	}
	return cable(a, b, e) < 0 ? NULL : json_pack("{s:b}", "ok", 1);
}

static void unjoin(struct joined *j)
{
	kill(j->cable, SIGKILL);
	waitpid(j->cable, NULL, 0);
	slot_destroy(j->slot);
}

static json_t *op_remove(struct host *h, const json_t *q, struct err *e)
{
	_cleanup_json_ json_t *v =
		json_pack("{s:s,s:s}", "verb", "slot_remove", "slot", json_get_str(q, "name", ""));
	json_t *answer = ask(h, v, NULL, 0, e);

	for (size_t i = 0; i < h->n; i++) {
		if (strcmp(h->slots[i].slot->id, json_get_str(q, "name", "")) != 0)
			continue;
		unjoin(&h->slots[i]);
		h->slots[i] = h->slots[--h->n];
		break;
	}
	return answer;
}

static json_t *operate(struct host *h, const json_t *q, struct err *e)
{
	const char *op = json_get_str(q, "op", "");

	if (json_object_get(q, "verb"))
		return ask(h, q, NULL, 0, e);
	if (strcmp(op, "slot") == 0)
		return op_slot(h, q, e);
	if (strcmp(op, "pid") == 0)
		return json_pack("{s:b,s:i}", "ok", 1, "pid", h->egress);
	if (strcmp(op, "wire") == 0)
		return op_wire(q, e);
	if (strcmp(op, "remove") == 0)
		return op_remove(h, q, e);
	if (strcmp(op, "kill") == 0) {
		egress_kill(h, SIGKILL);
		return json_pack("{s:b}", "ok", 1);
	}
	if (strcmp(op, "start") == 0)
		return egress_start(h, e) < 0 ? NULL
					      : json_pack("{s:b,s:i}", "ok", 1, "pid", h->egress);
	err_set(e, "bad_op", EINVAL, "no such op");
	return NULL;
}

int main(int argc, char **argv)
{
	struct host h = { .argv = argv, .control = -1 };
	struct err e = { 0 };
	char *line = NULL;
	size_t cap = 0;
	ssize_t n;

	log_init("egress_host", LOG_INFO);
	if (argc < 5)
		return 2;
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	h.uid = (uid_t)strtoul(argv[4], NULL, 10);
	if (slot_prepare(argv[2], &e) < 0 || egress_start(&h, &e) < 0)
		die(&e, "start");
	while ((n = getline(&line, &cap, stdin)) > 0) {
		_cleanup_json_ json_t *q = json_parse(line, (size_t)n, &e);
		json_t *a = q ? operate(&h, q, &e) : NULL;

		if (!a)
			a = json_pack("{s:b,s:{s:s,s:s}}", "ok", 0, "error", "code", e.code,
				      "message", e.msg);
		json_dumpf(a, stdout, JSON_COMPACT);
		putchar('\n');
		fflush(stdout);
		json_decref(a);
	}
	for (size_t i = 0; i < h.n; i++)
		unjoin(&h.slots[i]);
	if (h.egress)
		egress_kill(&h, SIGTERM);
	free(line);
	return 0;
}
