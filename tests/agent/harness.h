/*
 * A real agent in namespaces of its own (pid, mount, uts), reached over a unix socket. It sees
 * tests' users in /etc/passwd (root, agent 1000, other 1001) and an empty tmpfs of 64 MiB at /mnt;
 * nothing it does reaches this machine's files. Needs root.
 */
#ifndef CLOCHE_TESTS_AGENT_HARNESS_H
#define CLOCHE_TESTS_AGENT_HARNESS_H

#include <jansson.h>
#include <stdbool.h>
#include <sys/types.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "sandbox/agent_conn.h"

#define WAIT_MS 120000 /* no test waits this long unless something is wrong */

struct harness {
	char dir[32];
	char sock[64];
	char cgroup[128]; /* "" when there is no cgroup2 */
	pid_t pid;	  /* 0 once it was waited for */
	bool plain;
	int (*dialer)(void *ctx); /* another way to the agent than sock: a descriptor, or aborts */
	void *ctx;
};

/* Starts it and, unless raw, adopts it with env {"ACCOUNT": "yes"}. False when this machine cannot
 * (the reason was printed). */
bool harness_start(struct harness *h, const char *agent, bool raw);
/* An agent right on this machine, without namespaces and without cgroups: it falls back to finding
 * its commands in /proc. Adopted. */
void harness_start_plain(struct harness *h, const char *agent);
void harness_stop(struct harness *h);

int harness_dial(const struct harness *h);

/* agent_call() over a fresh stream; aborts the test with the error's words when it fails. request
 * is released. */
json_t *harness_call(const struct harness *h, const char *op, json_t *request);
/* The code of the error that the call must end with. */
const char *harness_error(const struct harness *h, const char *op, json_t *request, struct err *e);

struct run {
	struct buf out, err;
	struct agent_exit exit;
	char id[64];
	uint64_t dropped;
	uint64_t next[2]; /* offset after the last piece of stdout, stderr */
};

/* Follows a stream to its EXIT; input is given when not NULL. */
int run_follow(struct agent_conn *c, struct run *r, struct err *e);
/* exec to its end. request is released. 0, or negative with e. */
int harness_exec(const struct harness *h, json_t *request, const void *input, size_t n,
		 struct run *r, struct err *e);
/* The same for shell text that must start; returns its exit code (or minus its signal). */
int harness_sh(const struct harness *h, struct run *r, const char *text);
void run_free(struct run *r);
#define _cleanup_run_ _cleanup_(run_free)

/* Opens an exec stream and takes its REPLY; the id goes to id[64]. */
struct agent_conn *harness_open(const struct harness *h, json_t *request, char *id);
/* Reads events until the text has come on stdout. */
void wait_output(struct agent_conn *c, const char *text);

/* Live processes of the agent's namespace whose command line contains text. */
int harness_count(const struct harness *h, const char *text);
/* Zombies among all of the agent's namespace. */
int harness_zombies(const struct harness *h);

#endif
