/*
 * The response's reader runs on the connection's thread and may block: it waits for the agent, the
 * client and the daemon's end at once, and fills silence with pings so that proxies and clients
 * see that the stream lives (known fault 11: no fixed total time).
 *
 * A command whose client is gone is killed, but not one whose daemon is: after a restart it can be
 * attached to.
 */
#include "api/command.h"

#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"

#define PING_MS 10000
#define CANCEL_MS 3000

struct command {
	struct client client;
	struct agent_conn *agent;
	struct ndjson lines;
	bool owner;
	bool ended; /* the last line was made */
	char request_id[ID_LEN];
};

enum command_end command_next(struct agent_conn *c, const struct client *client,
			      struct agent_event *ev, int quiet_ms, struct err *e)
{
	for (;;) {
		int n = agent_next(c, ev, 0, e);

		if (n != 0)
			return n < 0 ? COMMAND_FAILED : COMMAND_EVENT;
		switch (client_wait(client, agent_fd(c), agent_poll_events(c), quiet_ms)) {
		case WAIT_READY:
			break;
		case WAIT_TIMEOUT:
			return COMMAND_QUIET;
		case WAIT_GONE:
			return COMMAND_GONE;
		case WAIT_STOPPING:
			return COMMAND_STOPPING;
		}
	}
}

void command_cancel(struct agent_conn *c)
{
	uint64_t deadline = clock_mono_ns() + CANCEL_MS * NSEC_PER_MSEC;
	struct agent_event ev;
	struct err e = { 0 };
	int n = agent_cancel(c, &e);

	/* Output is read on, or the agent, which waits for us to, would not see the cancel. */
	while (n >= 0 && clock_mono_ns() < deadline) {
		n = agent_next(c, &ev, CANCEL_MS, &e);
		if (n == 1 && ev.type == AGENT_EXIT)
			return;
	}
	log_err(LOG_WARN, &e, "cancel a command whose client is gone");
}

static int take_event(struct command *c, const struct agent_event *ev)
{
	switch (ev->type) {
	case AGENT_STDOUT:
	case AGENT_STDERR:
		return ndjson_output(&c->lines, ev->is_stderr, ev->offset, ev->data, ev->len);
	case AGENT_DROPPED:
		return ndjson_dropped(&c->lines, ev->is_stderr, ev->offset, ev->dropped);
	case AGENT_STDIN:
		return 0;
	case AGENT_EXIT:
		c->ended = true;
		return ndjson_exit(&c->lines, &ev->exit);
	case AGENT_END:
		c->ended = true;
		return ndjson_end(&c->lines);
	}
	return 0;
}

static ssize_t command_read(void *ctx, char *p, size_t max)
{
	struct command *c = ctx;
	struct agent_event ev;
	struct err e = { 0 };

	for (;;) {
		size_t n = ndjson_take(&c->lines, p, max);
		int r = 0;

		if (n)
			return (ssize_t)n;
		if (c->ended)
			return 0;
		switch (command_next(c->agent, &c->client, &ev, PING_MS, &e)) {
		case COMMAND_EVENT:
			r = take_event(c, &ev);
			break;
		case COMMAND_QUIET:
			r = ndjson_ping(&c->lines);
			break;
		case COMMAND_FAILED:
			c->ended = true;
			c->owner = false; /* the stream is broken; there is nothing to cancel on */
			r = ndjson_error(&c->lines, &e, c->request_id);
			break;
		case COMMAND_GONE:
		case COMMAND_STOPPING:
			return -1;
		}
		if (r < 0)
			return -1;
	}
}

static void command_free(void *ctx)
{
	struct command *c = ctx;

	if (c->owner && !c->ended && !atomic_load(&c->client.api->stopping))
		command_cancel(c->agent);
	agent_free(c->agent);
	ndjson_free(&c->lines);
	free(c);
}

static const struct stream_ops command_ops = { command_read, command_free };

int command_stream(struct request *r, struct agent_conn *agent, struct ndjson *lines, bool owner,
		   struct err *e)
{
	struct command *c = calloc(1, sizeof(*c));

	if (!c) {
		agent_free(agent);
		return err_errno(e, ENOMEM, "make a stream");
	}
	*c = (struct command){
		.client = r->client, .agent = agent, .lines = *lines, .owner = owner
	};
	*lines = (struct ndjson){ 0 };
	memcpy(c->request_id, r->id, sizeof(c->request_id));
	return request_stream(r, 200, "application/x-ndjson", MHD_SIZE_UNKNOWN, &command_ops, c, e);
}
