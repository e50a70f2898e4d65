/*
 * vmmctl: a developer's tool that starts a cloche-vmm, shows its serial output as it comes and
 * says how the guest ended. With --connect it joins standard input and output to a port of the
 * guest.
 *
 *	vmmctl [options] KERNEL
 *	  -V PROGRAM   the VMM (default: build/src/vmm/cloche-vmm)
 *	  -i INITRD    may be repeated; concatenated
 *	  -d DISK      may be repeated; opened for writing
 *	  -c CMDLINE   -n VCPUS   -m MIB
 *	  -p PORT      connect to the guest's vsock port once it listens
 *	  -s           print the VMM's statistics at the end
 *	  -t SECONDS   stop the guest after that long
 */
#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/str.h"
#include "proto/vmm.h"
#include "vmm_client.h"

#define POLL_MS 50
#define CONNECT_MS 120000

struct options {
	struct vmm_guest guest;
	const char *program;
	const char *initrds[VMM_INITRDS_MAX + 1], *disks[VMM_DISKS_MAX + 1];
	unsigned ninitrds, ndisks;
	uint32_t port;
	bool stats;
	uint64_t seconds;
};

static int usage(void)
{
	fprintf(stderr, "usage: vmmctl [-V VMM] [-i INITRD]… [-d DISK]… [-c CMDLINE] [-n VCPUS]"
			" [-m MIB] [-p PORT] [-s] [-t SECONDS] KERNEL\n");
	return 2;
}

static bool number(const char *s, int64_t min, int64_t max, int64_t *out)
{
	if (str_to_int(s, min, max, out) == 0)
		return true;
	fprintf(stderr, "vmmctl: %s is not a number from %lld to %lld\n", s, (long long)min,
		(long long)max);
	return false;
}

static bool option(struct options *o, int c, const char *arg)
{
	int64_t v = 0;

	switch (c) {
	case 'V':
		o->program = arg;
		return true;
	case 'c':
		o->guest.cmdline = arg;
		return true;
	case 's':
		o->stats = true;
		return true;
	case 'i':
		if (o->ninitrds < VMM_INITRDS_MAX)
			o->initrds[o->ninitrds++] = arg;
		return true;
	case 'd':
		if (o->ndisks < VMM_DISKS_MAX)
			o->disks[o->ndisks++] = arg;
		return true;
	case 'n':
		if (!number(arg, 1, VMM_VCPUS_MAX, &v))
			return false;
		o->guest.vcpus = (unsigned)v;
		return true;
	case 'm':
		if (!number(arg, VMM_MEMORY_MIN_MIB, VMM_MEMORY_MAX_MIB, &v))
			return false;
		o->guest.memory_mib = (unsigned)v;
		return true;
	case 'p':
		if (!number(arg, 1, UINT32_MAX - 1, &v))
			return false;
		o->port = (uint32_t)v;
		return true;
	case 't':
		if (!number(arg, 1, 1 << 20, &v))
			return false;
		o->seconds = (uint64_t)v;
		return true;
	default:
		return false;
	}
}

/* Prints what is new in the serial output; `shown` counts all bytes printed so far. */
static int show_serial(int sock, uint64_t *shown, struct err *e)
{
	_cleanup_json_ json_t *a =
		vmm_client_ask(sock, json_pack("{s:s}", "verb", "serial"), NULL, 0, e);
	const char *text;
	uint64_t from, n;

	if (!a)
		return -EIO;
	text = json_get_str(a, "text", "");
	from = (uint64_t)json_get_int(a, "dropped", 0);
	n = json_string_length(json_object_get(a, "text"));
	if (from > *shown) {
		printf("\n[%llu bytes lost]\n", (unsigned long long)(from - *shown));
		*shown = from;
	}
	if (from + n > *shown) {
		size_t skip = (size_t)(*shown - from);

		fwrite(text + skip, 1, (size_t)n - skip, stdout);
		fflush(stdout);
		*shown = from + n;
	}
	return 0;
}

static int show_stats(int sock, struct err *e)
{
	_cleanup_json_ json_t *a =
		vmm_client_ask(sock, json_pack("{s:s}", "verb", "stats"), NULL, 0, e);
	_cleanup_free_ char *text = a ? json_dumps(a, JSON_INDENT(2)) : NULL;

	if (!text)
		return -EIO;
	puts(text);
	return 0;
}

