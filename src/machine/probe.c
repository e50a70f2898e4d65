/*
 * The guest is one page: a loop of two instructions in 32-bit protected mode, ring 0, without
 * paging, ended by HLT. It is run first for few rounds, which an interpreter needs a fraction of a
 * second for, then, if those were quick, for enough rounds to time. The best of three counts,
 * because other work on the host only ever makes it slower. A timer interrupts a guest that does
 * not end.
 */
#include "machine/probe.h"

#include <cpuid.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/kvm.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"

#define GUEST_MEM 0x10000
#define CODE_AT 0x1000
#define ROUNDS_SHORT 100000
#define ROUNDS_LONG 40000000
#define QUICK_NS (20 * NSEC_PER_MSEC) /* the short run took less: not interpreted */
#define TRIES 3
#define LIMIT_S 5

struct guest {
	int vm, vcpu;
	uint8_t *mem;
	struct kvm_run *run;
	size_t run_size;
};

static void guest_close(struct guest *g)
{
	if (g->run)
		munmap(g->run, g->run_size);
	close_fd(&g->vcpu);
	close_fd(&g->vm);
	if (g->mem)
		munmap(g->mem, GUEST_MEM);
}

static int guest_open(int kvm, struct guest *g)
{
	struct kvm_userspace_memory_region slot = { .memory_size = GUEST_MEM };
	int size = ioctl(kvm, KVM_GET_VCPU_MMAP_SIZE, 0);
	void *run;

	g->mem = mmap(NULL, GUEST_MEM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (g->mem == MAP_FAILED) {
		g->mem = NULL;
		return -ENOMEM;
	}
	slot.userspace_addr = (uint64_t)(uintptr_t)g->mem;
	g->vm = ioctl(kvm, KVM_CREATE_VM, 0);
	if (g->vm < 0 || ioctl(g->vm, KVM_SET_USER_MEMORY_REGION, &slot) < 0)
		return -errno;
	g->vcpu = ioctl(g->vm, KVM_CREATE_VCPU, 0);
	if (g->vcpu < 0 || size < (int)sizeof(struct kvm_run))
		return -errno;
	run = mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE, MAP_SHARED, g->vcpu, 0);
	if (run == MAP_FAILED)
		return -errno;
	g->run = run;
	g->run_size = (size_t)size;
	return 0;
}

/* mov ecx, rounds; 1: dec ecx; jnz 1b; hlt */
static int guest_load(struct guest *g, uint32_t rounds)
{
	uint8_t code[] = { 0xb9, 0, 0, 0, 0, 0x49, 0x75, 0xfd, 0xf4 };
	struct kvm_segment flat = { .limit = 0xffffffff,
				    .present = 1,
				    .s = 1,
				    .db = 1,
				    .g = 1,
				    .type = 3,
				    .selector = 16 };
	struct kvm_regs regs = { .rip = CODE_AT, .rflags = 2 };
	struct kvm_sregs s;

	memcpy(code + 1, &rounds, sizeof(rounds));
	memcpy(g->mem + CODE_AT, code, sizeof(code));
	if (ioctl(g->vcpu, KVM_GET_SREGS, &s) < 0)
		return -errno;
	s.ds = s.es = s.fs = s.gs = s.ss = flat;
	s.cs = flat;
	s.cs.type = 11;
	s.cs.selector = 8;
	s.cr0 = (s.cr0 | 1) & ~(1ULL << 31);
	if (ioctl(g->vcpu, KVM_SET_SREGS, &s) < 0 || ioctl(g->vcpu, KVM_SET_REGS, &regs) < 0)
		return -errno;
	return 0;
}

/* Runs the loop once; its time, or a negative errno. */
static int64_t guest_time(struct guest *g, uint32_t rounds)
{
	uint64_t start;
	int ret = guest_load(g, rounds);

	if (ret < 0)
		return ret;
	start = clock_mono_ns();
	if (ioctl(g->vcpu, KVM_RUN, 0) < 0)
		return errno == EINTR ? -ETIME : -errno;
	if (g->run->exit_reason != KVM_EXIT_HLT)
		return -EIO;
	return (int64_t)(clock_mono_ns() - start);
}

static int measure(struct guest *g, double *instr_per_s)
{
	int64_t best = INT64_MAX, ns = guest_time(g, ROUNDS_SHORT);
	uint32_t rounds = ROUNDS_SHORT;

	if (ns < 0)
		return (int)ns;
	if ((uint64_t)ns < QUICK_NS)
		rounds = ROUNDS_LONG;
	for (int i = 0; i < TRIES; i++) {
		ns = guest_time(g, rounds);
		if (ns < 0)
			return (int)ns;
		best = ns < best ? ns : best;
	}
	*instr_per_s = 2.0 * rounds / ((double)(best ? best : 1) / NSEC_PER_SEC);
	return 0;
}

static void on_alarm(int sig)
{
	(void)sig;
}

