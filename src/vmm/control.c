/*
 * One connection is a list of answers not sent yet and the ids of its waits. While an answer
 * cannot be sent no further request of that connection is read, so a peer that does not read its
 * answers holds up itself only and what we keep for it is bounded.
 *
 * The end: when the guest has ended, every wait is answered and a timer lets late callers ask for
 * a second; after a stop the process goes as soon as everything is sent (the timer bounds that
 * too).
 */
#include "vmm/control.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/log.h"
#include "base/loop.h"
#include "vmm/control_msg.h"
#include "vmm/control_reply.h"
#include "vmm/machine.h"

#define LINGER_NS NSEC_PER_SEC
#define WAITS_MAX 64	/* unanswered waits of one connection */
#define CONNECTS_MAX 64 /* unanswered connects of one connection */
#define CONNECTIONS_MAX 64

struct answer {
	struct answer *next;
	char *text;
	size_t len;
};

/* What an answer repeats of its request. */
struct request_id {
	bool given;
	int64_t id;
};

struct connection {
	struct control *control;
	struct connection *next;
	int fd;
	struct loop_source *source;
	struct answer *first, **last;
	struct request_id waits[WAITS_MAX];
	unsigned nwaits;
	unsigned connects; /* pending_connects that name it */
};

/* A connect that the guest has not answered; its connection may go before it does. */
struct pending_connect {
	struct pending_connect *next;
	struct control *control;
	struct connection *connection; /* NULL: gone */
	struct request_id id;
};

struct control {
	struct loop *loop;
	struct machine *machine;
	int listen_fd;
	struct loop_source *accepting;
	struct loop_source *linger; /* timer */
	struct connection *connections;
	unsigned nconnections;
	struct pending_connect *pending;
	char message[VMM_MSG_MAX]; /* the request being read */
	bool stopping;		   /* the stop verb was answered: exit once all is sent */
};

static void exit_when_sent(struct control *c)
{
	if (!c->stopping)
		return;
	for (struct connection *k = c->connections; k; k = k->next)
		if (k->first)
			return;
	loop_stop(c->loop);
}

static void answer_free_all(struct connection *k)
{
	while (k->first) {
		struct answer *a = k->first;

		k->first = a->next;
		free(a->text);
		free(a);
	}
	k->last = &k->first;
}

static void connection_close(struct connection *k)
{
	struct control *c = k->control;
	struct connection **p = &c->connections;

	while (*p != k)
		p = &(*p)->next;
	*p = k->next;
	c->nconnections--;
	for (struct pending_connect *q = c->pending; q; q = q->next)
		if (q->connection == k)
			q->connection = NULL;
	answer_free_all(k);
	loop_remove(k->source);
	close(k->fd);
	free(k);
	if (c->accepting)
		loop_set_events(c->accepting, EPOLLIN);
	exit_when_sent(c);
}

/* Sends what can be sent; negative when the peer is gone. */
static int flush_answers(struct connection *k)
{
	int r = 0;

	while (k->first) {
		struct answer *a = k->first;

		r = fd_send_msg(k->fd, a->text, a->len, NULL, 0);
		if (r == -EAGAIN)
			break;
		if (r < 0)
			return r;
		k->first = a->next;
		if (!k->first)
			k->last = &k->first;
		free(a->text);
		free(a);
	}
	loop_set_events(k->source, k->first ? EPOLLOUT : EPOLLIN);
	return 0;
}

/* Queues body (taken over; NULL: out of memory) as the answer to a request. */
static void answer(struct connection *k, struct request_id id, json_t *body)
{
	_cleanup_json_ json_t *owned = body;
	struct answer *a = calloc(1, sizeof(*a));

	if (a && owned && (!id.given || json_object_set_new(owned, "id", json_integer(id.id)) == 0))
		a->text = json_dumps(owned, JSON_COMPACT);
	if (!a || !a->text) {
		log_error("out of memory for an answer; closing the connection");
		free(a);
		shutdown(k->fd, SHUT_RDWR); /* the loop sees the end and closes it */
		return;
	}
	a->len = strlen(a->text);
	*k->last = a;
	k->last = &a->next;
}

static void answer_error(struct connection *k, struct request_id id, const struct err *e)
{
	answer(k, id, control_reply_error(e));
}

static void answer_waits(struct control *c)
{
	struct connection *k, *next;

	for (k = c->connections; k; k = next) {
		next = k->next;
		for (unsigned i = 0; i < k->nwaits; i++)
			answer(k, k->waits[i], control_reply_ended(c->machine));
		k->nwaits = 0;
		if (flush_answers(k) < 0)
			connection_close(k);
	}
}

