/*
 * The owner sets a wish for the whole set (run, park, quit) under the lock; each thread compares it
 * with what it does. To pull a thread out of KVM_RUN the owner first sets immediate_exit in the
 * shared page, then signals: KVM looks at the byte on entry, so the signal is never lost between
 * the check and the entry. KVM_RUN completes the device access of the last exit before it looks,
 * so when it returns EINTR the vCPU is at an instruction boundary; that is the only place where
 * a thread looks at the wish.
 *
 * A thread that has an event to report (a triple fault, say) reports it and then waits for the
 * wish to change from run.
 *
 * Threads: counters are written by their own thread only and read by any.
 */
#include "vmm/vcpu.h"

#include <errno.h>
#include <linux/kvm.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "vmm/kvm.h"
#include "vmm/vcpu_internal.h"

#define STACK_BYTES (256u << 10)
#define KICK_SIGNAL SIGUSR1

/* Runs guest code until it is interrupted or has reported an event. */
static void run_guest(struct vcpu *v)
{
	while (!v->halted) {
		if (ioctl(v->fd, KVM_RUN, 0) == 0) {
			vcpu_dispatch_exit(v);
		} else if (errno == EINTR) {
			vcpu_count(&v->exits[VCPU_EXIT_INTERRUPTED]);
			return;
		} else if (errno != EAGAIN) { /* EAGAIN: woken from waiting for INIT */
			vcpu_log_failure(v, "KVM_RUN failed", (uint64_t)errno);
			vcpu_report(v, VCPU_FAILED);
		}
	}
}

static void set_state(struct vcpu *v, enum thread_state state)
{
	v->state = state;
	pthread_cond_broadcast(&v->set->changed);
}

static uint64_t timespec_ns(const struct timespec *t)
{
	return (uint64_t)t->tv_sec * NSEC_PER_SEC + (uint64_t)t->tv_nsec;
}

/* Waits while parked; false when the thread shall end. The lock is held. */
static bool obey(struct vcpu *v)
{
	struct vcpu_set *s = v->set;

	while (s->wish == WISH_PARK || (s->wish == WISH_RUN && v->halted)) {
		if (v->state != THREAD_PARKED)
			set_state(v, THREAD_PARKED);
		pthread_cond_wait(&s->changed, &s->lock);
	}
	if (s->wish == WISH_QUIT)
		return false;
	v->run->immediate_exit = 0;
	if (v->state != THREAD_RUNNING)
		set_state(v, THREAD_RUNNING);
	return true;
}

/* The sandbox goes on when the thread is first let go, not before: the process is sealed then. */
static void first_run(struct vcpu *v)
{
	v->started = true;
	if (v->set->hooks.thread_start(v->set->hooks.ctx) < 0)
		vcpu_report(v, VCPU_FAILED);
}

static void *vcpu_main(void *arg)
{
	struct vcpu *v = arg;
	struct vcpu_set *s = v->set;
	struct timespec t;

	pthread_mutex_lock(&s->lock);
	while (obey(v)) {
		pthread_mutex_unlock(&s->lock);
		if (!v->started)
			first_run(v);
		run_guest(v);
		pthread_mutex_lock(&s->lock);
	}
	if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) == 0)
		v->final_cpu_ns = timespec_ns(&t);
	set_state(v, THREAD_ENDED);
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

/* Tells every thread the wish and pulls those that run guest code out of it. */
static void set_wish(struct vcpu_set *s, enum wish wish)
{
	s->wish = wish;
	pthread_cond_broadcast(&s->changed);
	for (unsigned i = 0; wish != WISH_RUN && i < s->n; i++) {
		struct vcpu *v = &s->vcpus[i];

		if (v->state == THREAD_RUNNING) {
			v->run->immediate_exit = 1;
			pthread_kill(v->thread, KICK_SIGNAL);
		}
	}
}

static void wait_none_runs(struct vcpu_set *s)
{
	for (unsigned i = 0; i < s->n; i++)
		while (s->vcpus[i].state == THREAD_RUNNING)
			pthread_cond_wait(&s->changed, &s->lock);
}

void vcpu_set_run(struct vcpu_set *s)
{
	pthread_mutex_lock(&s->lock);
	set_wish(s, WISH_RUN);
	pthread_mutex_unlock(&s->lock);
}

