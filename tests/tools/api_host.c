/*
 * The API on a real port with a real store and fake sandboxes, for tests:
 *
 *	api_host STATE-DIR [AGENT]
 *
 * Prints {"port":N} and serves until SIGTERM. API_HOST_IDLE_S sets api_config's idle_s. The admin
 *key is in STATE-DIR/admin.key.
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "api/api.h"
#include "base/err.h"
#include "base/log.h"
#include "base/str.h"
#include "fake_sandboxes.h"
#include "store/store.h"

int main(int argc, char **argv)
{
	struct sandbox_manager *sandboxes;
	const char *idle = getenv("API_HOST_IDLE_S");
	struct api_config c = { .version = "test" };
	int64_t idle_s = 0;
	struct store *store;
	struct api *api;
	struct err e = { 0 };
	char path[512];
	sigset_t set;
	bool made;
	int got;

	if (argc < 2 || (idle && str_to_int(idle, 1, 3600, &idle_s)))
		return 2;
	c.idle_s = (unsigned)idle_s;
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