/* Follows the guest to its end on one connection while another waits for it. */
static int follow(struct vmm_client *c, const struct options *o, struct err *e)
{
	_cleanup_close_ int waiter = vmm_client_connect(c);
	uint64_t shown = 0, deadline = clock_mono_ns() + o->seconds * NSEC_PER_SEC;
	struct pollfd p = { .fd = waiter, .events = POLLIN };
	static const char wait_verb[] = "{\"verb\":\"wait\"}";
	char answer[1024];
	ssize_t n;
	int r = 0;

	if (waiter < 0 || fd_send_msg(waiter, wait_verb, sizeof(wait_verb) - 1, NULL, 0) < 0)
		return err_set(e, "system", 0, "cannot ask for the guest's end");
	while (r == 0 && poll(&p, 1, POLL_MS) == 0) {
		r = show_serial(c->sock, &shown, e);
		if (r == 0 && o->seconds && clock_mono_ns() > deadline)
			break;
	}
	if (r == 0)
		r = show_serial(c->sock, &shown, e);
	if (r == 0 && o->stats)
		r = show_stats(c->sock, e);
	if (r == 0)
		json_decref(
			vmm_client_ask(c->sock, json_pack("{s:s}", "verb", "stop"), NULL, 0, e));
	n = fd_recv_msg(waiter, answer, sizeof(answer) - 1, NULL, NULL);
	if (n > 0)
		printf("\n%.*s\n", (int)n, answer);
	return r;
}

/* Joins the terminal to the stream until either ends. */
static int join(int stream)
{
	struct pollfd p[2] = { { .fd = STDIN_FILENO, .events = POLLIN },
			       { .fd = stream, .events = POLLIN } };
	char buf[4096];

	for (;;) {
		if (poll(p, 2, -1) < 0 && errno != EINTR)
			return -errno;
		for (int i = 0; i < 2; i++) {
			ssize_t n;

			if (!(p[i].revents & (POLLIN | POLLHUP)))
				continue;
			n = read(p[i].fd, buf, sizeof(buf));
			if (n <= 0 && i == 1)
				return 0;
			if (n <= 0) {
				p[0].fd = -1;
				continue;
			}
			if (fd_write_full(i == 0 ? stream : STDOUT_FILENO, buf, (size_t)n) < 0)
				return 0;
		}
	}
}

static int run(const struct options *o, struct err *e)
{
	struct vmm_client c;
	json_t *started = NULL;
	int r = vmm_client_spawn(&c, o->program, e);

	if (r == 0)
		r = vmm_client_configure(&c, &o->guest, e);
	if (r == 0) {
		started = vmm_client_ask(c.sock, json_pack("{s:s}", "verb", "start"), NULL, 0, e);
		r = started ? 0 : -EIO;
		json_decref(started);
	}
	if (r == 0 && o->port) {
		_cleanup_close_ int stream = vmm_client_stream(&c, o->port, CONNECT_MS, e);

		r = stream < 0 ? stream : join(stream);
	}
	if (r == 0)
		r = follow(&c, o, e);
	else if (c.sock >= 0)
		json_decref(
			vmm_client_call(c.sock, json_pack("{s:s}", "verb", "stop"), NULL, 0, NULL));
	vmm_client_reap(&c);
	return r;
}

int main(int argc, char **argv)
{
	struct options o = {
		.guest = { .cmdline = "console=ttyS0 panic=-1", .vcpus = 1, .memory_mib = 256 },
		.program = "build/src/vmm/cloche-vmm"
	};
	struct err e;
	int c;

	while ((c = getopt(argc, argv, "V:i:d:c:n:m:p:st:")) != -1)
		if (!option(&o, c, optarg))
			return usage();
	if (optind + 1 != argc)
		return usage();
	o.guest.kernel = argv[optind];
	o.guest.initrds = o.initrds;
	o.guest.disks = o.disks;
	if (run(&o, &e) < 0) {
		fprintf(stderr, "vmmctl: %s\n", e.msg);
		return 1;
	}
	return 0;
}
