/* A terminal's slave side is opened through its master, so no path of the guest is trusted. */
#include "agent/cmd_io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/agent.h"
#include "agent/process.h"
#include "agent/users.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"

static int make_terminal(const json_t *tty, const struct user *u, struct cmd_io *io)
{
	struct winsize size = { .ws_row = (unsigned short)json_get_int(tty, "rows", 24),
				.ws_col = (unsigned short)json_get_int(tty, "cols", 80) };
	int slave;

	io->out[0] = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
	if (io->out[0] < 0 || unlockpt(io->out[0]) < 0)
		return -errno;
	slave = ioctl(io->out[0], TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
	if (slave < 0)
		return -errno;
	io->child[0] = slave;
	io->child[1] = fcntl(slave, F_DUPFD_CLOEXEC, 3);
	io->child[2] = fcntl(slave, F_DUPFD_CLOEXEC, 3);
	io->in = fcntl(io->out[0], F_DUPFD_CLOEXEC, 3);
	if (io->child[1] < 0 || io->child[2] < 0 || io->in < 0 ||
	    ioctl(slave, TIOCSWINSZ, &size) < 0 || fchown(slave, u->uid, (gid_t)-1) < 0 ||
	    fchmod(slave, 0620) < 0)
		return -errno;
	return 0;
}

static int make_pipes(bool with_input, struct cmd_io *io)
{
	int p[2];

	for (int i = 0; i < 2; i++) {
		if (pipe2(p, O_CLOEXEC) < 0)
			return -errno;
		io->out[i] = p[0];
		io->child[1 + i] = p[1];
	}
	if (!with_input) {
		io->child[0] = open("/dev/null", O_RDONLY | O_CLOEXEC);
		return io->child[0] < 0 ? -errno : 0;
	}
	if (pipe2(p, O_CLOEXEC) < 0)
		return -errno;
	io->child[0] = p[0];
	io->in = p[1];
	return 0;
}

int cmd_io_make(const json_t *request, const struct user *u, bool with_input, struct cmd_io *io,
		struct err *e)
{
	const json_t *tty = json_object_get(request, "tty");
	int r = json_is_object(tty) ? make_terminal(tty, u, io) : make_pipes(with_input, io);

	return r < 0 ? agent_errno(e, -r, "make the command's input and output") : 0;
}

int cmd_io_attach(struct cmd_io *io, struct process *p, struct err *e)
{
	int r = 0;

	for (int i = 0; i < 2 && r == 0; i++)
		if (io->out[i] >= 0)
			r = output_open(p, i, steal_fd(&io->out[i]), e);
		else
			p->out[i].settled = true; /* a terminal has one output */
	if (r == 0 && io->in >= 0) {
		r = fd_set_nonblock(io->in, true);
		if (r < 0)
			return agent_errno(e, -r, "input of the command");
		p->in.fd = steal_fd(&io->in);
	}
	return r;
}

void cmd_io_close_child(struct cmd_io *io)
{
	for (int i = 0; i < 3; i++)
		close_fd(&io->child[i]);
}

void cmd_io_close(struct cmd_io *io)
{
	cmd_io_close_child(io);
	close_fd(&io->in);
	close_fd(&io->out[0]);
	close_fd(&io->out[1]);
}
