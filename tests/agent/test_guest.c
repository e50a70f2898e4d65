/*
 * The agent where it belongs: PID 1 of a guest on the real VMM and KVM.
 *
 *	test_agent_guest VMM AGENT.CPIO
 *
 * takes kernel, initrd and disk from the image folder that CLOCHE_TEST_IMAGE names (files vmlinux,
 * initrd, disk.raw; the disk is copied to CLOCHE_TEST_TMP, or /tmp). One guest serves all tests;
 * the last one turns it off.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "../guest/vmm_client.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/proc.h"
#include "harness.h"
#include "proto/frame.h"

#define BOOT_MS 300000 /* an emulated machine is slow */
#define DISK_MIB 1024

static struct harness H;
static struct vmm_client V;
static const char *vmm_path, *agent_cpio;
static char disk[300];

/* While the guest boots nobody listens yet, and nothing tells us when somebody will. */
static int dial(void *ctx)
{
	uint64_t end = clock_mono_ns() + BOOT_MS * NSEC_PER_MSEC;
	struct err e = { 0 };
	int fd;

	while ((fd = vmm_client_stream(ctx, AGENT_VSOCK_PORT, BOOT_MS, &e)) < 0) {
		if (strcmp(e.code, "connection_refused") != 0 || clock_mono_ns() > end)
			fail_msg("connect to the agent: %s (%s)", e.msg, e.code);
		usleep(20000);
	}
	return fd;
}

static void sh_root(struct run *r, const char *text)
{
	struct err e = { 0 };

	run_free(r);
	if (harness_exec(&H, json_pack("{s:s,s:s}", "command", text, "user", "root"), NULL, 0, r,
			 &e) < 0)
		fail_msg("%s: %s (%s)", text, e.msg, e.code);
}

static void not_adopted_yet(void **state)
{
	_cleanup_json_ json_t *hello = harness_call(&H, "hello", NULL);
	struct err e = { 0 };

	(void)state;
	assert_false(json_get_bool(hello, "adopted", true));
	assert_string_equal(harness_error(&H, "exec", json_pack("{s:s}", "command", "true"), &e),
			    "not_adopted");
}

/* 16: the clock is the host's after adopt. */
static void fault_16_identity_and_clock(void **state)
{
	_cleanup_run_ struct run r = { 0 };
	int64_t before, guest;

	(void)state;
	json_decref(harness_call(&H, "adopt",
				 json_pack("{s:s,s:I,s:s,s:i,s:{s:s}}", "hostname", "sbx-test",
					   "wallMs", (json_int_t)clock_wall_ms(), "entropy",
					   "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
					   "generation", 7, "env", "ACCOUNT", "yes")));
	before = clock_wall_ms();
	assert_int_equal(harness_sh(&H, &r, "date +%s%3N"), 0);
	guest = strtoll(r.out.data, NULL, 10);
	assert_in_range(guest, before - 1000, clock_wall_ms() + 1000);
	assert_int_equal(harness_sh(&H, &r,
				    "hostname; cat /run/cloche/generation; echo $ACCOUNT; "
				    "getent hosts sbx-test | cut -d' ' -f1"),
			 0);
	assert_string_equal(r.out.data, "sbx-test\n7\nyes\n127.0.1.1\n");
}

static void its_own_kernel_user_and_root(void **state)
{
	_cleanup_run_ struct run r = { 0 };
	struct utsname host;

	(void)state;
	assert_int_equal(uname(&host), 0);
	assert_int_equal(harness_sh(&H, &r, "uname -r"), 0);
	r.out.data[strcspn(r.out.data, "\n")] = '\0';
	assert_string_not_equal(r.out.data, host.release);
	assert_int_equal(harness_sh(&H, &r, "id -un; pwd; sudo -n id -u; exit 7"), 7);
	assert_string_equal(r.out.data, "agent\n/workspace\n0\n");
}

static void python_runs(void **state)
{
	_cleanup_run_ struct run r = { 0 };

	(void)state;
	assert_int_equal(harness_sh(&H, &r,
				    "echo 'print(6 * 7)' > /workspace/task.py && "
				    "python3 /workspace/task.py"),
			 0);
	assert_string_equal(r.out.data, "42\n");
}

static void the_system_is_whole(void **state)
{
	_cleanup_run_ struct run r = { 0 };

	(void)state;
	sh_root(&r, "for m in /proc /sys /dev /dev/pts /dev/shm /run /sys/fs/cgroup; do "
		    "mountpoint -q $m || echo no $m; done; "
		    "grep -q ' / ext4 rw,noatime' /proc/mounts || echo root; "
		    "ip -o addr show lo 2>/dev/null | grep -q 127.0.0.1 || "
		    "python3 -c 'import socket as s; s.create_server((\"127.0.0.1\", 0))'; "
		    "cat /proc/1/oom_score_adj; ls /init /newroot 2>/dev/null");
	assert_string_equal(r.out.data, "-1000\n");
	/* The disk is larger than the image's file system, which has grown. */
	sh_root(&r, "for i in $(seq 100); do s=$(df -m --output=size / | tail -1); "
		    "[ $s -gt 800 ] && break; sleep 0.1; done; echo $s");
	assert_in_range(strtol(r.out.data, NULL, 10), 800, DISK_MIB);
}

