/*
 * Runs the bare-metal programs of payload/ on cloche-vmm under a real /dev/kvm and judges what they
 * print, how they end and what is on their disk; and drives the control protocol, the right way
 * and the wrong ways.
 *
 *	run_guest VMM PAYLOAD [TEST PATTERN]
 *
 * Exits with 77 where /dev/kvm cannot be used.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "proto/vmm.h"
#include "vmm_client.h"

#define SKIPPED 77
#define SECTOR 512
#define DISK_SECTORS 64
#define WAIT_MS 300000 /* far beyond what any test takes; a hang, not a speed limit */
#define ECHO_BYTES 100000

static const char *vmm_program, *payload;

/* A VMM and what its guest did. */
struct fixture {
	struct vmm_client c;
	char *serial; /* all the guest wrote */
	char reason[32];
};

static json_t *verb(const char *name)
{
	return json_pack("{s:s}", "verb", name);
}

/* Sends without waiting for the answer. */
static void send_text(int sock, const char *text, const int *fds, size_t nfds)
{
	assert_int_equal(fd_send_msg(sock, text, strlen(text), fds, nfds), 0);
}

static void must(int r, const struct err *e)
{
	if (r < 0)
		fail_msg("%s: %s", e->code, e->msg);
}

/* Sends a request that must succeed. */
static json_t *ask(struct fixture *f, json_t *request)
{
	struct err e = { 0 };
	json_t *a = vmm_client_ask(f->c.sock, request, NULL, 0, &e);

	if (!a)
		fail_msg("%s: %s", e.code, e.msg);
	return a;
}

static void do_verb(struct fixture *f, const char *name)
{
	json_decref(ask(f, verb(name)));
}

/* Sends a request that must be refused with that code. */
static void refused(struct fixture *f, json_t *request, const char *code)
{
	struct err e = { 0 };
	json_t *a = vmm_client_ask(f->c.sock, request, NULL, 0, &e);

	assert_null(a);
	assert_string_equal(e.code, code);
}

static void spawn(struct fixture *f)
{
	struct err e = { 0 };

	memset(f, 0, sizeof(*f));
	must(vmm_client_spawn(&f->c, vmm_program, &e), &e);
}

static void start(struct fixture *f, const struct vmm_guest *g)
{
	struct err e = { 0 };

	spawn(f);
	must(vmm_client_configure(&f->c, g, &e), &e);
	do_verb(f, "start");
}

static void read_serial(struct fixture *f)
{
	_cleanup_json_ json_t *a = ask(f, verb("serial"));

	assert_int_equal(json_get_int(a, "dropped", -1), 0);
	free(f->serial);
	f->serial = strdup(json_get_str(a, "text", ""));
	assert_non_null(f->serial);
}

/* Waits for the guest's end, then for the process's. */
static void finish(struct fixture *f)
{
	struct pollfd p = { .fd = f->c.sock, .events = POLLIN };
	_cleanup_json_ json_t *a = NULL;
	char text[1024];
	ssize_t n;
	int status;

	send_text(f->c.sock, "{\"verb\":\"wait\"}", NULL, 0);
	if (poll(&p, 1, WAIT_MS) != 1) {
		kill(f->c.pid, SIGKILL);
		fail_msg("the guest does not end");
	}
	n = fd_recv_msg(f->c.sock, text, sizeof(text), NULL, NULL);
	assert_true(n > 0);
	a = json_parse(text, (size_t)n, NULL);
	assert_string_equal(json_get_str(a, "state", ""), "stopped");
	snprintf(f->reason, sizeof(f->reason), "%s", json_get_str(a, "reason", ""));
	read_serial(f);
	do_verb(f, "stop");
	status = vmm_client_reap(&f->c);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
}

static void says(const struct fixture *f, const char *text)
{
	if (!strstr(f->serial, text))
		fail_msg("\"%s\" is not in:\n%s", text, f->serial);
}

/* The payload's own checks all held and it came to its end. */
static void all_held(const struct fixture *f)
{
	if (strstr(f->serial, "FAILED") || !strstr(f->serial, "done\n"))
		fail_msg("%s", f->serial);
	assert_string_equal(f->reason, "poweroff");
}

