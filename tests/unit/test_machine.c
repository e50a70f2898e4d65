/* Machine mode's judgement and bookkeeping: no machine is started here. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/fd.h"
#include "image/args.h"
#include "image/tree.h"
#include "machine/control.h"
#include "machine/doctor.h"
#include "machine/machine.h"
#include "machine/pidrec.h"
#include "machine/probe.h"
#include "machine/qemu.h"
#include "machine/service.h"
#include "machine/sysimage.h"

/* ---- probe ---- */

static enum probe_kind judge(struct probe_facts f)
{
	struct probe p;

	probe_classify(&f, &p);
	assert_true(p.reason[0] != '\0');
	if (p.kind == PROBE_ABSENT || p.kind == PROBE_INTERPRETED)
		assert_true(p.fix[0] != '\0');
	return p.kind;
}

static void kvm_is_judged_by_speed(void **state)
{
	struct probe p;

	(void)state;
	/* Measured: bare metal, our lab (emulated SVM), and kvm_pvm, which interprets ring 0. */
	assert_int_equal(judge((struct probe_facts){
				 .api_version = 12, .instr_per_s = 3.1e9, .cpu_virt = true }),
			 PROBE_NATIVE);
	assert_int_equal(judge((struct probe_facts){ .api_version = 12,
						     .instr_per_s = 763e6,
						     .hypervisor = true,
						     .cpu_virt = true }),
			 PROBE_NESTED);
	assert_int_equal(judge((struct probe_facts){
				 .api_version = 12, .instr_per_s = 0.9e6, .hypervisor = true }),
			 PROBE_INTERPRETED);
	assert_int_equal(judge((struct probe_facts){ .api_version = 12, .instr_per_s = 99e6 }),
			 PROBE_INTERPRETED);
	assert_int_equal(judge((struct probe_facts){ .open_errnum = ENOENT }), PROBE_ABSENT);
	assert_int_equal(judge((struct probe_facts){ .open_errnum = EACCES, .cpu_virt = true }),
			 PROBE_ABSENT);
	assert_int_equal(judge((struct probe_facts){
				 .api_version = 12, .vm_errnum = EINVAL, .instr_per_s = 1e9 }),
			 PROBE_ABSENT);
	assert_int_equal(judge((struct probe_facts){ .api_version = 11, .instr_per_s = 1e9 }),
			 PROBE_ABSENT);

	probe_classify(&(struct probe_facts){ .open_errnum = EACCES }, &p);
	assert_non_null(strstr(p.fix, "group kvm"));
}

static void the_mode_follows(void **state)
{
	(void)state;
	assert_string_equal(doctor_mode(PROBE_NATIVE, true), "native");
	assert_string_equal(doctor_mode(PROBE_NESTED, true), "native");
	assert_string_equal(doctor_mode(PROBE_NATIVE, false), "machine");
	assert_string_equal(doctor_mode(PROBE_INTERPRETED, true), "machine");
	assert_string_equal(doctor_mode(PROBE_ABSENT, true), "machine");
}

static void a_report_is_whole(void **state)
{
	struct cloche_paths paths = { .home = "/tmp", .images = "/tmp/i", .machine = "/tmp/m" };
	static struct doctor_report r;
	_cleanup_json_ json_t *doc = NULL;

	(void)state;
	doctor_run(&paths, 7070, &r);
	doc = doctor_json(&r);
	assert_non_null(doc);
	assert_true(json_array_size(json_object_get(doc, "checks")) >= 8);
	assert_string_equal(json_get_str(doc, "kind", ""), probe_kind_name(r.probe.kind));
}

/* ---- processes ---- */

static void start_times_are_parsed(void **state)
{
	(void)state;
	assert_int_equal(pidrec_parse_start("7 (a) b) 3) S 1 7 7 0 -1 4194560 1 0 0 0 1 2 0 0 20 0 "
					    "1 0 123456 10 20"),
			 123456);
	assert_int_equal(pidrec_parse_start("7 (a) S 1 7 7"), 0);
	assert_int_equal(pidrec_parse_start(""), 0);
}