static void fault_05_bursts_arrive_whole(void **state)
{
	_cleanup_run_ struct run r = { 0 };

	(void)state;
	assert_int_equal(harness_sh(&H, &r,
				    "head -c 4194304 /dev/zero & "
				    "head -c 4194304 /dev/zero >&2; wait"),
			 0);
	assert_int_equal(r.out.len, 4 << 20);
	assert_int_equal(r.err.len, 4 << 20);
}

static void fault_07_08_many_short_commands(void **state)
{
	_cleanup_run_ struct run r = { 0 };

	(void)state;
	for (int i = 0; i < 40; i++) { /* 200 of them in test_exec.c: a guest may be emulated */
		char text[16];

		snprintf(text, sizeof(text), "exit %d", i);
		assert_int_equal(harness_sh(&H, &r, text), i);
	}
	sh_root(&r, "cat /proc/[0-9]*/stat | sed 's/.*) //' | grep -c ^Z");
	assert_string_equal(r.out.data, "0\n");
	sh_root(&r, "ls -d /sys/fs/cgroup/cloche.slice/prc_* | wc -l");
	assert_string_equal(r.out.data, "1\n"); /* its own */
}

static void fault_04_timeout_kills_all(void **state)
{
	_cleanup_run_ struct run r = { 0 };
	struct err e = { 0 };

	(void)state;
	assert_int_equal(
		harness_exec(&H,
			     json_pack("{s:s,s:i}", "command",
				       "trap '' TERM; setsid sleep 71001 & "
				       "(setsid setsid sleep 71002 &) ; echo up; sleep 71003",
				       "timeoutMs", 3000),
			     NULL, 0, &r, &e),
		0);
	assert_true(r.exit.timed_out);
	assert_int_equal(harness_sh(&H, &r, "ps -eo args | grep -c '[s]leep 7100'"), 1);
	assert_string_equal(r.out.data, "0\n");
}

/* Asks until the command behind c has ended; the longest answer must stay short. */
static void answers_meanwhile(struct agent_conn *c, struct run *r, int seconds)
{
	uint64_t end = clock_mono_ns() + (uint64_t)seconds * NSEC_PER_SEC, worst = 0;
	struct err e = { 0 };

	while (clock_mono_ns() < end) {
		uint64_t start = clock_mono_ns();

		json_decref(harness_call(&H, "hello", NULL));
		if (clock_mono_ns() - start > worst)
			worst = clock_mono_ns() - start;
	}
	print_message("slowest answer %llu ms\n", (unsigned long long)(worst / NSEC_PER_MSEC));
	assert_int_equal(agent_cancel(c, &e), 0);
	assert_int_equal(run_follow(c, r, &e), 0);
	assert_int_equal(r->exit.signal, SIGKILL);
}

/* 6: the agent answers while commands take every CPU, every process, all memory. */
static void fault_06_starved_of_cpu_and_processes(void **state)
{
	_cleanup_agent_conn_ struct agent_conn *c = NULL;
	_cleanup_run_ struct run r = { 0 };
	char id[64];

	(void)state;
	c = harness_open(&H, json_pack("{s:s}", "command", "b() { b | b & }; b; sleep 3600"), id);
	answers_meanwhile(c, &r, 20);
	sh_root(&r,
		"grep -q '^max [1-9]' /sys/fs/cgroup/cloche.slice/pids.events || "
		"grep -q '^oom_kill [1-9]' /sys/fs/cgroup/cloche.slice/memory.events && echo hit");
	assert_string_equal(r.out.data, "hit\n");
	assert_int_equal(harness_sh(&H, &r, "echo well"), 0);
}

static void fault_06_starved_of_memory(void **state)
{
	_cleanup_run_ struct run r = { 0 };

	(void)state;
	harness_sh(&H, &r, "python3 -c 'x = []\nwhile True: x.append(b\"x\" * (1 << 20))'");
	/* The kernel ended it; the shell tells so by 128 + 9, or was ended itself. */
	assert_true(r.exit.signal == SIGKILL || r.exit.code == 137);
	assert_int_equal(harness_sh(&H, &r, "echo well"), 0);
	assert_string_equal(r.out.data, "well\n");
}

