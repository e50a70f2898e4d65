/*
 * A sandbox manager for tests of the API: rows in the store, and for each "running" sandbox a
 * process of the real agent behind a unix socket. No machine, no jail. Knobs make it fail.
 */
#ifndef CLOCHE_TESTS_FAKE_SANDBOXES_H
#define CLOCHE_TESTS_FAKE_SANDBOXES_H

struct sandbox_manager;
struct store;

/* agent: path of cloche-agent, or NULL when nothing connects; dir: for its sockets. */
struct sandbox_manager *fake_sandboxes_new(struct store *s, const char *agent, const char *dir);
void fake_sandboxes_free(struct sandbox_manager *m); /* the agents go on, as guests do */

#endif
