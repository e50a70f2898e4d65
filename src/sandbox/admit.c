/*
 * Whether the host can carry one more. Memory that running guests have touched is gone from
 * MemAvailable already; what was promised to guests that are just being started is not, so it is
 * counted here until they run.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/fd.h"
#include "sandbox/disk.h"
#include "sandbox/manager.h"

#define MEMINFO_MAX 65536
#define DISK_SLACK (64ULL << 20) /* what a fresh guest writes before anybody notices */

static int memory_available(uint64_t *mib, struct err *e)
{
	_cleanup_buf_ struct buf b = { 0 };
	unsigned long long kib;
	const char *p;
	int r = fd_read_file("/proc/meminfo", &b, MEMINFO_MAX, e);

	if (r < 0)
		return r;
	p = b.len ? strstr(b.data, "MemAvailable:") : NULL;
	if (!p || sscanf(p + strlen("MemAvailable:"), "%llu", &kib) != 1)
		return err_set(e, "system", EPROTO, "/proc/meminfo has no MemAvailable");
	*mib = kib >> 10;
	return 0;
}

static int full(struct err *e, const char *code, const char *what)
{
	int r = err_set(e, code, EAGAIN, "%s", what);

	err_fix(e, "Stop or delete a sandbox, or try again later.");
	return r;
}

int admit_begin(struct sandbox_manager *m, const struct store_sandbox *row, struct err *e)
{
	uint64_t need = (uint64_t)row->memory_mib, have;
	char text[160];
	int r = memory_available(&have, e);

	if (r < 0)
		return r;
	if (manager_live(m) > m->config.sandboxes_max)
		return full(e, "capacity_sandboxes", "this host has all the sandboxes it may have");
	pthread_mutex_lock(&m->lock);
	if (m->booting_mib + need + m->config.memory_reserve_mib > have) {
		snprintf(text, sizeof(text),
			 "needs %llu MiB of memory; the host has %llu MiB free and keeps %u for "
			 "itself",
			 (unsigned long long)need, (unsigned long long)have,
			 m->config.memory_reserve_mib);
		r = full(e, "capacity_memory", text);
	} else {
		m->booting_mib += need;
	}
	pthread_mutex_unlock(&m->lock);
	return r;
}

void admit_done(struct sandbox_manager *m, const struct store_sandbox *row)
{
	pthread_mutex_lock(&m->lock);
	m->booting_mib -= (uint64_t)row->memory_mib;
	pthread_mutex_unlock(&m->lock);
}

int admit_disk(struct sandbox_manager *m, uint64_t bytes, struct err *e)
{
	uint64_t need = bytes + DISK_SLACK + ((uint64_t)m->config.disk_reserve_mib << 20), have;
	char text[160];
	int r = disk_free_bytes(m->config.state_dir, &have, e);

	if (r < 0 || need <= have)
		return r;
	snprintf(text, sizeof(text), "needs %llu MiB of disk, reserve included; %llu MiB are free",
		 (unsigned long long)(need >> 20), (unsigned long long)(have >> 20));
	return full(e, "capacity_disk", text);
}
