/*
 * Stopping: every command gets SIGTERM, and SIGKILL once the time has passed. When all are gone,
 * their last output and EXIT go out to those who watch; then the disk is brought to rest and the
 * machine turned off. A step is taken when a child ends, when a watcher leaves, and by one timer
 * that bounds each phase, so the agent answers meanwhile.
 */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <unistd.h>

#include "agent/agent.h"
#include "agent/process.h"
#include "base/clock.h"
#include "base/log.h"

#define KILL_WAIT_MS 2000 /* for killed processes to disappear */
#define DRAIN_MS 1000	  /* for the last output to be taken */

static void arm(struct agent *a, int64_t ms)
{
	int r = loop_set_timer(a->stop_timer, clock_mono_ns() + (uint64_t)ms * NSEC_PER_MSEC + 1);

	if (r < 0)
		log_error("arm a timer: %s", strerror(-r));
}

static void finish(struct agent *a)
{
	loop_set_timer(a->stop_timer, 0);
	loop_stop(a->loop);
	if (!a->machine)
		return;
	sync();
	/* With anything still writing this fails; the journal makes that safe, only slower. */
	if (mount(NULL, "/", NULL, MS_REMOUNT | MS_RDONLY, NULL) < 0)
		log_warn("remount / read-only: %s", strerror(errno));
	sync();
	if (reboot(RB_POWER_OFF) < 0)
		log_error("power off: %s", strerror(errno));
}

static void kill_rest(struct agent *a)
{
	a->stop_phase = STOP_KILL;
	cgroup_signal_all(&a->cgroup, SIGKILL);
	for (unsigned i = 0; i < a->n_helpers; i++)
		kill(a->helpers[i], SIGKILL);
	arm(a, KILL_WAIT_MS);
}

static void on_stop_timer(void *ctx)
{
	struct agent *a = ctx;

	if (a->stop_phase == STOP_TERM) {
		kill_rest(a);
		power_advance(a);
	} else {
		finish(a);
	}
}

static bool watched(const struct agent *a)
{
	for (const struct process *p = a->processes; p; p = p->next)
		if (p->watchers)
			return true;
	return false;
}

void power_advance(struct agent *a)
{
	if (!a->stopping || a->n_helpers || cgroup_any(&a->cgroup))
		return;
	if (!watched(a)) {
		finish(a);
	} else if (a->stop_phase != STOP_DRAIN) {
		a->stop_phase = STOP_DRAIN;
		arm(a, DRAIN_MS);
	}
}

static void on_wake(void *ctx)
{
	power_advance(ctx);
}

int power_stop(struct agent *a, int64_t timeout_ms, struct err *e)
{
	int r;

	if (a->stopping)
		return 0;
	r = loop_add_timer(a->loop, on_stop_timer, a, &a->stop_timer, e);
	if (r < 0)
		return r;
	loop_on_wake(a->loop, on_wake, a);
	a->stopping = true;
	a->stop_phase = STOP_TERM;
	cgroup_signal_all(&a->cgroup, SIGTERM);
	/* At least one turn of the loop, in which the answer goes out. */
	arm(a, timeout_ms > 0 && cgroup_any(&a->cgroup) ? timeout_ms : 0);
	return 0;
}
