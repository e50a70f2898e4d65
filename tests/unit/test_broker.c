/* Requests to the broker, records of VMMs, and control groups in a file tree made for the test. */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "broker/cgroup.h"
#include "broker/msg.h"
#include "broker/record.h"

#define ID "sbx_abcdefghij0123456789"

static int parse(const char *text, struct broker_request *out)
{
	struct err e = { 0 };
	int r = broker_msg_parse(text, strlen(text), out, &e);

	if (r < 0)
		assert_string_equal(e.code, "bad_request");
	return r;
}

static void test_requests(void **state)
{
	struct broker_request r;

	(void)state;
	assert_int_equal(
		parse("{\"op\":\"vmm_spawn\",\"id\":\"" ID "\",\"vcpus\":2,\"memoryMiB\":512}", &r),
		0);
	assert_int_equal(r.op, BROKER_VMM_SPAWN);
	assert_string_equal(r.id, ID);
	assert_int_equal(r.vcpus, 2);
	assert_int_equal(r.memory_mib, 512);
	assert_int_equal(parse("{\"op\":\"vmm_list\"}", &r), 0);
	assert_string_equal(r.id, "");
	assert_int_equal(parse("{\"op\":\"vmm_list\",\"after\":\"" ID "\"}", &r), 0);
	assert_string_equal(r.id, ID);
	assert_int_equal(parse("{\"op\":\"open_kvm\"}", &r), 0);
}

static void test_refused_requests(void **state)
{
	static const char *const bad[] = {
		"",
		"[]",
		"{}",
		"{\"op\":1}",
		"{\"op\":\"vmm_spawn\"}",
		"{\"op\":\"run\",\"id\":\"" ID "\"}",
		"{\"op\":\"vmm_kill\",\"id\":\"../../etc/passwd\"}",
		"{\"op\":\"vmm_kill\",\"id\":\"sbx_abcdefghij012345678/\"}",
		"{\"op\":\"vmm_kill\",\"id\":\"" ID "\",\"pid\":1}",
		"{\"op\":\"vmm_spawn\",\"id\":\"" ID "\",\"vcpus\":0,\"memoryMiB\":512}",
		"{\"op\":\"vmm_spawn\",\"id\":\"" ID "\",\"vcpus\":33,\"memoryMiB\":512}",
		"{\"op\":\"vmm_spawn\",\"id\":\"" ID "\",\"vcpus\":1,\"memoryMiB\":4294967808}",
		"{\"op\":\"vmm_spawn\",\"id\":\"" ID
		"\",\"vcpus\":1,\"memoryMiB\":64,\"path\":\"/\"}",
		"{\"op\":\"open_kvm\",\"op\":\"vmm_list\"}",
	};
	struct broker_request r = { .op = BROKER_OPEN_KVM };

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
		if (parse(bad[i], &r) == 0)
			fail_msg("accepted: %s", bad[i]);
	assert_int_equal(r.op, BROKER_OPEN_KVM); /* untouched by failures */
}

static void test_record(void **state)
{
	char dir[] = "/tmp/cloche-record-XXXXXX", path[64];
	const struct record in = { .pid = 4711, .start = 123456789012ULL, .uid = 64100 };
	struct record out = { 0 };
	struct err e;

	(void)state;
	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/r.json", dir);
	assert_int_equal(record_write(path, &in, &e), 0);
	assert_int_equal(record_read(path, &out, &e), 0);
	assert_int_equal(out.pid, 4711);
	assert_true(out.start == in.start);
	assert_int_equal(out.uid, 64100);
	assert_true(record_parse("{\"pid\":-1,\"start\":0,\"uid\":1}", 28, &out, &e) < 0);
	assert_true(record_parse("{\"pid\":1,\"start\":0,\"uid\":0}", 27, &out, &e) < 0);
	unlink(path);
	rmdir(dir);
}

static void test_process_start(void **state)
{
	unsigned long long a = 0, b = 0;

	(void)state;
	assert_int_equal(record_process_start(getpid(), &a), 0);
	assert_int_equal(record_process_start(getpid(), &b), 0);
	assert_true(a > 0 && a == b);
	assert_int_equal(record_process_start(0x7ffffff0, &a), -ESRCH);
}

