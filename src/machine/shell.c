/*
 * Copies bytes between the terminal, set raw, and the machine's second serial port until Ctrl-] is
 * typed or either side closes. The terminal is set back on every way out, signals included: SIGTERM
 * and SIGHUP only end the loop.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "machine/control.h"
#include "machine/machine.h"

#define ESCAPE 0x1d /* Ctrl-] */

static volatile sig_atomic_t stop;

static void on_signal(int sig)
{
	(void)sig;
	stop = 1;
}

/* One direction; 0 when that side has closed or the escape was typed. */
static int copy(int from, int to, int escape)
{
	char b[4096];
	ssize_t n = read(from, b, sizeof(b));
	char *esc = n > 0 && escape ? memchr(b, ESCAPE, (size_t)n) : NULL;

	if (n < 0 && errno == EINTR)
		return 1;
	if (n <= 0)
		return 0;
	if (fd_write_full(to, b, esc ? (size_t)(esc - b) : (size_t)n) < 0)
		return 0;
	return !esc;
}

static void pump(int sock)
{
	int more = 1;

	while (more && !stop) {
		struct pollfd p[2] = { { .fd = STDIN_FILENO, .events = POLLIN },
				       { .fd = sock, .events = POLLIN } };

		if (poll(p, 2, -1) < 0)
			continue;
		if (p[0].revents)
			more = copy(STDIN_FILENO, sock, 1);
		if (more && p[1].revents)
			more = copy(sock, STDOUT_FILENO, 0);
	}
}

int machine_shell(const char *state_dir, struct err *e)
{
	struct sigaction sa = { .sa_handler = on_signal };
	_cleanup_close_ int sock = -1;
	struct machine_status st;
	struct termios saved, raw;
	int ret = machine_status(state_dir, &st, e);

	if (ret < 0)
		return ret;
	if (!st.running) {
		err_set(e, "machine_stopped", ESRCH, "the machine does not run");
		err_fix(e, "Start it with `cloche machine start`.");
		return -ESRCH;
	}
	if (tcgetattr(STDIN_FILENO, &saved) < 0)
		return err_set(e, "no_terminal", ENOTTY, "the shell needs a terminal on stdin");
	sock = control_connect(state_dir, "shell.sock", e);
	if (sock < 0)
		return sock;
	stop = 0;
	sigaction(SIGTERM, &sa, NULL);
	sigaction(SIGHUP, &sa, NULL);
	fprintf(stderr, "Connected to the machine. Ctrl-] leaves.\n");
	raw = saved;
	cfmakeraw(&raw);
	tcsetattr(STDIN_FILENO, TCSADRAIN, &raw);
	/* The first Enter starts the shell there. */
	fd_write_full(sock, "\r", 1);
	pump(sock);
	tcsetattr(STDIN_FILENO, TCSADRAIN, &saved);
	fprintf(stderr, "\nLeft the machine; its shell goes on.\n");
	return 0;
}