static void release(struct fixture *f)
{
	free(f->serial);
}

/* A memory file and a path by which to open it. */
struct file {
	int fd;
	char path[64];
};

static struct file file_new(const void *p, size_t n)
{
	struct file f = { .fd = memfd_create("test", MFD_CLOEXEC) };

	assert_true(f.fd >= 0);
	assert_int_equal(pwrite(f.fd, p, n, 0), n);
	snprintf(f.path, sizeof(f.path), "/proc/self/fd/%d", f.fd);
	return f;
}

/* DISK_SECTORS sectors, each full of its number. */
static struct file disk_new(void)
{
	uint8_t bytes[DISK_SECTORS][SECTOR];

	for (int i = 0; i < DISK_SECTORS; i++)
		memset(bytes[i], i, SECTOR);
	return file_new(bytes, sizeof(bytes));
}

static void run(struct fixture *f, const char *test, unsigned vcpus, unsigned mib,
		const char *const *disks)
{
	struct vmm_guest g = { .kernel = payload,
			       .disks = disks,
			       .cmdline = test,
			       .vcpus = vcpus,
			       .memory_mib = mib };

	start(f, &g);
	finish(f);
}

static void run_simple(const char *test)
{
	struct fixture f;

	run(&f, test, 1, 64, NULL);
	all_held(&f);
	release(&f);
}

static void boot_data(void **state)
{
	struct file a = file_new("abc", 4), b = file_new("defgh", 5);
	const char *initrds[] = { a.path, b.path, NULL };
	struct vmm_guest g = { .kernel = payload,
			       .initrds = initrds,
			       .cmdline = "boot",
			       .vcpus = 1,
			       .memory_mib = 32 };
	struct fixture f;

	(void)state;
	start(&f, &g);
	finish(&f);
	all_held(&f);
	says(&f, "modules 1\n");
	says(&f, "module bytes 12\n"); /* 4 and 5, padded to 4 */
	says(&f, "module text abc\n");
	release(&f);
	close(a.fd);
	close(b.fd);
}

/* Two: the only other processor is also the last that KVM made. */
static void vcpus_start(void **state)
{
	struct fixture f;

	(void)state;
	run(&f, "vcpus", 2, 64, NULL);
	all_held(&f);
	says(&f, "cpus 2\n");
	release(&f);
	run(&f, "vcpus", 7, 64, NULL);
	all_held(&f);
	says(&f, "cpus 7\n");
	release(&f);
}

static void memory_small(void **state)
{
	struct fixture f;

	(void)state;
	run(&f, "memory", 1, 64, NULL);
	all_held(&f);
	says(&f, "above 4 GiB 0\n");
	release(&f);
}

static void memory_above_3_gib(void **state)
{
	struct fixture f;

	(void)state;
	run(&f, "memory", 1, 3500, NULL);
	all_held(&f);
	says(&f, "above 4 GiB 438272\n"); /* 3500 - 3072 MiB */
	release(&f);
}

static void ports_and_memory_io(void **state)
{
	(void)state;
	run_simple("io");
}

static void serial_interrupt(void **state)
{
	(void)state;
	run_simple("irq");
}

static void entropy(void **state)
{
	(void)state;
	run_simple("rng");
}

static void disk_round_trip(void **state)
{
	struct file d = disk_new();
	const char *disks[] = { d.path, NULL };
	uint8_t sector[SECTOR];
	struct fixture f;

	(void)state;
	run(&f, "blk", 1, 64, disks);
	all_held(&f);
	for (int i = 0; i < DISK_SECTORS; i++) {
		assert_int_equal(pread(d.fd, sector, SECTOR, i * SECTOR), SECTOR);
		assert_int_equal(sector[0], i == 7 ? 0xc3 : i);
		assert_int_equal(sector[SECTOR - 1], i == 7 ? 0xc3 : i);
	}
	release(&f);
	close(d.fd);
}

static void garbage_breaks_the_device_only(void **state)
{
	struct file d = disk_new();
	const char *disks[] = { d.path, NULL };
	struct fixture f;

	(void)state;
	run(&f, "garbage", 1, 64, disks);
	all_held(&f);
	release(&f);
	close(d.fd);
}

