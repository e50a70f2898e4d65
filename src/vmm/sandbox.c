/*
 * The lists are compiled once to BPF, through a memory file because libseccomp writes programs to
 * descriptors only, and loaded with seccomp(2) so that vCPU threads pay no more than the load.
 * The process filter is loaded with TSYNC and so covers disk workers too; a thread's calls must
 * pass all filters on it.
 */
#include "vmm/sandbox.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/if_tun.h>
#include <linux/kvm.h>
#include <linux/seccomp.h>
#include <seccomp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/log.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANDBOX_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || \
	__has_feature(memory_sanitizer)
#define SANDBOX_SANITIZED 1
#endif
#endif
#ifndef SANDBOX_SANITIZED
#define SANDBOX_SANITIZED 0
#endif

#define ANY_ARG UINT32_MAX

struct filter {
	struct sock_filter *code;
	unsigned short n;
};

struct sandbox {
	struct filter process, vcpu;
};

/* A call that is allowed when (argument & mask) == value, or always when arg is ANY_ARG. */
struct rule {
	int call;
	uint32_t arg;
	uint64_t mask, value;
};

#define ALLOW(name)                           \
	{                                     \
		SCMP_SYS(name), ANY_ARG, 0, 0 \
	}
#define ALLOW_IF(name, arg, mask, value)         \
	{                                        \
		SCMP_SYS(name), arg, mask, value \
	}

/* Running the guest, waking another thread, a line of log, memory for it, and ending. */
static const struct rule vcpu_rules[] = {
	ALLOW_IF(ioctl, 1, UINT32_MAX, KVM_RUN),
	ALLOW_IF(ioctl, 1, UINT32_MAX, KVM_GET_REGS), /* to say where a guest failed */
	ALLOW(write),
	ALLOW(futex),
	ALLOW(rt_sigreturn),
	ALLOW(restart_syscall),
	ALLOW(clock_gettime),
	ALLOW(brk),
	ALLOW_IF(mmap, 2, PROT_EXEC, 0),
	ALLOW(munmap),
	ALLOW_IF(mprotect, 2, PROT_EXEC, 0),
	ALLOW(madvise), /* a thread's stack as it ends */
	ALLOW(rt_sigprocmask),
	ALLOW(exit),
	ALLOW(exit_group),
};

/* The I/O loop, disk workers, and what stopping takes. Sockets are only ever received. */
static const struct rule process_rules[] = {
	ALLOW_IF(ioctl, 1, UINT32_MAX, KVM_RUN),
	/* Saving reads the whole state of the vCPUs and the VM. */
	ALLOW_IF(ioctl, 1, UINT32_MAX, KVM_GET_MSR_INDEX_LIST),
	ALLOW_IF(ioctl, 1, UINT32_MAX, KVM_GET_MP_STATE),
	ALLOW_IF(ioctl, 1, UINT32_MAX, KVM_GET_REGS),
	ALLOW_IF(ioctl, 1, UINT32_MAX, KVM_GET_SREGS),
	ALLOW_IF(ioctl, 1, UINT32_MAX, KVM_GET_XSAVE),
	ALLOW_IF(ioctl, 1, UINT32_MAX, KVM_GET_XCRS),
	ALLOW_IF(ioctl, 1, UINT32_MAX, KVM_GET_DEBUGREGS),
	ALLOW_IF(ioctl, 1, UINT32_MAX, KVM_GET_LAPIC),
	ALLOW_IF(ioctl, 1, UINT32_MAX, KVM_GET_TSC_KHZ),
	ALLOW_IF(ioctl, 1, UINT32_MAX, KVM_GET_CPUID2),
	ALLOW_IF(ioctl, 1, UINT32_MAX, KVM_GET_MSRS),
	ALLOW_IF(ioctl, 1, UINT32_MAX, KVM_GET_VCPU_EVENTS),
	ALLOW_IF(ioctl, 1, UINT32_MAX, KVM_GET_CLOCK),
	ALLOW_IF(ioctl, 1, UINT32_MAX, KVM_GET_IRQCHIP),
	ALLOW_IF(ioctl, 1, UINT32_MAX, KVM_KVMCLOCK_CTRL),
	ALLOW_IF(ioctl, 1, UINT32_MAX, TUNSETOFFLOAD),
	ALLOW(read),
	ALLOW(write),
	ALLOW(readv),
	ALLOW(writev),
	ALLOW(pread64),
	ALLOW(pwrite64),
	ALLOW(preadv),
	ALLOW(pwritev),
	ALLOW(fdatasync),
	ALLOW(fallocate),
	ALLOW(ftruncate),
	ALLOW(recvmsg),
	ALLOW(recvfrom),
	ALLOW(sendmsg),
	ALLOW(sendto),
	ALLOW(shutdown),
	ALLOW(accept4),
	ALLOW(getsockopt),
	ALLOW(close),
	ALLOW(fcntl),
	ALLOW(fstat),
	ALLOW(newfstatat), /* fstat(2) of newer C libraries; there is no path to name */
	ALLOW(poll),
	ALLOW(epoll_wait),
	ALLOW(epoll_pwait),
	ALLOW(epoll_ctl),
	ALLOW(timerfd_create),
	ALLOW(timerfd_settime),
	ALLOW(eventfd2),
	ALLOW(getrandom),
	ALLOW(clock_gettime),
	ALLOW(futex),
	ALLOW(tgkill),
	ALLOW(getpid),
	ALLOW(gettid),
	ALLOW(rt_sigprocmask),
	ALLOW(rt_sigreturn),
	ALLOW(restart_syscall),
	/* A thread made just before the filter may still be on its way into its first function. */
	ALLOW(set_robust_list),
	ALLOW(rseq),
	ALLOW(brk),
	ALLOW_IF(mmap, 2, PROT_EXEC, 0),
	ALLOW(munmap),
	ALLOW(mremap),
	ALLOW_IF(mprotect, 2, PROT_EXEC, 0),
	ALLOW(madvise),
	ALLOW(seccomp), /* can only narrow */
	ALLOW(exit),
	ALLOW(exit_group),
};

