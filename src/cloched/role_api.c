/*
 * Store, sandbox manager and API, in that order up and in the other down. SIGTERM ends it and the
 * guests go on; SIGQUIT stops them first. A failure that a restart cannot heal ends with
 * SUPERVISE_EXIT_FATAL, so that the broker says so and ends too instead of trying for ever.
 */
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>

#include "api/api.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/log.h"
#include "broker/client.h"
#include "broker/supervise.h"
#include "cloched/confine.h"
#include "cloched/options.h"
#include "cloched/roles.h"
#include "sandbox/sandbox.h"

struct daemon {
	const struct options *o;
	struct broker_client *broker;
	struct store *store;
	struct sandbox_manager *sandboxes;
	struct api *api;
};

static void daemon_stop(struct daemon *d)
{
	api_stop(d->api);
	sandbox_manager_free(d->sandboxes);
	store_close(d->store);
	broker_client_free(d->broker);
}

static int open_store(struct daemon *d, struct err *e)
{
	char path[PATH_MAX];
	bool made;
	int r;

	if (snprintf(path, sizeof(path), "%s/store.db", d->o->state_dir) >= (int)sizeof(path))
		return err_errno(e, ENAMETOOLONG, "state folder");
	r = store_open(path, &d->store, e);
	if (r < 0)
		return r;
	snprintf(path, sizeof(path), "%s/admin.key", d->o->state_dir);
	r = api_first_key(d->store, path, &made, e);
	if (r == 0 && made)
		log_info("made the first API key: %s", path);
	return r;
}

static int start_sandboxes(struct daemon *d, struct err *e)
{
	const struct options *o = d->o;
	const struct sandbox_config c = {
		.state_dir = o->state_dir,
		.run_dir = o->run_dir,
		.libexec_dir = o->libexec_dir,
		.import_dirs = (const char *const *)o->import_dirs,
		.import_dirs_n = o->import_dirs_n,
		.broker = d->broker,
		.store = d->store,
		.host = o->host,
		.default_vcpus = (unsigned)o->vcpus,
		.default_memory_mib = (unsigned)o->memory_mib,
		.default_disk_mib = (unsigned)o->disk_mib,
		.memory_reserve_mib = (unsigned)o->memory_reserve_mib,
		.disk_reserve_mib = (unsigned)o->disk_reserve_mib,
		.boot_timeout_ms = (unsigned)o->boot_timeout_s * 1000,
		.sandboxes_max = (unsigned)o->sandboxes_max,
	};

	return sandbox_manager_new(&c, &d->sandboxes, e);
}

static int start_api(struct daemon *d, struct err *e)
{
	const struct api_config c = {
		.store = d->store,
		.sandboxes = d->sandboxes,
		.address = d->o->address,
		.port = (uint16_t)d->o->port,
		.hosts = (const char *const *)d->o->hosts,
		.hosts_n = d->o->hosts_n,
		.version = CLOCHED_VERSION,
	};
	int r = api_start(&c, &d->api, e);

	if (r == 0)
		log_info("the API listens at %s port %u", d->o->address, api_port(d->api));
	return r;
}

static int start(struct daemon *d, struct err *e)
{
	int r = confine(e);

	if (r == 0)
		r = broker_client_new(SUPERVISE_BROKER_FD, &d->broker, e);
	if (r == 0)
		r = open_store(d, e);
	if (r == 0)
		r = start_sandboxes(d, e);
	return r < 0 ? r : start_api(d, e);
}

/* Errors that come back however often one tries. */
static bool is_fatal(const struct err *e)
{
	static const char *const codes[] = { "store_newer", "store_damaged", "address_invalid" };

	for (size_t i = 0; i < ARRAY_SIZE(codes); i++)
		if (e->code && strcmp(e->code, codes[i]) == 0)
			return true;
	return false;
}

int role_api(const struct options *o)
{
	struct daemon d = { .o = o };
	struct err e = { 0 };
	sigset_t set;
	int sig, r;

	log_init("cloched-api", o->debug ? LOG_DEBUG : LOG_INFO);
	/* It holds API keys' hashes and, while they pass, environments: no core, no ptrace. */
	prctl(PR_SET_DUMPABLE, 0);
	signal(SIGPIPE, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGQUIT);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	r = start(&d, &e);
	if (r < 0) {
		log_err(LOG_ERROR, &e, "start");
		daemon_stop(&d);
		return is_fatal(&e) ? SUPERVISE_EXIT_FATAL : 1;
	}
	while (sigwait(&set, &sig) != 0)
		;
	log_info(sig == SIGQUIT ? "stopping, sandboxes first" : "stopping; sandboxes go on");
	if (sig == SIGQUIT) {
		api_stop(steal_ptr(d.api)); /* no new ones meanwhile */
		sandbox_stop_all(d.sandboxes, "host_stopped");
	}
	daemon_stop(&d);
	return 0;
}