static void reset_is_told(void **state)
{
	struct fixture f;

	(void)state;
	run(&f, "reset", 1, 64, NULL);
	assert_string_equal(f.reason, "reset");
	release(&f);
}

static void triple_fault_is_told(void **state)
{
	struct fixture f;

	(void)state;
	run(&f, "triple", 2, 64, NULL);
	assert_string_equal(f.reason, "triple_fault");
	release(&f);
}

/* Writes all of p while reading what comes back. */
static void echo(int stream, const uint8_t *p, size_t n)
{
	_cleanup_free_ uint8_t *back = malloc(n);
	size_t sent = 0, got = 0;

	assert_non_null(back);
	assert_int_equal(fd_set_nonblock(stream, true), 0);
	while (got < n) {
		struct pollfd w = { .fd = stream,
				    .events = (short)(POLLIN | (sent < n ? POLLOUT : 0)) };
		ssize_t r;

		assert_int_equal(poll(&w, 1, WAIT_MS), 1);
		if (sent < n && (r = write(stream, p + sent, n - sent)) > 0)
			sent += (size_t)r;
		if ((r = read(stream, back + got, n - got)) > 0)
			got += (size_t)r;
		assert_true(r != 0);
	}
	assert_memory_equal(back, p, n);
}

static void vsock_echo(void **state)
{
	struct vmm_guest g = {
		.kernel = payload, .cmdline = "vsock", .vcpus = 1, .memory_mib = 64
	};
	_cleanup_free_ uint8_t *bytes = malloc(ECHO_BYTES);
	struct err e = { 0 };
	struct fixture f;
	int stream;

	(void)state;
	assert_non_null(bytes);
	for (size_t i = 0; i < ECHO_BYTES; i++)
		bytes[i] = (uint8_t)(i * 7 + i / 251);
	start(&f, &g);
	assert_true(vmm_client_stream(&f.c, 9, WAIT_MS, &e) < 0); /* the payload refuses it */
	assert_string_equal(e.code, "connection_refused");
	stream = vmm_client_stream(&f.c, 1024, WAIT_MS, &e);
	must(stream, &e);
	echo(stream, bytes, ECHO_BYTES);
	close(stream);
	finish(&f);
	all_held(&f);
	says(&f, "cid 3\n");
	says(&f, "echoed 100000\n");
	release(&f);
}

/* A guest without a vsock driver never answers. */
static void connect_times_out(void **state)
{
	struct vmm_guest g = { .kernel = payload, .cmdline = "spin", .vcpus = 1, .memory_mib = 64 };
	struct err e = { 0 };
	struct fixture f;

	(void)state;
	start(&f, &g);
	assert_true(vmm_client_stream(&f.c, 5, 200, &e) < 0);
	assert_string_equal(e.code, "timeout");
	do_verb(&f, "stop");
	assert_int_equal(vmm_client_reap(&f.c), 0);
	release(&f);
}

static void stop_ends_a_running_guest(void **state)
{
	struct vmm_guest g = { .kernel = payload, .cmdline = "spin", .vcpus = 2, .memory_mib = 64 };
	_cleanup_json_ json_t *stats = NULL, *ended = NULL;
	_cleanup_close_ int waiter = -1;
	char text[1024];
	struct fixture f;
	ssize_t n;

	(void)state;
	start(&f, &g);
	waiter = vmm_client_connect(&f.c);
	send_text(waiter, "{\"verb\":\"wait\",\"id\":5}", NULL, 0);
	do {
		json_decref(stats);
		stats = ask(&f, verb("stats"));
		assert_string_equal(json_get_str(stats, "state", ""), "running");
	} while (json_integer_value(json_array_get(json_object_get(stats, "cpuNs"), 0)) < 20000000);
	assert_int_equal(json_array_size(json_object_get(stats, "cpuNs")), 2);
	do_verb(&f, "stop");
	n = fd_recv_msg(waiter, text, sizeof(text), NULL, NULL);
	assert_true(n > 0);
	ended = json_parse(text, (size_t)n, NULL);
	assert_int_equal(json_get_int(ended, "id", 0), 5);
	assert_string_equal(json_get_str(ended, "reason", ""), "stop");
	assert_int_equal(vmm_client_reap(&f.c), 0);
	release(&f);
}

