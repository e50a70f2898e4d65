/*
 * The API on a real port with a real store and fake sandboxes, for tests:
 *
 *	api_host STATE-DIR [AGENT]
 *
 * Prints {"port":N} and serves until SIGTERM. The admin key is in STATE-DIR/admin.key.
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>

#include "api/api.h"
#include "base/err.h"
#include "base/log.h"
#include "fake_sandboxes.h"
#include "store/store.h"

int main(int argc, char **argv)
{
	struct sandbox_manager *sandboxes;
	struct api_config c = { .version = "test" };
	struct store *store;
	struct api *api;
	struct err e = { 0 };
	char path[512];
	sigset_t set;
	bool made;
	int got;

	if (argc < 2)
		return 2;
	log_init("api_host", LOG_INFO);
	signal(SIGPIPE, SIG_IGN);
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	snprintf(path, sizeof(path), "%s/cloche.db", argv[1]);
	if (store_open(path, &store, &e)) {
		log_err(LOG_ERROR, &e, "open the store");
		return 1;
	}
	snprintf(path, sizeof(path), "%s/admin.key", argv[1]);
	sandboxes = fake_sandboxes_new(store, argc > 2 ? argv[2] : NULL, argv[1]);
	c.store = store;
	c.sandboxes = sandboxes;
	if (api_first_key(store, path, &made, &e) || api_start(&c, &api, &e)) {
		log_err(LOG_ERROR, &e, "start");
		return 1;
	}
	printf("{\"port\":%u}\n", api_port(api));
	fflush(stdout);
	sigwait(&set, &got);
	api_stop(api);
	fake_sandboxes_free(sandboxes);
	store_close(store);
	return 0;
}
