/* Reads a VMM's CPU time and appends the difference to the store; see usage.h. */
#include <errno.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "sandbox/manager.h"
#include "sandbox/state.h"
#include "sandbox/vmm_ctl.h"

#define STATS_MS 2000

/* Sum over the vCPU threads; -1 when the VMM does not say. */
static int64_t read_cpu_ns(struct sandbox_manager *m, const char *id)
{
	_cleanup_json_ json_t *reply = NULL;
	const json_t *list, *item;
	int64_t sum = 0;
	size_t i;

	if (vmm_ctl_call(m->config.run_dir, id, json_pack("{s:s}", "verb", "stats"), NULL, 0,
			 &reply, STATS_MS, NULL) < 0)
		return -1;
	list = json_object_get(reply, "cpuNs");
	json_array_foreach ((json_t *)(uintptr_t)list, i, item)
		sum += json_integer_value(item);
	return sum;
}

static struct store_usage total_now(struct sandbox_manager *m, const struct sandbox *s)
{
	int64_t cpu = s->live ? read_cpu_ns(m, s->row.id) : -1;
	int64_t ms = clock_wall_ms() - s->meter.started_ms;

	/* A VMM that ended took its last figures along: what was recorded stands. */
	if (cpu < s->meter.recorded.cpu_ns)
		cpu = s->meter.recorded.cpu_ns;
	return usage_total(&usage_default_prices, cpu, ms, s->row.memory_mib);
}

void meter_begin(struct sandbox *s)
{
	s->meter = (struct meter){ .started_ms = clock_wall_ms() };
}

void meter_adopt(struct sandbox_manager *m, struct sandbox *s)
{
	struct err e;

	s->meter = (struct meter){ .started_ms = s->row.started_ms };
	if (store_usage_sum(m->config.store, s->row.id, s->row.started_ms, &s->meter.recorded, &e) <
	    0)
		log_err(LOG_WARN, &e, "usage of an adopted sandbox");
}

void meter_tick(struct sandbox_manager *m, struct sandbox *s)
{
	struct store_usage total, due;
	struct err e;

	if (!s->meter.started_ms)
		return;
	total = total_now(m, s);
	due = usage_since(&total, &s->meter.recorded);
	/* On failure the next tick has it: recorded stays. */
	if (store_usage_add(m->config.store, s->row.id, clock_wall_ms(), &due, &e) < 0)
		log_err(LOG_WARN, &e, "record usage");
	else
		s->meter.recorded = total;
	if (!state_has_guest(s->row.state))
		s->meter.started_ms = 0;
}

int sandbox_usage(struct sandbox_manager *m, const char *id, int64_t from_ms,
		  struct store_usage *out, struct err *e)
{
	struct sandbox *s = manager_get(m, id, e);
	struct store_usage due = { 0 };
	int r;

	if (!s)
		return -ENOENT;
	/* While an operation runs the last tick has to do. */
	if (pthread_mutex_trylock(&s->op) == 0) {
		if (s->meter.started_ms) {
			struct store_usage total = total_now(m, s);

			due = usage_since(&total, &s->meter.recorded);
		}
		pthread_mutex_unlock(&s->op);
	}
	r = store_usage_sum(m->config.store, id, from_ms, out, e);
	if (r < 0) {
		manager_put(m, s);
		return r;
	}
	out->cpu_ns += due.cpu_ns;
	out->memory_mib_ms += due.memory_mib_ms;
	out->cost_micros += due.cost_micros;
	manager_put(m, s);
	return r;
}