static int open_descriptors(pid_t pid)
{
	char path[32];
	DIR *d;
	int n = 0;

	snprintf(path, sizeof(path), "/proc/%ld/fd", (long)pid);
	d = opendir(path);
	assert_non_null(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

static void bad_kernels_are_refused(void **state)
{
	struct file text = file_new("not a kernel at all, not by far", 31), empty = file_new("", 0);
	const char *bad[] = { text.path, empty.path, "/dev/null" };
	struct fixture f;

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		struct vmm_guest g = {
			.kernel = bad[i], .cmdline = "", .vcpus = 1, .memory_mib = 64
		};
		struct err e = { 0 };
		int before;

		spawn(&f);
		must(vmm_client_configure(&f.c, &g, &e), &e);
		before = open_descriptors(f.c.pid);
		refused(&f, verb("start"), "kernel_invalid");
		assert_int_equal(open_descriptors(f.c.pid), before);
		do_verb(&f, "stop");
		assert_int_equal(vmm_client_reap(&f.c), 0);
	}
	close(text.fd);
	close(empty.fd);
}

static void kvm_must_be_kvm(void **state)
{
	_cleanup_close_ int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	int fds[2] = { null, null };
	struct err e = { 0 };
	struct fixture f;

	(void)state;
	spawn(&f);
	assert_null(vmm_client_ask(f.c.sock,
				   json_pack("{s:s,s:i,s:i,s:s,s:i,s:i,s:[]}", "verb", "configure",
					     "vcpus", 1, "memoryMiB", 64, "cmdline", "", "cid", 3,
					     "initrds", 0, "disks"),
				   fds, 2, &e));
	assert_string_equal(e.code, "kvm_unavailable");
	do_verb(&f, "stop");
	assert_int_equal(vmm_client_reap(&f.c), 0);
}

static void verbs_in_the_wrong_order(void **state)
{
	struct vmm_guest g = { .kernel = payload, .cmdline = "spin", .vcpus = 1, .memory_mib = 64 };
	struct err e = { 0 };
	struct fixture f;

	(void)state;
	spawn(&f);
	refused(&f, verb("start"), "wrong_state");
	assert_true(vmm_client_stream(&f.c, 5, 200, &e) < 0);
	assert_string_equal(e.code, "wrong_state");
	must(vmm_client_configure(&f.c, &g, &e), &e);
	assert_true(vmm_client_configure(&f.c, &g, &e) < 0);
	assert_string_equal(e.code, "wrong_state");
	do_verb(&f, "start");
	refused(&f, verb("start"), "wrong_state");
	do_verb(&f, "stop");
	assert_int_equal(vmm_client_reap(&f.c), 0);
}

static void nonsense_is_answered_and_leaks_nothing(void **state)
{
	static const char *const nonsense[] = { "x", "{}", "[1]", "{\"verb\":\"fly\"}" };
	_cleanup_close_ int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	_cleanup_free_ char *big = malloc(VMM_MSG_MAX + 1);
	int fds[3] = { null, null, null }, before;
	struct fixture f;

	(void)state;
	assert_non_null(big);
	spawn(&f);
	do_verb(&f, "stats");
	before = open_descriptors(f.c.pid);
	for (size_t i = 0; i < ARRAY_SIZE(nonsense); i++) {
		char answer[1024];

		send_text(f.c.sock, nonsense[i], fds, 3);
		assert_true(fd_recv_msg(f.c.sock, answer, sizeof(answer), NULL, NULL) > 0);
		assert_non_null(strstr(answer, "bad_request"));
	}
	memset(big, ' ', VMM_MSG_MAX + 1);
	assert_int_equal(fd_send_msg(f.c.sock, big, VMM_MSG_MAX + 1, fds, 3), 0);
	assert_true(fd_recv_msg(f.c.sock, big, VMM_MSG_MAX, NULL, NULL) > 0);
	assert_int_equal(open_descriptors(f.c.pid), before);
	do_verb(&f, "stop");
	assert_int_equal(vmm_client_reap(&f.c), 0);
}

static void clients_may_vanish(void **state)
{
	struct vmm_guest g = { .kernel = payload, .cmdline = "spin", .vcpus = 1, .memory_mib = 64 };
	struct fixture f;
	int pair[2], other;

	(void)state;
	start(&f, &g);
	other = vmm_client_connect(&f.c);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
	send_text(other, "{\"verb\":\"connect\",\"port\":5}", &pair[1], 1);
	send_text(other, "{\"verb\":\"wait\"}", NULL, 0);
	close(pair[0]);
	close(pair[1]);
	close(other); /* with a connect and a wait unanswered */
	do_verb(&f, "stats");
	do_verb(&f, "stop");
	assert_int_equal(vmm_client_reap(&f.c), 0);
}

/* Has the state payload check itself: connects to a port and waits for its word. */
static void has_held(struct fixture *f, uint32_t port)
{
	struct err e = { 0 };
	int stream = vmm_client_stream(&f->c, port, WAIT_MS, &e);
	char *before = f->serial;

	must(stream, &e);
	f->serial = NULL;
	do {
		read_serial(f);
	} while (!strstr(f->serial + (before ? strlen(before) : 0), "checked\n"));
	free(before);
	if (strstr(f->serial, "FAILED"))
		fail_msg("%s", f->serial);
	close(stream);
}

static void start_state_payload(struct fixture *f, unsigned mib)
{
	struct vmm_guest g = {
		.kernel = payload, .cmdline = "state", .vcpus = 2, .memory_mib = mib
	};

	start(f, &g);
	has_held(f, 1);
}

/* Saves the paused guest of f, ends its VMM and goes on in a new one. */
static void move_to_new_vmm(struct fixture *f)
{
	_cleanup_json_ json_t *stats = NULL;
	struct vmm_saved saved;
	struct err e = { 0 };

	must(vmm_client_save(&f->c, &saved, &e), &e);
	do_verb(f, "stop");
	assert_int_equal(vmm_client_reap(&f->c), 0);
	release(f);
	spawn(f);
	must(vmm_client_restore(&f->c, &saved, &e), &e);
	vmm_saved_close(&saved);
	stats = ask(f, verb("stats"));
	assert_string_equal(json_get_str(stats, "state", ""), "paused");
	do_verb(f, "resume");
}

static void end_state_payload(struct fixture *f)
{
	has_held(f, 2);
	finish(f);
	all_held(f);
	release(f);
}

/* Known fault: the second pause and resume fails. */
static void pause_and_resume_again_and_again(void **state)
{
	struct fixture f;

	(void)state;
	start_state_payload(&f, 64);
	for (int i = 0; i < 5; i++) {
		do_verb(&f, "pause");
		refused(&f, verb("pause"), "wrong_state");
		do_verb(&f, "resume");
		refused(&f, verb("resume"), "wrong_state");
		has_held(&f, 1);
	}
	end_state_payload(&f);
}

static void save_and_restore_again_and_again(void **state)
{
	struct fixture f;

	(void)state;
	start_state_payload(&f, 64);
	for (int i = 0; i < 5; i++) {
		do_verb(&f, "pause");
		move_to_new_vmm(&f);
		has_held(&f, 1);
	}
	end_state_payload(&f);
}

/* Known fault: a snapshot with more than 3 GiB of memory is corrupt. */
static void save_and_restore_above_3_gib(void **state)
{
	struct fixture f;

	(void)state;
	start_state_payload(&f, 3500);
	do_verb(&f, "pause");
	move_to_new_vmm(&f);
	end_state_payload(&f);
}

static void two_guests_from_one_save(void **state)
{
	struct fixture f, g;
	struct vmm_saved saved;
	struct err e = { 0 };

	(void)state;
	start_state_payload(&f, 64);
	do_verb(&f, "pause");
	must(vmm_client_save(&f.c, &saved, &e), &e);
	spawn(&g);
	must(vmm_client_restore(&g.c, &saved, &e), &e);
	do_verb(&f, "resume"); /* the saved one goes on, too */
	do_verb(&g, "resume");
	has_held(&f, 1);
	has_held(&g, 1);
	has_held(&f, 1);
	end_state_payload(&g);
	end_state_payload(&f);
	vmm_saved_close(&saved);
}

static void restore_refused(const struct vmm_saved *saved, const char *code)
{
	struct err e = { 0 };
	struct fixture f;
	int before;

	spawn(&f);
	do_verb(&f, "stats");
	before = open_descriptors(f.c.pid);
	assert_true(vmm_client_restore(&f.c, saved, &e) < 0);
	if (strcmp(e.code, code) != 0)
		fail_msg("%s instead of %s: %s", e.code, code, e.msg);
	assert_int_equal(open_descriptors(f.c.pid), before);
	do_verb(&f, "stop");
	assert_int_equal(vmm_client_reap(&f.c), 0);
}

static void damaged_saves_are_refused(void **state)
{
	struct fixture f;
	struct vmm_saved saved;
	struct err e = { 0 };
	off_t size;
	char byte;

	(void)state;
	start_state_payload(&f, 64);
	refused(&f, verb("save"), "bad_request"); /* without descriptors */
	assert_true(vmm_client_save(&f.c, &saved, &e) < 0);
	assert_string_equal(e.code, "wrong_state"); /* not paused */
	vmm_saved_close(&saved);
	do_verb(&f, "pause");
	must(vmm_client_save(&f.c, &saved, &e), &e);
	size = lseek(saved.state, 0, SEEK_END);
	for (off_t at = 0; at < size; at += size / 7) { /* one byte altered */
		assert_int_equal(pread(saved.state, &byte, 1, at), 1);
		byte ^= 0x10;
		assert_int_equal(pwrite(saved.state, &byte, 1, at), 1);
		restore_refused(&saved, "state_invalid");
		byte ^= 0x10;
		assert_int_equal(pwrite(saved.state, &byte, 1, at), 1);
	}
	byte = 2; /* the version after ours */
	assert_int_equal(pwrite(saved.state, &byte, 1, 8), 1);
	restore_refused(&saved, "state_version");
	byte = 1;
	assert_int_equal(pwrite(saved.state, &byte, 1, 8), 1);
	assert_int_equal(ftruncate(saved.memory, 32 << 20), 0);
	restore_refused(&saved, "state_mismatch");
	assert_int_equal(ftruncate(saved.state, size - 8), 0);
	restore_refused(&saved, "state_invalid");
	vmm_saved_close(&saved);
	do_verb(&f, "resume"); /* and the saved guest was never in danger */
	end_state_payload(&f);
}

static bool kvm_usable(void)
{
	_cleanup_close_ int fd = open("/dev/kvm", O_RDWR | O_CLOEXEC);

	if (fd >= 0)
		return true;
	printf("skipped: /dev/kvm: %s\n", strerror(errno));
	return false;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(boot_data),
		cmocka_unit_test(vcpus_start),
		cmocka_unit_test(memory_small),
		cmocka_unit_test(memory_above_3_gib),
		cmocka_unit_test(ports_and_memory_io),
		cmocka_unit_test(serial_interrupt),
		cmocka_unit_test(entropy),
		cmocka_unit_test(disk_round_trip),
		cmocka_unit_test(garbage_breaks_the_device_only),
		cmocka_unit_test(reset_is_told),
		cmocka_unit_test(triple_fault_is_told),
		cmocka_unit_test(vsock_echo),
		cmocka_unit_test(connect_times_out),
		cmocka_unit_test(stop_ends_a_running_guest),
		cmocka_unit_test(bad_kernels_are_refused),
		cmocka_unit_test(kvm_must_be_kvm),
		cmocka_unit_test(verbs_in_the_wrong_order),
		cmocka_unit_test(nonsense_is_answered_and_leaks_nothing),
		cmocka_unit_test(clients_may_vanish),
		cmocka_unit_test(pause_and_resume_again_and_again),
		cmocka_unit_test(save_and_restore_again_and_again),
		cmocka_unit_test(save_and_restore_above_3_gib),
		cmocka_unit_test(two_guests_from_one_save),
		cmocka_unit_test(damaged_saves_are_refused),
	};

	if (argc < 3) {
		fprintf(stderr, "usage: run_guest VMM PAYLOAD [TEST PATTERN]\n");
		return 2;
	}
	if (!kvm_usable())
		return SKIPPED;
	vmm_program = argv[1];
	payload = argv[2];
	if (argc > 3)
		cmocka_set_test_filter(argv[3]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