static void a_stale_record_names_nobody(void **state)
{
	struct pidrec mine, stranger, gone;
	int fd;
	pid_t pid;

	(void)state;
	assert_int_equal(pidrec_of(getpid(), &mine), 0);
	fd = pidrec_open(&mine);
	assert_true(fd >= 0);
	assert_int_equal(pidrec_wait(fd, 0), -ETIME);
	close(fd);
	/* The number is used again by a process that started at another time. */
	stranger = mine;
	stranger.start--;
	assert_int_equal(pidrec_open(&stranger), -ESRCH);

	pid = fork();
	if (pid == 0) {
		pause();
		_exit(0);
	}
	assert_int_equal(pidrec_of(pid, &gone), 0);
	fd = pidrec_open(&gone);
	assert_true(fd >= 0);
	assert_int_equal(pidrec_end(fd, 5000), 0);
	close(fd);
	/* A zombie is no running process. */
	assert_int_equal(pidrec_open(&gone), -ESRCH);
	waitpid(pid, NULL, 0);
	assert_int_equal(pidrec_open(&gone), -ESRCH);
	assert_int_equal(pidrec_open(&(struct pidrec){ 0 }), -ESRCH);
}

static void services_are_found_again(void **state)
{
	static const char *const sleeper[] = { "sleep", "600", NULL };
	static const char *const nothing[] = { "/nonexistent/program", NULL };
	char dir[] = "/tmp/cloche-test-XXXXXX", log[64], tail[64];
	_cleanup_json_ json_t *doc = NULL;
	struct err e = { 0 };
	struct pidrec r, found;
	int fd;

	(void)state;
	assert_non_null(mkdtemp(dir));
	snprintf(log, sizeof(log), "%s/log", dir);
	assert_true(service_spawn(nothing, "/", log, &r, &e) < 0);
	assert_non_null(strstr(e.msg, "/nonexistent/program"));
	assert_int_equal(service_find(dir, "s", &found, NULL), -ESRCH);

	assert_int_equal(service_spawn(sleeper, "/", log, &r, &e), 0);
	assert_int_equal(service_save(dir, "s", &r, NULL, &e), 0);
	fd = service_find(dir, "s", &found, &doc);
	assert_true(fd >= 0);
	assert_int_equal(found.pid, r.pid);
	assert_int_equal(json_get_int(doc, "pid", 0), r.pid);
	assert_int_equal(pidrec_end(fd, 5000), 0);
	close(fd);
	assert_int_equal(service_find(dir, "s", &found, NULL), -ESRCH);

	assert_int_equal(fd_write_file_atomic(log, "first\nsecond\033[1m\r\n", 19, 0600, &e), 0);
	service_tail(log, tail, sizeof(tail));
	assert_string_equal(tail, "first\nsecond[1m\n");
	service_tail(log, tail, 16);
	assert_string_equal(tail, "second[1m\n");
	tree_remove(dir);
}

/* ---- QEMU ---- */

static void versions_are_read(void **state)
{
	int major, minor;

	(void)state;
	assert_int_equal(
		qemu_parse_version("QEMU emulator version 7.2.22 (Debian 1:7.2)\n", &major, &minor),
		0);
	assert_int_equal(major, 7);
	assert_int_equal(minor, 2);
	assert_int_equal(qemu_parse_version("QEMU emulator version 10.0", &major, &minor), 0);
	assert_int_equal(major, 10);
	assert_true(qemu_parse_version("bash: not found", &major, &minor) < 0);
	assert_true(qemu_parse_version("version x", &major, &minor) < 0);
}

static bool has_arg(const struct args *a, const char *text)
{
	for (size_t i = 0; i < a->n; i++)
		if (strstr(a->argv[i], text))
			return true;
	return false;
}

static void arguments_fit_the_host(void **state)
{
	struct qemu q = { .path = "qemu" };
	struct qemu_config c = { .vcpus = 2,
				 .memory_mib = 2048,
				 .tb_mib = 512,
				 .api_port = 7070,
				 .images = "/a,readonly=off" };
	_cleanup_args_ struct args tcg = { 0 }, kvm = { 0 };

	(void)state;
	qemu_args(&tcg, &q, &c);
	assert_false(tcg.failed);
	assert_true(has_arg(&tcg, "tcg,thread=multi,tb-size=512"));
	assert_true(has_arg(&tcg, "mitigations=off"));
	assert_true(has_arg(&tcg, "hostfwd=tcp:127.0.0.1:7070-"));
	/* A comma in a folder's name does not become an option. */
	assert_true(has_arg(&tcg, "path=/a,,readonly=off,security_model"));
	c.kvm = true;
	qemu_args(&kvm, &q, &c);
	assert_true(has_arg(&kvm, "host"));
	assert_false(has_arg(&kvm, "mitigations=off"));
	assert_false(has_arg(&kvm, "tcg"));
}