int sandbox_harden(struct err *e)
{
	struct rlimit none = { 0, 0 };
	time_t now = time(NULL);
	struct tm tm;

	if (setrlimit(RLIMIT_CORE, &none) < 0)
		return err_errno(e, errno, "forbid core dumps");
	if (!SANDBOX_SANITIZED && prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0)
		return err_errno(e, errno, "forbid dumps");
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		return err_errno(e, errno, "forbid new privileges");
	gmtime_r(&now, &tm); /* the C library looks for a time zone file once, the first time */
	return 0;
}

bool sandbox_filters(void)
{
	return !SANDBOX_SANITIZED;
}

static int rules_add(scmp_filter_ctx ctx, const struct rule *rules, size_t n)
{
	int r = 0;

	for (size_t i = 0; r == 0 && i < n; i++) {
		if (rules[i].arg == ANY_ARG)
			r = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, rules[i].call, 0);
		else
			r = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, rules[i].call, 1,
					     SCMP_CMP(rules[i].arg, SCMP_CMP_MASKED_EQ,
						      rules[i].mask, rules[i].value));
	}
	return r;
}

/* Reads the program that libseccomp wrote to fd. */
static int filter_read(int fd, struct filter *out)
{
	off_t size = lseek(fd, 0, SEEK_END);

	if (size <= 0 || size % (off_t)sizeof(struct sock_filter) ||
	    size / (off_t)sizeof(struct sock_filter) > BPF_MAXINSNS)
		return -EINVAL;
	out->code = malloc((size_t)size);
	if (!out->code)
		return -ENOMEM;
	if (pread(fd, out->code, (size_t)size, 0) != size)
		return -EIO;
	out->n = (unsigned short)((size_t)size / sizeof(struct sock_filter));
	return 0;
}

static int filter_compile(const struct rule *rules, size_t n, struct filter *out, struct err *e)
{
	_cleanup_close_ int fd = memfd_create("seccomp", MFD_CLOEXEC);
	scmp_filter_ctx ctx;
	int r;

	if (fd < 0)
		return err_errno(e, errno, "compile the seccomp filter");
	ctx = seccomp_init(SCMP_ACT_KILL_PROCESS);
	if (!ctx)
		return err_errno(e, ENOMEM, "compile the seccomp filter");
	r = rules_add(ctx, rules, n);
	if (r == 0)
		r = seccomp_export_bpf(ctx, fd);
	if (r == 0)
		r = filter_read(fd, out);
	seccomp_release(ctx);
	return r < 0 ? err_errno(e, -r, "compile the seccomp filter") : 0;
}

int sandbox_new(struct sandbox **out, struct err *e)
{
	struct sandbox *s = calloc(1, sizeof(*s));
	int r;

	if (!s)
		return err_errno(e, ENOMEM, "seccomp filters");
	r = filter_compile(process_rules, ARRAY_SIZE(process_rules), &s->process, e);
	if (r == 0)
		r = filter_compile(vcpu_rules, ARRAY_SIZE(vcpu_rules), &s->vcpu, e);
	if (r < 0) {
		sandbox_free(s);
		return r;
	}
	*out = s;
	return 0;
}

void sandbox_free(struct sandbox *s)
{
	if (!s)
		return;
	free(s->process.code);
	free(s->vcpu.code);
	free(s);
}

static int filter_load(const struct filter *f, unsigned flags, struct err *e)
{
	struct sock_fprog prog = { .len = f->n, .filter = f->code };
	long r = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &prog);

	if (r == 0)
		return 0;
	/* With TSYNC a positive result is a thread whose own filter is in the way. */
	return err_errno(e, r > 0 ? EBUSY : errno, "load the seccomp filter");
}

int sandbox_seal_process(const struct sandbox *s, struct err *e)
{
	if (SANDBOX_SANITIZED) {
		log_warn("sanitized build: running WITHOUT seccomp");
		return 0;
	}
	return filter_load(&s->process, SECCOMP_FILTER_FLAG_TSYNC, e);
}

int sandbox_seal_vcpu(const struct sandbox *s, struct err *e)
{
	return SANDBOX_SANITIZED ? 0 : filter_load(&s->vcpu, 0, e);
}
