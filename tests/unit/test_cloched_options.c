/* Command line and configuration file of cloched. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/err.h"
#include "base/fd.h"
#include "cloched/options.h"

#define ARGS(...) ((const char *const[]){ "cloched", __VA_ARGS__, NULL })

static int parse(const char *const *argv, struct options *o, struct err *e)
{
	int argc = 0;

	while (argv[argc])
		argc++;
	return options_parse(argc, argv, o, e);
}

static void test_defaults(void **state)
{
	struct options o;
	struct err e = { 0 };

	(void)state;
	assert_int_equal(parse((const char *const[]){ "cloched", NULL }, &o, &e), 0);
	assert_string_equal(o.state_dir, "/var/lib/cloche");
	assert_string_equal(o.address, "127.0.0.1");
	assert_int_equal(o.port, 7070);
	assert_int_equal(o.uid_first, 64100);
	assert_false(o.no_jail);
	options_free(&o);
}

static void test_command_line(void **state)
{
	static const char *const argv[] = {
		"cloched", "--listen=[::1]:0", "-state-dir", "/s", "--import-dir",
		"/a",	   "--import-dir=/b",  "--vcpus",    "4",  NULL
	};
	struct options o;
	struct err e = { 0 };

	(void)state;
	assert_int_equal(parse(argv, &o, &e), 0);
	assert_string_equal(o.address, "::1");
	assert_int_equal(o.port, 0);
	assert_string_equal(o.state_dir, "/s");
	assert_int_equal(o.import_dirs_n, 2);
	assert_string_equal(o.import_dirs[1], "/b");
	assert_int_equal(o.vcpus, 4);
	options_free(&o);
}

static void assert_refused(const char *const *argv, const char *msg, const char *fix)
{
	struct options o;
	struct err e = { 0 };

	assert_true(parse(argv, &o, &e) < 0);
	assert_string_equal(e.code, "usage");
	assert_non_null(strstr(e.msg, msg));
	assert_non_null(strstr(e.fix, fix));
	options_free(&o);
}

static void test_refused(void **state)
{
	(void)state;
	assert_refused(ARGS("--state-dri", "/s"), "no option --state-dri", "--state-dir");
	assert_refused(ARGS("--vcpus", "99"), "--vcpus needs a number from 1 to 32", "");
	assert_refused(ARGS("--vcpus"), "needs a value", "");
	assert_refused(ARGS("--listen", "nowhere"), "ADDRESS:PORT", "");
	assert_refused(ARGS("--listen", "1.2.3.4:70000"), "ADDRESS:PORT", "");
	assert_refused(ARGS("serve"), "unexpected argument", "");
}

static void test_file(void **state)
{
	char path[] = "/tmp/cloche-conf-XXXXXX";
	int fd = mkstemp(path);
	struct options o;
	struct err e = { 0 };

	(void)state;
	assert_int_equal(fd_write_full(fd, "# a host\nvcpus = 3\nmemory-mib = 256\n", 36), 0);
	assert_int_equal(parse(ARGS("--config", path, "--vcpus", "1"), &o, &e), 0);
	assert_int_equal(o.vcpus, 1); /* the command line wins */
	assert_int_equal(o.memory_mib, 256);
	options_free(&o);
	assert_int_equal(fd_write_full(fd, "memory-mb = 1\n", 14), 0);
	assert_refused(ARGS("--config", path), "line 4", "--memory-mib");
	close(fd);
	unlink(path);
	assert_refused(ARGS("--config", path), "cannot be read", "");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_defaults),
		cmocka_unit_test(test_command_line),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_file),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