static void memory_has_bounds(void **state)
{
	(void)state;
	assert_int_equal(machine_default_memory_mib(24000), 4096);
	assert_int_equal(machine_default_memory_mib(6000), 3000);
	assert_int_equal(machine_default_memory_mib(1500), 1024);
}

static void answers_end_with_a_verdict(void **state)
{
	(void)state;
	assert_int_equal(control_verdict("ok"), 1);
	assert_int_equal(control_verdict("no"), 0);
	assert_int_equal(control_verdict(" ok"), -1);
	assert_int_equal(control_verdict(""), -1);
}

static void a_machine_that_never_was(void **state)
{
	char dir[] = "/tmp/cloche-test-XXXXXX";
	struct machine_status st;
	struct err e = { 0 };
	char key[64];

	(void)state;
	assert_non_null(mkdtemp(dir));
	assert_int_equal(machine_status(dir, &st, &e), 0);
	assert_false(st.running);
	assert_int_equal(machine_stop(dir, 1, &e), 0);
	assert_true(machine_key(dir, key, sizeof(key), &e) < 0);
	assert_int_equal(machine_shell(dir, &e), -ESRCH);
	assert_string_equal(e.code, "machine_stopped");
	/* A record whose pid now belongs to us, who started at another time. */
	assert_int_equal(service_save(dir, "qemu", &(struct pidrec){ getpid(), 1 }, NULL, &e), 0);
	assert_int_equal(machine_status(dir, &st, &e), 0);
	assert_false(st.running);
	assert_int_equal(machine_stop(dir, 1, &e), 0);
	tree_remove(dir);
}

/* ---- system image ---- */

static void digests_follow_the_recipe(void **state)
{
	char dir[] = "/tmp/cloche-test-XXXXXX", path[PATH_MAX];
	char a[SHA256_HEX_LEN], b[SHA256_HEX_LEN], c[SHA256_HEX_LEN];
	struct err e = { 0 };

	(void)state;
	assert_non_null(mkdtemp(dir));
	path_printf(path, "%s/machine", dir);
	assert_int_equal(tree_mkdirs(path, &e), 0);
	path_printf(path, "%s/hooks", dir);
	assert_int_equal(tree_mkdirs(path, &e), 0);
	path_printf(path, "%s/machine/recipe.json", dir);
	assert_int_equal(fd_write_file_atomic(path, "{}", 2, 0644, &e), 0);
	assert_int_equal(sysimage_digest(dir, "bookworm", "src", a, &e), 0);
	assert_int_equal(sysimage_digest(dir, "bookworm", "src", b, &e), 0);
	assert_string_equal(a, b);
	assert_int_equal(sysimage_digest(dir, "trixie", "src", b, &e), 0);
	assert_string_not_equal(a, b);
	assert_int_equal(sysimage_digest(dir, "bookworm", "other", b, &e), 0);
	assert_string_not_equal(a, b);
	assert_int_equal(fd_write_file_atomic(path, "{ }", 3, 0644, &e), 0);
	assert_int_equal(sysimage_digest(dir, "bookworm", "src", c, &e), 0);
	assert_string_not_equal(a, c);
	tree_remove(dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(kvm_is_judged_by_speed),
		cmocka_unit_test(the_mode_follows),
		cmocka_unit_test(a_report_is_whole),
		cmocka_unit_test(start_times_are_parsed),
		cmocka_unit_test(a_stale_record_names_nobody),
		cmocka_unit_test(services_are_found_again),
		cmocka_unit_test(versions_are_read),
		cmocka_unit_test(arguments_fit_the_host),
		cmocka_unit_test(memory_has_bounds),
		cmocka_unit_test(answers_end_with_a_verdict),
		cmocka_unit_test(a_machine_that_never_was),
		cmocka_unit_test(digests_follow_the_recipe),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
