/*
 * The list below is what the loop, the sockets, the resolver, OpenSSL and malloc use. Sockets are
 * restricted by family, so that no unix or packet socket can be made; files cannot be opened.
 */
#include "egress/confine.h"

#include <errno.h>
#include <linux/capability.h>
#include <seccomp.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"

static const int allowed[] = {
	/* loop and time */
	SCMP_SYS(epoll_wait),
	SCMP_SYS(epoll_pwait),
	SCMP_SYS(epoll_ctl),
	SCMP_SYS(timerfd_settime),
	SCMP_SYS(clock_gettime),
	SCMP_SYS(gettimeofday),
	SCMP_SYS(time),
	SCMP_SYS(poll),
	/* descriptors */
	SCMP_SYS(read),
	SCMP_SYS(write),
	SCMP_SYS(writev),
	SCMP_SYS(readv),
	SCMP_SYS(close),
	SCMP_SYS(pipe2),
	SCMP_SYS(splice),
	SCMP_SYS(fcntl),
	SCMP_SYS(lseek),
	SCMP_SYS(fstat),
	SCMP_SYS(newfstatat),
	/* sockets */
	SCMP_SYS(accept4),
	SCMP_SYS(connect),
	SCMP_SYS(bind),
	SCMP_SYS(shutdown),
	SCMP_SYS(sendto),
	SCMP_SYS(recvfrom),
	SCMP_SYS(sendmsg),
	SCMP_SYS(recvmsg),
	SCMP_SYS(sendmmsg),
	SCMP_SYS(getsockname),
	SCMP_SYS(getpeername),
	SCMP_SYS(setsockopt),
	SCMP_SYS(getsockopt),
	SCMP_SYS(ioctl),
	/* memory */
	SCMP_SYS(brk),
	SCMP_SYS(mmap),
	SCMP_SYS(munmap),
	SCMP_SYS(mremap),
	SCMP_SYS(mprotect),
	SCMP_SYS(madvise),
	SCMP_SYS(futex),
	/* randomness, identity, the end */
	SCMP_SYS(getrandom),
	SCMP_SYS(getpid),
	SCMP_SYS(gettid),
	SCMP_SYS(rt_sigaction),
	SCMP_SYS(rt_sigprocmask),
	SCMP_SYS(rt_sigreturn),
	SCMP_SYS(tgkill),
	SCMP_SYS(exit),
	SCMP_SYS(exit_group),
	SCMP_SYS(restart_syscall),
};

static int drop_capabilities(struct err *e)
{
	struct __user_cap_header_struct h = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct none[2] = { 0 };

	if (geteuid() == 0)
		return err_set(e, "runs_as_root", EPERM,
			       "cloche-egress must run as a user of its own, not as root");
	if (syscall(SYS_capset, &h, none) < 0)
		return err_errno(e, errno, "drop capabilities");
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		return err_errno(e, errno, "give up new privileges");
	return 0;
}

static int allow_sockets(scmp_filter_ctx f)
{
	static const struct {
		int family;
		uint32_t action;
	} rules[] = {
		{ AF_INET, SCMP_ACT_ALLOW },
		{ AF_INET6, SCMP_ACT_ALLOW },
		/* The C library may ask for these and lives without them. */
		{ AF_UNIX, SCMP_ACT_ERRNO(EAFNOSUPPORT) },
		{ AF_NETLINK, SCMP_ACT_ERRNO(EAFNOSUPPORT) },
	};
	int r = 0;

	for (size_t i = 0; i < ARRAY_SIZE(rules) && r == 0; i++)
		r = seccomp_rule_add(f, rules[i].action, SCMP_SYS(socket), 1,
				     SCMP_A0(SCMP_CMP_EQ, (scmp_datum_t)rules[i].family));
	return r;
}

int confine(struct err *e)
{
	scmp_filter_ctx f;
	int r = drop_capabilities(e);

	if (r < 0 || CLOCHE_SANITIZED) /* a sanitizer's runtime needs more than the list */
		return r;
	f = seccomp_init(SCMP_ACT_KILL_PROCESS);
	if (!f)
		return err_errno(e, ENOMEM, "seccomp");
	for (size_t i = 0; i < ARRAY_SIZE(allowed) && r == 0; i++)
		r = seccomp_rule_add(f, SCMP_ACT_ALLOW, allowed[i], 0);
	if (r == 0)
		r = allow_sockets(f);
	/* Anything that would look for a file is told that there is none. */
	if (r == 0)
		r = seccomp_rule_add(f, SCMP_ACT_ERRNO(ENOENT), SCMP_SYS(openat), 0);
	if (r == 0)
		r = seccomp_rule_add(f, SCMP_ACT_ERRNO(ENOENT), SCMP_SYS(open), 0);
	if (r == 0)
		r = seccomp_load(f);
	seccomp_release(f);
	return r < 0 ? err_errno(e, -r, "load the system call filter") : 0;
}
