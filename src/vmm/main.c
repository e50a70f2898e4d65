/*
 * cloche-vmm: runs one guest. Descriptor 3 is the listening control socket; everything else comes
 * through it. This thread is the I/O loop's.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/err.h"
#include "base/log.h"
#include "base/loop.h"
#include "proto/vmm.h"
#include "vmm/control.h"
#include "vmm/sandbox.h"

static int check_listener(struct err *e)
{
	int type = 0, listening = 0;
	socklen_t n = sizeof(int);

	if (getsockopt(VMM_LISTEN_FD, SOL_SOCKET, SO_TYPE, &type, &n) < 0 ||
	    getsockopt(VMM_LISTEN_FD, SOL_SOCKET, SO_ACCEPTCONN, &listening, &n) < 0)
		return err_errno(e, errno, "descriptor %d", VMM_LISTEN_FD);
	if (type != SOCK_SEQPACKET || !listening)
		return err_set(e, "bad_request", EINVAL,
			       "descriptor %d is not a listening SOCK_SEQPACKET socket",
			       VMM_LISTEN_FD);
	if (fcntl(VMM_LISTEN_FD, F_SETFD, FD_CLOEXEC) < 0)
		return err_errno(e, errno, "descriptor %d", VMM_LISTEN_FD);
	return 0;
}

static int serve(struct err *e)
{
	struct control *control;
	struct loop *loop;
	int r = loop_new(&loop, e);

	if (r < 0)
		return r;
	r = control_new(loop, VMM_LISTEN_FD, &control, e);
	if (r == 0) {
		r = loop_run(loop, e);
		control_free(control);
	}
	loop_free(loop);
	return r;
}

int main(int argc, char **argv)
{
	struct err e;
	int r;

	(void)argv;
	log_init("cloche-vmm", LOG_INFO);
	if (argc != 1) {
		log_error("cloche-vmm takes no arguments; its control socket is descriptor %d",
			  VMM_LISTEN_FD);
		return EXIT_FAILURE;
	}
	signal(SIGPIPE, SIG_IGN);
	r = sandbox_harden(&e);
	if (r == 0)
		r = check_listener(&e);
	if (r == 0)
		r = serve(&e);
	if (r < 0)
		log_err(LOG_ERROR, &e, "cloche-vmm");
	return r < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