static void start_linger(struct control *c)
{
	int r = loop_set_timer(c->linger, clock_mono_ns() + LINGER_NS);

	if (r < 0)
		loop_stop(c->loop);
}

static void on_machine_ended(void *ctx)
{
	struct control *c = ctx;

	answer_waits(c);
	start_linger(c);
}

static void on_linger(void *ctx)
{
	struct control *c = ctx;

	loop_stop(c->loop);
}

static void on_connected(void *ctx, int result)
{
	struct pending_connect *q = ctx, **p = &q->control->pending;
	struct connection *k = q->connection;
	struct err e = { 0 };

	while (*p != q)
		p = &(*p)->next;
	*p = q->next;
	if (k) {
		k->connects--;
		if (result == -ETIMEDOUT)
			err_set(&e, "timeout", ETIMEDOUT, "the guest did not answer in time");
		else if (result < 0)
			err_set(&e, "connection_refused", -result, "%s",
				result == -ECONNREFUSED ? "nobody listens on that port"
							: strerror(-result));
		if (result < 0)
			answer_error(k, q->id, &e);
		else
			answer(k, q->id, control_reply_ok());
		if (flush_answers(k) < 0)
			connection_close(k);
	}
	free(q);
}

static int do_connect(struct connection *k, const struct control_request *r, int *fds,
		      struct request_id id, struct err *e)
{
	struct control *c = k->control;
	struct pending_connect *q;
	int err;

	if (k->connects == CONNECTS_MAX)
		return err_set(e, "bad_request", EBUSY, "more than %d connects at once",
			       CONNECTS_MAX);
	q = calloc(1, sizeof(*q));
	if (!q)
		return err_errno(e, ENOMEM, "connect");
	*q = (struct pending_connect){ c->pending, c, k, id };
	err = fd_set_nonblock(fds[0], true);
	if (err < 0)
		err = err_errno(e, -err, "connect");
	else
		err = machine_connect(c->machine, r->port, fds[0], r->timeout_ms, on_connected, q,
				      e);
	if (err < 0) {
		free(q);
		return err;
	}
	fds[0] = -1;
	c->pending = q;
	k->connects++;
	return 0;
}

static int do_wait(struct connection *k, struct request_id id, struct err *e)
{
	if (machine_state(k->control->machine) == MACHINE_STOPPED) {
		answer(k, id, control_reply_ended(k->control->machine));
		return 0;
	}
	if (k->nwaits == WAITS_MAX)
		return err_set(e, "bad_request", EBUSY, "more than %d waits at once", WAITS_MAX);
	k->waits[k->nwaits++] = id;
	return 0;
}

static int do_save(struct connection *k, const int *fds, struct request_id id, struct err *e)
{
	uint64_t written;
	int r = machine_save(k->control->machine, fds[0], fds[1], &written, e);

	if (r == 0)
		answer(k, id, control_reply_saved(written));
	return r;
}

static void do_stop(struct connection *k, struct request_id id)
{
	struct control *c = k->control;

	machine_stop(c->machine);
	answer(k, id, control_reply_ok());
	c->stopping = true;
	start_linger(c);
}

/* Carries out a request; descriptors that it takes over become -1 in fds. */
static int handle(struct connection *k, struct control_request *r, int *fds, size_t nfds,
		  struct request_id id, struct err *e)
{
	struct machine *m = k->control->machine;
	int err = control_take_fds(r, fds, nfds, e);

	if (err < 0)
		return err;
	switch (r->verb) {
	case CONTROL_CONFIGURE:
		err = machine_configure(m, &r->config, e);
		for (size_t i = 0; err == 0 && i < nfds; i++)
			fds[i] = -1;
		break;
	case CONTROL_RESTORE:
		err = machine_restore(m, &r->config, e);
		for (size_t i = 0; err == 0 && i < nfds; i++)
			fds[i] = -1;
		break;
	case CONTROL_START:
		err = machine_start(m, e);
		break;
	case CONTROL_PAUSE:
		err = machine_pause(m, e);
		break;
	case CONTROL_RESUME:
		err = machine_resume(m, e);
		break;
	case CONTROL_BALLOON:
		err = machine_set_balloon(m, r->balloon_bytes, e);
		break;
	case CONTROL_SAVE:
		return do_save(k, fds, id, e);
	case CONTROL_CONNECT:
		return do_connect(k, r, fds, id, e);
	case CONTROL_WAIT:
		return do_wait(k, id, e);
	case CONTROL_STOP:
		do_stop(k, id);
		return 0;
	case CONTROL_SERIAL:
		answer(k, id, control_reply_serial(m, VMM_MSG_MAX));
		return 0;
	case CONTROL_STATS:
		answer(k, id, control_reply_stats(m));
		return 0;
	}
	if (err == 0)
		answer(k, id, control_reply_ok());
	return err;
}

