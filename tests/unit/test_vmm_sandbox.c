/*
 * What a sealed VMM process can no longer do, each thing tried in a child of its own, which must
 * die of SIGSYS; and what it must still be able to do.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "vmm/sandbox.h"

#define THREADS 8
#define RACES 40

static void try_open(void)
{
	open("/etc/passwd", O_RDONLY | O_CLOEXEC);
}
static void try_create(void)
{
	open("made-by-test", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
}
static void try_socket(void)
{
	socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
}
static void try_exec(void)
{
	char *argv[] = { (char[]){ "true" }, NULL };

	execv("/bin/true", argv);
}
static void try_fork(void)
{
	fork();
}
static void try_ptrace(void)
{
	ptrace(PTRACE_ATTACH, getppid(), NULL, NULL);
}
static void try_kill(void)
{
	kill(getppid(), 0);
}
static void try_executable_memory(void)
{
	mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}
static void try_other_ioctl(void)
{
	syscall(SYS_ioctl, 0, 0x5401 /* TCGETS */, 0);
}
static void try_memory_of_others(void)
{
	syscall(SYS_process_vm_readv, getppid(), NULL, 0, NULL, 0, 0);
}
static void try_wait_for_events(void)
{
	syscall(SYS_epoll_wait, -1, NULL, 0, 0);
}
static void try_disk(void)
{
	syscall(SYS_pwrite64, -1, NULL, 0, 0);
}

/* Runs fn in a sealed child; its status as waitpid(2) gives it. */
static int sealed(void (*fn)(void), bool as_vcpu)
{
	pid_t pid = fork();
	int status = 0;

	assert_true(pid >= 0);
	if (pid == 0) {
		struct sandbox *s;

		if (sandbox_harden(NULL) < 0 || sandbox_new(&s, NULL) < 0 ||
		    sandbox_seal_process(s, NULL) < 0 ||
		    (as_vcpu && sandbox_seal_vcpu(s, NULL) < 0))
			_exit(2);
		fn();
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return status;
}

static void a_sealed_process_dies_of_it(void **state)
{
	static void (*const tries[])(void) = {
		try_open,	 try_create,	       try_socket, try_exec,
		try_fork,	 try_ptrace,	       try_kill,   try_executable_memory,
		try_other_ioctl, try_memory_of_others,
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(tries); i++) {
		int status = sealed(tries[i], false);

		if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGSYS)
			fail_msg("try %zu: status 0x%x", i, (unsigned)status);
	}
	assert_true(access("made-by-test", F_OK) < 0);
}

static void a_vcpu_may_do_less(void **state)
{
	static void (*const tries[])(void) = { try_wait_for_events, try_disk, try_open };

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(tries); i++) {
		int status = sealed(tries[i], true);

		if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGSYS)
			fail_msg("try %zu: status 0x%x", i, (unsigned)status);
	}
	assert_int_equal(sealed(try_wait_for_events, false), 0);
	assert_int_equal(sealed(try_disk, false), 0);
}

static void what_every_thread_needs(void)
{
	struct timespec t;
	int fd = 2;
	void *p;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	if (write(fd, "", 0) < 0)
		_exit(3);
	p = malloc(1 << 20);
	free(p);
}

static void needed_calls_pass(void **state)
{
	(void)state;
	assert_int_equal(sealed(what_every_thread_needs, false), 0);
	assert_int_equal(sealed(what_every_thread_needs, true), 0);
}

static void not_dumpable(void)
{
	struct rlimit core;

	if (getrlimit(RLIMIT_CORE, &core) < 0 || core.rlim_cur != 0 || core.rlim_max != 0 ||
	    prctl(PR_GET_DUMPABLE) != 0 || prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1)
		_exit(4);
}

static void hardening_holds(void **state)
{
	pid_t pid = fork();
	int status;

	(void)state;
	if (pid == 0) {
		if (sandbox_harden(NULL) < 0)
			_exit(2);
		not_dumpable();
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

static void *wait_for_end(void *fd)
{
	uint64_t n;
	ssize_t ignored = read(*(int *)fd, &n, sizeof(n));

	(void)ignored;
	return NULL;
}

/* Threads made just before the seal are still in the C library's start of a thread. */
static void seal_while_threads_start(void)
{
	int fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
	pthread_t threads[THREADS];
	uint64_t n = THREADS;
	struct sandbox *s;

	if (sandbox_harden(NULL) < 0 || sandbox_new(&s, NULL) < 0)
		_exit(2);
	for (int i = 0; i < THREADS; i++)
		if (pthread_create(&threads[i], NULL, wait_for_end, &fd) != 0)
			_exit(2);
	if (sandbox_seal_process(s, NULL) < 0 || write(fd, &n, sizeof(n)) != sizeof(n))
		_exit(3);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	_exit(0);
}

static void starting_threads_survive_the_seal(void **state)
{
	(void)state;
	for (int i = 0; i < RACES; i++) {
		pid_t pid = fork();
		int status;

		if (pid == 0)
			seal_while_threads_start();
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_int_equal(status, 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_sealed_process_dies_of_it),
		cmocka_unit_test(a_vcpu_may_do_less),
		cmocka_unit_test(needed_calls_pass),
		cmocka_unit_test(hardening_holds),
		cmocka_unit_test(starting_threads_survive_the_seal),
	};

	if (!sandbox_filters()) {
		print_message("1..0 # SKIP a sanitized build runs without seccomp\n");
		return 0;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