/* ---- control groups ---- */

struct tree {
	char root[32];
};

static void put(const struct tree *t, const char *path, const char *text)
{
	char full[PATH_MAX];
	struct err e = { 0 };

	snprintf(full, sizeof(full), "%s%s", t->root, path);
	assert_int_equal(fd_write_file_atomic(full, text, strlen(text), 0644, &e), 0);
}

static void dir(const struct tree *t, const char *path)
{
	char full[PATH_MAX];

	snprintf(full, sizeof(full), "%s%s", t->root, path);
	if (mkdir(full, 0755) < 0)
		assert_int_equal(errno, EEXIST);
}

static void assert_file(const struct tree *t, const char *path, const char *want)
{
	_cleanup_buf_ struct buf b = { 0 };
	char full[PATH_MAX];
	struct err e = { 0 };

	snprintf(full, sizeof(full), "%s%s", t->root, path);
	assert_int_equal(fd_read_file(full, &b, 4096, &e), 0);
	assert_string_equal(b.data, want);
}

static void tree_new(struct tree *t, const char *mountinfo)
{
	snprintf(t->root, sizeof(t->root), "/tmp/cloche-cgroup-XXXXXX");
	assert_non_null(mkdtemp(t->root));
	put(t, "/mountinfo", mountinfo);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	return remove(path);
}

static void tree_free(struct tree *t)
{
	assert_int_equal(nftw(t->root, remove_one, 8, FTW_DEPTH | FTW_PHYS), 0);
}

static int init(struct tree *t, struct cgroup *c)
{
	char path[PATH_MAX];
	struct err e = { 0 };

	snprintf(path, sizeof(path), "%s/mountinfo", t->root);
	return cgroup_init(c, path, t->root, "cloche", &e);
}

static const struct cgroup_limits limits = { .memory_bytes = 640ULL << 20,
					     .cpu_percent = 250,
					     .pids = 66 };

static const char v2_only[] =
	"25 1 0:22 / / rw - ext4 /dev/vda rw\n"
	"30 25 0:26 / /cg rw,nosuid shared:9 - cgroup2 cgroup2 rw,favordynmods\n";

static void test_cgroup_v2(void **state)
{
	struct tree t;
	struct cgroup c;
	struct err e = { 0 };
	int fd;

	(void)state;
	tree_new(&t, v2_only);
	dir(&t, "/cg");
	put(&t, "/cg/cgroup.controllers", "cpuset cpu io memory pids\n");
	put(&t, "/cg/cgroup.subtree_control", "");
	dir(&t, "/cg/cloche");
	put(&t, "/cg/cloche/cgroup.subtree_control", "");
	assert_int_equal(init(&t, &c), 0);
	assert_true(c.on_v2[CGROUP_MEMORY] && c.on_v2[CGROUP_CPU] && c.on_v2[CGROUP_PIDS]);
	/* In a plain file each write overlays the one before: "+memory", "+cpu", "+pids". */
	assert_file(&t, "/cg/cgroup.subtree_control", "+pidsry");
	assert_file(&t, "/cg/cloche/cgroup.subtree_control", "+pidsry");
	dir(&t, "/cg/cloche/" ID);
	put(&t, "/cg/cloche/" ID "/memory.max", "");
	put(&t, "/cg/cloche/" ID "/memory.oom.group", "");
	put(&t, "/cg/cloche/" ID "/cpu.max", "");
	put(&t, "/cg/cloche/" ID "/pids.max", "");
	assert_int_equal(cgroup_make(&c, ID, &limits, &fd, &e), 0);
	assert_true(fd >= 0);
	close(fd);
	assert_file(&t, "/cg/cloche/" ID "/memory.max", "671088640");
	assert_file(&t, "/cg/cloche/" ID "/memory.oom.group", "1");
	assert_file(&t, "/cg/cloche/" ID "/cpu.max", "250000 100000");
	assert_file(&t, "/cg/cloche/" ID "/pids.max", "66");
	assert_false(cgroup_oom_killed(&c, ID));
	put(&t, "/cg/cloche/" ID "/memory.events", "low 0\noom 2\noom_kill 1\n");
	assert_true(cgroup_oom_killed(&c, ID));
	put(&t, "/cg/cloche/" ID "/memory.events", "low 0\noom 2\noom_kill 0\n");
	assert_false(cgroup_oom_killed(&c, ID));
	tree_free(&t);
}

