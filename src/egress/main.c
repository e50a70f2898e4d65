/*
 * cloche-egress: DNS and transparent proxy for all sandboxes of a host (docs/security-network.md).
 *
 * Started by the broker as its own user, without capabilities, with the control socket as
 * descriptor 3. It opens what it needs (its key files, the resolver's configuration, the trust
 * store), then gives up the rest with seccomp: no program is started and no file is opened after
 * that. When it ends, the sockets inside the slots end with it, and every connection of every
 * sandbox is refused until a new one is given new sockets.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/str.h"
#include "egress/confine.h"
#include "egress/control.h"
#include "egress/egress.h"
#include "egress/resolver.h"
#include "egress/ruleset.h"
#include "egress/tls.h"
#include "egress/vault.h"

#define RULESETS_MAX (4 << 20)

struct options {
	const char *state_dir, *resolver, *rulesets, *trust_file;
	int64_t connections, connection_rate, lookup_rate;
};

static const char usage[] =
	"usage: cloche-egress --state-dir DIR [--resolver ADDRESS[:PORT],…] [--rulesets FILE]\n"
	"                     [--trust-file PEM] [--connections N] [--connection-rate N]\n"
	"                     [--lookup-rate N]\n"
	"Started by the daemon, with its control socket as descriptor 3.\n";

static int parse_options(int argc, char **argv, struct options *o, struct err *e)
{
	static const struct option longs[] = { { "state-dir", required_argument, NULL, 's' },
					       { "resolver", required_argument, NULL, 'r' },
					       { "rulesets", required_argument, NULL, 'R' },
					       { "trust-file", required_argument, NULL, 't' },
					       { "connections", required_argument, NULL, 'c' },
					       { "connection-rate", required_argument, NULL, 'C' },
					       { "lookup-rate", required_argument, NULL, 'l' },
					       { 0 } };
	int c;

	while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		int64_t *number = c == 'c'   ? &o->connections
				  : c == 'C' ? &o->connection_rate
					     : &o->lookup_rate;

		if (c == 's')
			o->state_dir = optarg;
		else if (c == 'r')
			o->resolver = optarg;
		else if (c == 'R')
			o->rulesets = optarg;
		else if (c == 't')
			o->trust_file = optarg;
		else if (c == '?' || str_to_int(optarg, 1, 1000000, number) < 0)
			return err_set(e, "usage", EINVAL, "a bad option\n%s", usage);
	}
	if (optind != argc || !o->state_dir)
		return err_set(e, "usage", EINVAL, "--state-dir is needed and nothing follows\n%s",
			       usage);
	return 0;
}

static int load_rulesets(struct egress *eg, const char *path, struct err *e)
{
	_cleanup_buf_ struct buf text = { 0 };
	int r = fd_read_file(path, &text, RULESETS_MAX, e);

	if (r == 0)
		r = ruleset_book_parse(text.data ? text.data : "", text.len, &eg->book, e);
	return r < 0 ? err_wrap(e, "rule sets") : 0;
}

static int open_secrets(struct egress *eg, const struct options *o, struct err *e)
{
	_cleanup_buf_ struct buf key = { 0 };
	int r;

	if (buf_printf(&key, "%s/secret.key", o->state_dir) < 0)
		return err_errno(e, ENOMEM, "secrets");
	r = vault_open(key.data, &eg->vault, e);
	return r < 0 ? r : tls_new(o->state_dir, o->trust_file, &eg->tls, e);
}

static int egress_open(struct egress *eg, const struct options *o, struct err *e)
{
	int r;

	eg->limits = (struct egress_limits){ .flows = (unsigned)o->connections,
					     .flow_rate = (unsigned)o->connection_rate,
					     .flow_burst = 2 * (unsigned)o->connection_rate,
					     .lookups = 128,
					     .lookup_rate = (unsigned)o->lookup_rate,
					     .lookup_burst = 2 * (unsigned)o->lookup_rate };
	if ((r = loop_new(&eg->loop, e)) < 0 || (r = timers_new(eg->loop, &eg->timers, e)) < 0 ||
	    (r = resolver_new(eg->loop, eg->timers, o->resolver, &eg->resolver, e)) < 0)
		return r;
	if (o->rulesets && (r = load_rulesets(eg, o->rulesets, e)) < 0)
		return r;
	return open_secrets(eg, o, e);
}

static void egress_close(struct egress *eg)
{
	while (eg->tenants)
		tenant_free(eg->tenants);
	resolver_free(eg->resolver);
	ruleset_book_free(eg->book);
	tls_free(eg->tls);
	vault_free(eg->vault);
	relay_pool_drain(&eg->pipes);
	timers_free(eg->timers);
	loop_free(eg->loop);
}

static void on_signal(void *ctx, int fd, uint32_t events)
{
	struct egress *eg = ctx;
	struct signalfd_siginfo si;

	(void)events;
	if (read(fd, &si, sizeof(si)) == (ssize_t)sizeof(si))
		loop_stop(eg->loop);
}

/* SIGTERM and SIGINT end the loop; writing to a closed socket is an error, not a signal. */
static int watch_signals(struct egress *eg, int *fd, struct err *e)
{
	struct loop_source *source;
	sigset_t set;

	signal(SIGPIPE, SIG_IGN);
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigprocmask(SIG_BLOCK, &set, NULL);
	*fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (*fd < 0)
		return err_errno(e, errno, "signals");
	return loop_add_fd(eg->loop, *fd, EPOLLIN, on_signal, eg, &source, e);
}

static void raise_limits(void)
{
	struct rlimit core = { 0 }, files;

	setrlimit(RLIMIT_CORE, &core);
	if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
		files.rlim_cur = files.rlim_max;
		setrlimit(RLIMIT_NOFILE, &files);
	}
}

static int run(struct egress *eg, const struct options *o, struct err *e)
{
	_cleanup_close_ int signals = -1;
	struct control *control = NULL;
	int r;

	if ((r = egress_open(eg, o, e)) < 0 || (r = watch_signals(eg, &signals, e)) < 0 ||
	    (r = fd_set_nonblock(EGRESS_LISTEN_FD, true)) < 0 ||
	    (r = control_new(eg, EGRESS_LISTEN_FD, &control, e)) < 0 || (r = confine(e)) < 0) {
		control_free(control);
		return r;
	}
	log_info("ready");
	r = loop_run(eg->loop, e);
	control_free(control);
	return r;
}

int main(int argc, char **argv)
{
	struct options o = { .connections = 2048, .connection_rate = 500, .lookup_rate = 1000 };
	struct egress eg = { 0 };
	struct err e = { 0 };
	int r;

	log_init("cloche-egress", LOG_INFO);
	r = parse_options(argc, argv, &o, &e);
	if (r < 0) {
		fprintf(stderr, "cloche-egress: %s\n", e.msg);
		return 2;
	}
	/* Not readable by ptrace or a core file, whoever's uid it shares. */
	prctl(PR_SET_DUMPABLE, 0);
	raise_limits();
	/* Before anything is opened: a missing socket would make the next descriptor pass for it.
	 */
	r = fcntl(EGRESS_LISTEN_FD, F_GETFD) < 0
		    ? err_errno(&e, errno, "the control socket (descriptor 3)")
		    : run(&eg, &o, &e);
	if (r < 0)
		log_err(LOG_ERROR, &e, "cloche-egress ends");
	egress_close(&eg);
	return r < 0;
}