/* One request; false when the connection is at its end. */
static bool read_request(struct connection *k)
{
	char *text = k->control->message;
	size_t nfds = FD_PASS_MAX;
	int fds[FD_PASS_MAX];
	struct control_request req;
	struct request_id id = { 0 };
	struct err e;
	ssize_t n = fd_recv_msg(k->fd, text, VMM_MSG_MAX, fds, &nfds);
	int r;

	if (n == -EAGAIN)
		return true;
	if (n == -EMSGSIZE) {
		nfds = 0;
		r = err_set(&e, "bad_request", EMSGSIZE, "the message is too large");
	} else if (n <= 0) {
		return false;
	} else {
		r = control_parse(text, (size_t)n, &req, &e);
		id = (struct request_id){ req.has_id, req.id };
		if (r == 0)
			r = handle(k, &req, fds, nfds, id, &e);
	}
	if (r < 0)
		answer_error(k, id, &e);
	for (size_t i = 0; i < nfds; i++)
		close_fd(&fds[i]);
	return true;
}

static void on_connection(void *ctx, int fd, uint32_t events)
{
	struct connection *k = ctx;
	struct control *c = k->control;
	bool alive = true;

	(void)fd;
	if (events & EPOLLOUT)
		alive = flush_answers(k) == 0;
	if (alive && !k->first && (events & (EPOLLIN | EPOLLHUP | EPOLLERR)))
		alive = read_request(k) && flush_answers(k) == 0;
	if (!alive) {
		connection_close(k);
		return;
	}
	if (c->stopping)
		answer_waits(c);
	exit_when_sent(c);
}

static int connection_new(struct control *c, int fd, struct err *e)
{
	struct connection *k = calloc(1, sizeof(*k));
	int r;

	if (!k)
		return err_errno(e, ENOMEM, "control connection");
	k->control = c;
	k->fd = fd;
	k->last = &k->first;
	r = loop_add_fd(c->loop, fd, EPOLLIN, on_connection, k, &k->source, e);
	if (r < 0) {
		free(k);
		return r;
	}
	k->next = c->connections;
	c->connections = k;
	c->nconnections++;
	return 0;
}

static void on_accept(void *ctx, int fd, uint32_t events)
{
	struct control *c = ctx;
	struct err e;
	int conn = accept4(fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	int r = 0;

	(void)events;
	if (conn < 0) {
		/* Out of descriptors: asking again at once would spin; a closing connection does.
		 */
		if (c->connections && (errno == EMFILE || errno == ENFILE))
			loop_set_events(c->accepting, 0);
		return;
	}
	if (c->nconnections == CONNECTIONS_MAX)
		r = err_set(&e, "bad_request", EMFILE, "too many control connections");
	else
		r = connection_new(c, conn, &e);
	if (r < 0) {
		log_err(LOG_WARN, &e, "control connection");
		close(conn);
	}
}

int control_new(struct loop *loop, int listen_fd, struct control **out, struct err *e)
{
	struct control *c = calloc(1, sizeof(*c));
	int r;

	if (!c)
		return err_errno(e, ENOMEM, "control server");
	c->loop = loop;
	c->listen_fd = listen_fd;
	r = fd_set_nonblock(listen_fd, true);
	if (r < 0)
		r = err_errno(e, -r, "control socket");
	if (r == 0)
		r = machine_new(loop, on_machine_ended, c, &c->machine, e);
	if (r == 0)
		r = loop_add_timer(loop, on_linger, c, &c->linger, e);
	if (r == 0)
		r = loop_add_fd(loop, listen_fd, EPOLLIN, on_accept, c, &c->accepting, e);
	if (r < 0) {
		control_free(c);
		return r;
	}
	*out = c;
	return 0;
}

void control_free(struct control *c)
{
	if (!c)
		return;
	machine_free(c->machine); /* its connects are answered, to no effect, meanwhile */
	c->stopping = false;
	loop_remove(steal_ptr(c->accepting));
	while (c->connections)
		connection_close(c->connections);
	loop_remove(c->linger);
	close_fd(&c->listen_fd);
	free(c);
}
