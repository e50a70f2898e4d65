/* What an agent in a hostile guest may say to the host's client. */
#include <stdint.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/err.h"
#include "sandbox/agent_conn.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void follow_events(struct agent_conn *c)
{
	struct agent_event ev;
	struct err e = { 0 };

	if (agent_stdin(c, "input", 5, &e) < 0)
		return;
	while (agent_next(c, &ev, 0, &e) == 1) {
		if (ev.type == AGENT_EXIT && (ev.exit.code < 0) == (ev.exit.signal == 0))
			abort();
		if (ev.type == AGENT_EXIT || ev.type == AGENT_END)
			return;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct agent_conn *c = NULL;
	struct err e = { 0 };
	const void *p;
	json_t *part = NULL;
	bool truncated;
	size_t len;
	int sv[2];

	if (n < 1 || n > 32768 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv) < 0)
		return 0;
	if (write(sv[1], data + 1, n - 1) != (ssize_t)n - 1 || shutdown(sv[1], SHUT_WR) < 0)
		abort();
	if (agent_open(sv[0], "op", NULL, &c, &e) < 0)
		abort();
	if (data[0] % 3 == 0)
		follow_events(c);
	else if (data[0] % 3 == 1)
		while (agent_read(c, &p, &len, 0, &e) == 0 && len)
			;
	else
		while (agent_entries(c, &part, &truncated, 0, &e) == 0 && part)
			json_decref(part);
	agent_free(c);
	close(sv[1]);
	return 0;
}
