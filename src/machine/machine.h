/*
 * Machine mode: one QEMU virtual machine that runs cloched, for hosts without a usable /dev/kvm or
 * without root. All state lies in one folder; everything is found again from there, so each call
 * may come from another process.
 */
#ifndef CLOCHE_MACHINE_MACHINE_H
#define CLOCHE_MACHINE_MACHINE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/json.h"

struct err;

#define MACHINE_API_PORT 7070
#define MACHINE_MEMORY_MIB 4096 /* default, but at most half of the host's */
#define MACHINE_DISK_GIB 64
#define MACHINE_VCPUS 2

struct machine_spec {
	const char *state_dir;
	const char *images_dir; /* shared read-only with the machine */
	unsigned memory_mib;	/* 0: the default */
	unsigned vcpus;		/* 0: the default */
	unsigned disk_gib;	/* 0: the default; an existing disk only grows */
	uint16_t api_port;	/* 0: the default */
	bool software;		/* never use the host's KVM */
	const char *recipes_dir, *mirror, *security_mirror; /* NULL: as sysimage.h says */
	void (*on_step)(void *ctx, const char *text);
	void *ctx;
};

struct machine_status {
	bool running;
	pid_t pid;
	uint64_t uptime_s;
	bool kvm; /* hardware, else software emulation */
	unsigned memory_mib, vcpus, disk_gib;
	uint16_t api_port;
	bool api_reachable;
	bool outdated; /* our programs were built anew since it started */
	char qemu_version[16], started_at[32];
};

/*
 * Starts it and returns when its API answers; at once if it already runs ("machine_running" when it
 * runs but does not answer). When it does not come up it is ended, and the message holds the last
 * lines of its console.
 */
int machine_start(const struct machine_spec *s, struct err *e);

/*
 * Asks the machine to power off, waits, and if it does not, ends it with SIGTERM, then SIGKILL. Its
 * data disk survives either way. Returns 1 when it stopped by itself, 0 when it had to be ended or
 * did not run.
 */
int machine_stop(const char *state_dir, unsigned timeout_s, struct err *e);

int machine_status(const char *state_dir, struct machine_status *st, struct err *e);
json_t *machine_status_json(const struct machine_status *st);

/* The daemon's first API key, into a buffer of n bytes. */
int machine_key(const char *state_dir, char *key, size_t n, struct err *e);

/*
 * A root shell on the caller's terminal until Ctrl-]. "no_terminal" when stdin is none,
 * "machine_stopped" when nothing runs.
 */
int machine_shell(const char *state_dir, struct err *e);

/* The default memory for a host of that size: never more than half, never below 1 GiB. */
unsigned machine_default_memory_mib(uint64_t host_mib);

#endif
