/*
 * A daemon without HTTP, for tests of the sandbox life cycle: a broker process, and a manager in
 * the test itself or in a process that can be killed. Guests are tests/tools/process_vmm.
 */
#ifndef CLOCHE_TESTS_NATIVE_FIXTURE_H
#define CLOCHE_TESTS_NATIVE_FIXTURE_H

#include <stdbool.h>
#include <sys/types.h>

#include "broker/client.h"
#include "sandbox/sandbox.h"

struct fixture {
	char dir[64]; /* a fresh folder below /tmp: state/ run/ import/ libexec/ */
	char state[96], run[96], import[96], libexec[96];
	char vmm[128]; /* our copy of process_vmm */
	const char *imports[1];
	char cgroup[32];
	pid_t broker; /* 0: not running */
	struct broker_client *client;
	struct store *store;
	struct sandbox_manager *m;
};

/* NULL with a reason when this machine cannot run it (no root). */
const char *fixture_unavailable(void);

void fixture_new(struct fixture *f);
void fixture_free(struct fixture *f); /* asserts that nothing is left */

/* Broker, store and manager up and down; guests go on. */
void fixture_up(struct fixture *f);
void fixture_down(struct fixture *f);

/* Only the broker, for a test that runs the manager in a process of its own. */
int fixture_broker_up(struct fixture *f); /* the client's end of its socket */
void fixture_broker_kill(struct fixture *f);

/*
 * Puts an image into the import folder; cmdline as in the manifest. A wrong digest when damaged.
 */
void fixture_image(const struct fixture *f, const char *name, const char *cmdline, bool damaged);

/* What a sandbox could leak, counted. */
struct counts {
	int fds, vmm_processes, cgroups, sockets, disks;
};

struct counts fixture_count(const struct fixture *f);

/* A row to create: the smallest there is. */
struct store_sandbox fixture_row(const char *image);

/* Runs shell text in a sandbox as root and gives its exit code; -1 when that could not be told. */
int fixture_exec(struct fixture *f, const char *id, const char *command);

#endif
