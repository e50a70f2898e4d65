/*
 * A listening SOCK_SEQPACKET socket and its connections. Requests of one connection are answered
 * in order, each before the next is read. An answer that does not fit the peer's queue ends that
 * connection: the peer does not read its answers.
 */
#include "egress/control.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/log.h"
#include "base/loop.h"
#include "egress/egress.h"
#include "egress/verbs.h"

struct control_conn {
	struct control *control;
	struct control_conn *next, **link;
	int fd;
	struct loop_source *source;
};

struct control {
	struct egress *eg;
	int listen_fd;
	struct loop_source *source;
	struct control_conn *conns;
	char msg[EGRESS_MSG_MAX];
};

static void conn_free(struct control_conn *c)
{
	loop_remove(c->source);
	close_fd(&c->fd);
	*c->link = c->next;
	if (c->next)
		c->next->link = c->link;
	free(c);
}

static json_t *handle(struct control *ctl, size_t n, int *fds, size_t nfds)
{
	struct err e = { 0 };
	_cleanup_json_ json_t *request = json_parse(ctl->msg, n, &e);
	json_t *answer, *id;

	if (!request) {
		e.code = "bad_request";
		return verbs_error(&e, NULL);
	}
	answer = verbs_handle(ctl->eg, request, fds, nfds);
	id = json_object_get(request, "id");
	if (answer && id && json_object_set(answer, "id", id) < 0) {
		json_decref(answer);
		return NULL;
	}
	return answer;
}

static int send_json(struct control_conn *c, const json_t *answer)
{
	_cleanup_free_ char *text = answer ? json_dumps(answer, JSON_COMPACT) : NULL;

	return text ? fd_send_msg(c->fd, text, strlen(text), NULL, 0) : -ENOMEM;
}

static void on_request(void *ctx, int fd, uint32_t events)
{
	struct control_conn *c = ctx;
	struct control *ctl = c->control;
	_cleanup_json_ json_t *answer = NULL;
	int fds[FD_PASS_MAX];
	size_t nfds = FD_PASS_MAX;
	ssize_t n = fd_recv_msg(fd, ctl->msg, sizeof(ctl->msg), fds, &nfds);
	int r;

	(void)events;
	if (n == -EAGAIN)
		return;
	if (n <= 0) {
		if (n < 0)
			log_warn("control connection: %s", strerror((int)-n));
		conn_free(c);
		return;
	}
	answer = handle(ctl, (size_t)n, fds, nfds);
	explicit_bzero(ctl->msg, (size_t)n); /* it may have held a secret's value */
	for (size_t i = 0; i < nfds; i++)
		close_fd(&fds[i]);
	r = send_json(c, answer);
	if (r < 0) {
		log_warn("answer a control request: %s", strerror(-r));
		conn_free(c);
	}
}

static void on_listen(void *ctx, int fd, uint32_t events)
{
	struct control *ctl = ctx;
	struct control_conn *c = calloc(1, sizeof(*c));
	struct err e;

	(void)events;
	if (!c)
		return;
	c->control = ctl;
	c->fd = accept4(fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (c->fd < 0 ||
	    loop_add_fd(ctl->eg->loop, c->fd, EPOLLIN, on_request, c, &c->source, &e) < 0) {
		close_fd(&c->fd);
		free(c);
		return;
	}
	c->next = ctl->conns;
	c->link = &ctl->conns;
	if (c->next)
		c->next->link = &c->next;
	ctl->conns = c;
}

int control_new(struct egress *eg, int listen_fd, struct control **out, struct err *e)
{
	struct control *c = calloc(1, sizeof(*c));
	int r;

	if (!c)
		return err_errno(e, ENOMEM, "control socket");
	c->eg = eg;
	r = loop_add_fd(eg->loop, listen_fd, EPOLLIN, on_listen, c, &c->source, e);
	if (r < 0) {
		free(c);
		return r;
	}
	c->listen_fd = listen_fd;
	*out = c;
	return 0;
}

void control_free(struct control *c)
{
	if (!c)
		return;
	while (c->conns)
		conn_free(c->conns);
	loop_remove(c->source);
	close_fd(&c->listen_fd);
	free(c);
}