void vcpu_set_park(struct vcpu_set *s)
{
	pthread_mutex_lock(&s->lock);
	set_wish(s, WISH_PARK);
	wait_none_runs(s);
	pthread_mutex_unlock(&s->lock);
}

void vcpu_set_stats(struct vcpu_set *s, unsigned i, struct vcpu_stats *out)
{
	struct vcpu *v = &s->vcpus[i];
	struct timespec t;
	clockid_t clock;

	memset(out, 0, sizeof(*out));
	pthread_mutex_lock(&s->lock); /* the thread cannot end meanwhile */
	if (v->state == THREAD_ENDED)
		out->cpu_ns = v->final_cpu_ns;
	else if (pthread_getcpuclockid(v->thread, &clock) == 0 && clock_gettime(clock, &t) == 0)
		out->cpu_ns = timespec_ns(&t);
	pthread_mutex_unlock(&s->lock);
	for (unsigned c = 0; c < VCPU_EXIT_CLASSES; c++)
		out->exits[c] = atomic_load_explicit(&v->exits[c], memory_order_relaxed);
	out->unclaimed = atomic_load_explicit(&v->unclaimed, memory_order_relaxed);
}

void vcpu_set_note_pause(struct vcpu_set *s)
{
	/* Refused for a guest that has not set up the clock: it has no watchdog on it either. */
	for (unsigned i = 0; i < s->n; i++)
		kvm_ioctl(s->vcpus[i].fd, KVM_KVMCLOCK_CTRL, NULL);
}

int vcpu_set_fd(const struct vcpu_set *s, unsigned i)
{
	return s->vcpus[i].fd;
}

static void on_kick(int sig)
{
	(void)sig; /* its arrival is all: it interrupts KVM_RUN */
}

static int start_thread(struct vcpu *v, struct err *e)
{
	pthread_attr_t attr;
	int r = pthread_attr_init(&attr);

	if (r == 0) {
		pthread_attr_setstacksize(&attr, STACK_BYTES);
		r = pthread_create(&v->thread, &attr, vcpu_main, v);
		pthread_attr_destroy(&attr);
	}
	if (r)
		return err_errno(e, r, "thread of vCPU %u", v->id);
	v->has_thread = true;
	return 0;
}

int vcpu_set_new(const struct kvm *k, const struct cpuid *baseline, unsigned n,
		 const struct vcpu_hooks *hooks, struct vcpu_set **out, struct err *e)
{
	struct sigaction sa = { .sa_handler = on_kick };
	struct vcpu_set *s;
	int r = 0;

	if (n == 0 || n > VMM_VCPUS_MAX)
		return err_set(e, "bad_request", EINVAL, "%u vCPUs", n);
	s = calloc(1, sizeof(*s));
	if (!s)
		return err_errno(e, ENOMEM, "vCPUs");
	s->hooks = *hooks;
	s->run_size = k->run_size;
	s->n = n;
	pthread_mutex_init(&s->lock, NULL);
	pthread_cond_init(&s->changed, NULL);
	for (unsigned i = 0; i < n; i++)
		s->vcpus[i] = (struct vcpu){ .set = s, .id = i, .fd = -1 };
	if (sigaction(KICK_SIGNAL, &sa, NULL) < 0)
		r = err_errno(e, errno, "signal handler");
	for (unsigned i = 0; r == 0 && i < n; i++)
		r = vcpu_setup(&s->vcpus[i], k, baseline, e);
	if (r == 0)
		r = vcpu_publish_apics(s, e);
	for (unsigned i = 0; r == 0 && i < n; i++)
		r = start_thread(&s->vcpus[i], e);
	if (r < 0) {
		vcpu_set_free(s);
		return r;
	}
	*out = s;
	return 0;
}

void vcpu_set_free(struct vcpu_set *s)
{
	if (!s)
		return;
	pthread_mutex_lock(&s->lock);
	set_wish(s, WISH_QUIT);
	pthread_mutex_unlock(&s->lock);
	for (unsigned i = 0; i < s->n; i++) {
		if (s->vcpus[i].has_thread)
			pthread_join(s->vcpus[i].thread, NULL);
		vcpu_teardown(&s->vcpus[i], s->run_size);
	}
	pthread_cond_destroy(&s->changed);
	pthread_mutex_destroy(&s->lock);
	free(s);
}