/* 39: what was written just before a stop is on the disk; then the machine is off. */
static void stop_turns_it_off(void **state)
{
	_cleanup_json_ json_t *answer = NULL;
	_cleanup_run_ struct run r = { 0 };
	struct err e = { 0 };

	(void)state;
	assert_int_equal(harness_sh(&H, &r, "echo kept > /workspace/last"), 0);
	json_decref(harness_call(&H, "stop", json_pack("{s:i}", "timeoutMs", 5000)));
	answer = vmm_client_ask(V.sock, json_pack("{s:s}", "verb", "wait"), NULL, 0, &e);
	assert_non_null(answer);
	assert_string_equal(json_get_str(answer, "reason", ""), "poweroff");
	assert_int_equal(vmm_client_reap(&V), 0);
	V.pid = 0;
}

/* A sparse copy with room to grow. */
static void copy_disk(const char *image)
{
	char from[300], size[32];
	const char *tmp = getenv("CLOCHE_TEST_TMP");
	const char *copy[] = { "cp", "--sparse=always", "--reflink=auto", from, disk, NULL };
	const char *grow[] = { "truncate", "-s", size, disk, NULL };
	struct proc_spec spec = { .argv = copy };
	struct err e = { 0 };

	snprintf(from, sizeof(from), "%s/disk.raw", image);
	snprintf(disk, sizeof(disk), "%s/cloche-agent-%d.raw", tmp ? tmp : "/tmp", getpid());
	snprintf(size, sizeof(size), "%dM", DISK_MIB);
	if (proc_run(&spec, &e) < 0)
		fail_msg("%s", e.msg);
	spec.argv = grow;
	if (proc_run(&spec, &e) < 0)
		fail_msg("%s", e.msg);
}

static int start(void **state)
{
	char kernel[300], initrd[300];
	const char *image = getenv("CLOCHE_TEST_IMAGE");
	const char *initrds[] = { initrd, agent_cpio, NULL }, *disks[] = { disk, NULL };
	struct vmm_guest g = { .kernel = kernel,
			       .initrds = initrds,
			       .disks = disks,
			       .cmdline = "console=ttyS0 quiet cloche.root=/dev/vda panic=-1 "
					  "random.trust_cpu=on cryptomgr.notests",
			       .vcpus = 1,
			       .memory_mib = 256 };
	struct err e = { 0 };
	uint64_t t0 = clock_mono_ns();
	json_t *a;

	(void)state;
	snprintf(kernel, sizeof(kernel), "%s/vmlinux", image);
	snprintf(initrd, sizeof(initrd), "%s/initrd", image);
	copy_disk(image);
	if (vmm_client_spawn(&V, vmm_path, &e) < 0 || vmm_client_configure(&V, &g, &e) < 0) {
		print_error("%s\n", e.msg);
		return -1;
	}
	a = vmm_client_ask(V.sock, json_pack("{s:s}", "verb", "start"), NULL, 0, &e);
	if (!a) {
		print_error("%s\n", e.msg);
		return -1;
	}
	json_decref(a);
	H = (struct harness){ .dialer = dial, .ctx = &V };
	json_decref(harness_call(&H, "hello", NULL));
	print_message("agent answered %llu ms after the VMM's start\n",
		      (unsigned long long)((clock_mono_ns() - t0) / NSEC_PER_MSEC));
	return 0;
}

static int stop(void **state)
{
	struct err e = { 0 };
	json_t *a;

	(void)state;
	if (V.pid > 0) {
		a = vmm_client_ask(V.sock, json_pack("{s:s}", "verb", "serial"), NULL, 0, &e);
		print_message("%s\n", json_get_str(a, "text", ""));
		json_decref(a);
		json_decref(
			vmm_client_ask(V.sock, json_pack("{s:s}", "verb", "stop"), NULL, 0, &e));
		vmm_client_reap(&V);
	}
	unlink(disk);
	return 0;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(not_adopted_yet),
		cmocka_unit_test(fault_16_identity_and_clock),
		cmocka_unit_test(its_own_kernel_user_and_root),
		cmocka_unit_test(python_runs),
		cmocka_unit_test(the_system_is_whole),
		cmocka_unit_test(fault_05_bursts_arrive_whole),
		cmocka_unit_test(fault_07_08_many_short_commands),
		cmocka_unit_test(fault_04_timeout_kills_all),
		cmocka_unit_test(fault_06_starved_of_memory),
		cmocka_unit_test(fault_06_starved_of_cpu_and_processes),
		cmocka_unit_test(stop_turns_it_off),
	};

	if (argc != 3)
		return 2;
	vmm_path = argv[1];
	agent_cpio = argv[2];
	if (!getenv("CLOCHE_TEST_IMAGE")) {
		puts("1..0 # SKIP CLOCHE_TEST_IMAGE names no guest image");
		return 0;
	}
	if (access("/dev/kvm", R_OK | W_OK) < 0) {
		puts("1..0 # SKIP no /dev/kvm");
		return 0;
	}
	return cmocka_run_group_tests(tests, start, stop);
}