/* Opens, makes and times the guest, with an alarm against one that never ends. */
static void run_guest(struct probe_facts *f)
{
	struct itimerval limit = { .it_value = { .tv_sec = LIMIT_S },
				   .it_interval = { .tv_sec = 1 } };
	struct sigaction sa = { .sa_handler = on_alarm }, old;
	_cleanup_close_ int kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC);
	struct guest g = { .vm = -1, .vcpu = -1 };
	int ret;

	f->open_errnum = kvm < 0 ? errno : 0;
	if (kvm < 0)
		return;
	f->api_version = ioctl(kvm, KVM_GET_API_VERSION, 0);
	sigaction(SIGALRM, &sa, &old);
	setitimer(ITIMER_REAL, &limit, NULL);
	ret = guest_open(kvm, &g);
	if (ret == 0)
		ret = measure(&g, &f->instr_per_s);
	memset(&limit, 0, sizeof(limit));
	setitimer(ITIMER_REAL, &limit, NULL);
	sigaction(SIGALRM, &old, NULL);
	guest_close(&g);
	/* Too slow even for the short run is an answer, not a failure. */
	if (ret == -ETIME)
		f->instr_per_s = ROUNDS_SHORT * 2.0 / LIMIT_S;
	f->vm_errnum = ret == -ETIME ? 0 : -ret;
}

static bool under_hypervisor(void)
{
	unsigned a, b, c = 0, d;

	return __get_cpuid(1, &a, &b, &c, &d) && (c & 1U << 31);
}

static bool cpu_has_virt(void)
{
	_cleanup_buf_ struct buf text = { 0 };

	if (fd_read_file("/proc/cpuinfo", &text, 16 << 20, NULL) < 0 || !text.len)
		return false;
	return strstr(text.data, " vmx") || strstr(text.data, " svm");
}

static bool nesting_on(void)
{
	static const char *const files[] = { "/sys/module/kvm_intel/parameters/nested",
					     "/sys/module/kvm_amd/parameters/nested" };

	for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
		_cleanup_buf_ struct buf text = { 0 };

		if (fd_read_file(files[i], &text, 16, NULL) == 0 && text.len &&
		    (text.data[0] == 'Y' || text.data[0] == '1'))
			return true;
	}
	return false;
}

void probe_kvm(struct probe *p)
{
	struct probe_facts f = { .hypervisor = under_hypervisor(),
				 .cpu_virt = cpu_has_virt(),
				 .guests_may_nest = nesting_on() };

	run_guest(&f);
	probe_classify(&f, p);
}

static void absent(const struct probe_facts *f, struct probe *p)
{
	p->kind = PROBE_ABSENT;
	if (f->open_errnum == EACCES || f->open_errnum == EPERM) {
		snprintf(p->reason, sizeof(p->reason), "/dev/kvm is there, but access is refused");
		snprintf(p->fix, sizeof(p->fix),
			 "Run as root, or add yourself to the group kvm and log in again.");
	} else if (f->open_errnum && !f->cpu_virt) {
		snprintf(p->reason, sizeof(p->reason),
			 "there is no /dev/kvm, and the processor offers no virtualization");
		snprintf(p->fix, sizeof(p->fix),
			 "Turn VT-x or AMD-V on in the firmware, or nested virtualization for this "
			 "virtual machine.");
	} else if (f->open_errnum) {
		snprintf(p->reason, sizeof(p->reason), "/dev/kvm cannot be opened: %s",
			 strerror(f->open_errnum));
		snprintf(p->fix, sizeof(p->fix), "Load the module: modprobe kvm_intel or kvm_amd.");
	} else {
		snprintf(p->reason, sizeof(p->reason), "KVM cannot run a guest: %s",
			 f->vm_errnum ? strerror(f->vm_errnum) : "unknown API version");
		snprintf(p->fix, sizeof(p->fix), "Look for kvm in the kernel's log: dmesg.");
	}
}

void probe_classify(const struct probe_facts *f, struct probe *p)
{
	memset(p, 0, sizeof(*p));
	p->facts = *f;
	p->guests_may_nest = f->guests_may_nest;
	if (f->open_errnum || f->vm_errnum || f->api_version != KVM_API_VERSION) {
		absent(f, p);
		return;
	}
	if (f->instr_per_s < PROBE_FAST) {
		p->kind = PROBE_INTERPRETED;
		snprintf(p->reason, sizeof(p->reason),
			 "KVM interprets a guest's kernel here: %.1f M instructions a second%s",
			 f->instr_per_s / 1e6,
			 f->cpu_virt ? "" : ", and the processor offers no virtualization");
		snprintf(p->fix, sizeof(p->fix),
			 "Use machine mode here, or a host with hardware virtualization.");
		return;
	}
	p->kind = f->hypervisor ? PROBE_NESTED : PROBE_NATIVE;
	snprintf(p->reason, sizeof(p->reason), "KVM works%s: %.0f M instructions a second",
		 f->hypervisor ? " inside a virtual machine" : " on hardware",
		 f->instr_per_s / 1e6);
}

const char *probe_kind_name(enum probe_kind k)
{
	static const char *const names[] = { "absent", "interpreted", "nested", "native" };

	return names[k];
}
