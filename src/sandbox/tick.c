/* The regular round over all sandboxes. One that an operation holds is left to the next round. */
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "sandbox/manager.h"

static void write_again(struct sandbox_manager *m, struct sandbox *s)
{
	struct err e;

	if (store_sandbox_update(m->config.store, &s->row, NULL, &e) < 0) {
		log_err(LOG_ERROR, &e, "write a sandbox's row; will try again");
		return;
	}
	pthread_mutex_lock(&m->lock);
	s->unsaved = false;
	pthread_mutex_unlock(&m->lock);
}

void tick(struct sandbox_manager *m, struct sandbox *unused, void *arg)
{
	_cleanup_free_ struct sandbox **all = NULL;
	size_t n;

	(void)unused;
	(void)arg;
	all = manager_all(m, &n);
	for (size_t i = 0; i < n; i++) {
		if (pthread_mutex_trylock(&all[i]->op) == 0) {
			meter_tick(m, all[i]);
			if (all[i]->unsaved)
				write_again(m, all[i]);
			pthread_mutex_unlock(&all[i]->op);
		}
		manager_put(m, all[i]);
	}
	pthread_mutex_lock(&m->lock);
	m->ticking = false;
	pthread_mutex_unlock(&m->lock);
}