static const char v1_and_empty_v2[] =
	"30 25 0:26 / /cg rw - tmpfs tmpfs rw\n"
	"31 30 0:27 / /cg/unified rw - cgroup2 cgroup2 rw\n"
	"32 30 0:28 / /cg/memory rw - cgroup cgroup rw,memory\n"
	"33 30 0:29 / /cg/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
	"34 30 0:30 / /cg/cpuset rw - cgroup cgroup rw,cpuset\n";

static void test_cgroup_v1_where_v2_lacks(void **state)
{
	struct tree t;
	struct cgroup c;
	struct err e = { 0 };
	int fd;

	(void)state;
	tree_new(&t, v1_and_empty_v2);
	dir(&t, "/cg");
	dir(&t, "/cg/unified");
	dir(&t, "/cg/memory");
	dir(&t, "/cg/cpu,cpuacct");
	put(&t, "/cg/unified/cgroup.controllers", "");
	assert_int_equal(init(&t, &c), 0);
	assert_false(c.on_v2[CGROUP_MEMORY] || c.on_v2[CGROUP_CPU] || c.on_v2[CGROUP_PIDS]);
	assert_string_equal(c.v1[CGROUP_PIDS], ""); /* nobody has it: warned, left out */
	dir(&t, "/cg/memory/cloche/" ID);
	dir(&t, "/cg/cpu,cpuacct/cloche/" ID);
	put(&t, "/cg/memory/cloche/" ID "/memory.limit_in_bytes", "");
	put(&t, "/cg/cpu,cpuacct/cloche/" ID "/cpu.cfs_period_us", "");
	put(&t, "/cg/cpu,cpuacct/cloche/" ID "/cpu.cfs_quota_us", "");
	assert_int_equal(cgroup_make(&c, ID, &limits, &fd, &e), 0);
	assert_int_equal(fd, -1);
	assert_file(&t, "/cg/memory/cloche/" ID "/memory.limit_in_bytes", "671088640");
	assert_file(&t, "/cg/cpu,cpuacct/cloche/" ID "/cpu.cfs_quota_us", "250000");
	put(&t, "/cg/memory/cloche/" ID "/cgroup.procs", "");
	put(&t, "/cg/cpu,cpuacct/cloche/" ID "/cgroup.procs", "");
	assert_int_equal(cgroup_add_v1(&c, ID, 4711, &e), 0);
	assert_file(&t, "/cg/memory/cloche/" ID "/cgroup.procs", "4711");
	put(&t, "/cg/memory/cloche/" ID "/memory.oom_control",
	    "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n");
	assert_true(cgroup_oom_killed(&c, ID));
	tree_free(&t);
}

static void test_cgroup_failure_names_the_file(void **state)
{
	struct tree t;
	struct cgroup c;
	struct err e = { 0 };
	int fd;

	(void)state;
	tree_new(&t, v1_and_empty_v2);
	dir(&t, "/cg");
	dir(&t, "/cg/unified");
	dir(&t, "/cg/memory");
	dir(&t, "/cg/cpu,cpuacct");
	put(&t, "/cg/unified/cgroup.controllers", "");
	assert_int_equal(init(&t, &c), 0);
	assert_true(cgroup_make(&c, ID, &limits, &fd, &e) < 0);
	assert_non_null(strstr(e.msg, "memory.limit_in_bytes"));
	assert_int_equal(cgroup_remove(&c, ID, &e), 0); /* nothing is there any more */
	tree_free(&t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_requests),
		cmocka_unit_test(test_refused_requests),
		cmocka_unit_test(test_record),
		cmocka_unit_test(test_process_start),
		cmocka_unit_test(test_cgroup_v2),
		cmocka_unit_test(test_cgroup_v1_where_v2_lacks),
		cmocka_unit_test(test_cgroup_failure_names_the_file),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
