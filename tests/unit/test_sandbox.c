/* States, reasons, money, manifests, images and disks: the parts that need no guest. */
#include <errno.h>
#include <fcntl.h>
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

#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/sha256.h"
#include "sandbox/disk.h"
#include "sandbox/images.h"
#include "sandbox/state.h"
#include "sandbox/usage.h"

/* ---- states ---- */

static void test_transitions(void **state)
{
	(void)state;
	assert_true(state_may_follow(SANDBOX_CREATING, SANDBOX_RUNNING));
	assert_true(state_may_follow(SANDBOX_STOPPED, SANDBOX_RUNNING));
	assert_true(state_may_follow(SANDBOX_FAILED, SANDBOX_RUNNING));
	assert_false(state_may_follow(SANDBOX_STOPPED, SANDBOX_STOPPING));
	assert_false(state_may_follow(SANDBOX_CREATING, SANDBOX_STOPPED));
	assert_false(state_may_follow(SANDBOX_RUNNING, SANDBOX_RUNNING));
	for (int s = 0; s < SANDBOX_STATES; s++) {
		/* Known fault 14: delete works from every state; and nothing leaves "deleted". */
		assert_int_equal(state_may_follow((enum sandbox_state)s, SANDBOX_DELETED),
				 s != SANDBOX_DELETED);
		assert_false(state_may_follow(SANDBOX_DELETED, (enum sandbox_state)s));
	}
}

static void test_end_reasons(void **state)
{
	static const struct {
		const char *vmm, *serial;
		bool oom;
		const char *reason;
		enum sandbox_state after;
	} cases[] = {
		{ "poweroff", "", false, "poweroff", SANDBOX_STOPPED },
		{ "reset", "bye", false, "reboot", SANDBOX_STOPPED },
		{ "reset", "x\nKernel panic - not syncing", false, "panic", SANDBOX_FAILED },
		{ "triple_fault", NULL, false, "triple_fault", SANDBOX_FAILED },
		{ "triple_fault", "Kernel panic", false, "panic", SANDBOX_FAILED },
		{ "error", "", false, "vmm_error", SANDBOX_FAILED },
		{ NULL, NULL, false, "vmm_crashed", SANDBOX_FAILED },
		{ NULL, NULL, true, "out_of_memory", SANDBOX_FAILED },
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		const char *r = state_end_reason(cases[i].vmm, cases[i].serial, cases[i].oom);

		assert_string_equal(r, cases[i].reason);
		assert_int_equal(state_after_end(r), cases[i].after);
	}
}

/* ---- money ---- */

static void test_usage(void **state)
{
	const struct usage_prices p = usage_default_prices;
	struct store_usage u, due;

	(void)state;
	/* One CPU busy for an hour beside 1 GiB: 25,000 + 7,500 micros. */
	u = usage_total(&p, 3600LL * 1000000000, 3600000, 1024);
	assert_int_equal(u.cost_micros, 32500);
	assert_int_equal(u.memory_mib_ms, 1024LL * 3600000);
	/* Idle: 1/20 of a CPU. */
	u = usage_total(&p, 0, 3600000, 1024);
	assert_int_equal(u.cost_micros, 1250 + 7500);
	assert_int_equal(u.cpu_ns, 0);
	/* Ten-second ticks add up to the hour, to the micro. */
	{
		struct store_usage recorded = { 0 };
		int64_t sum = 0;

		for (int i = 1; i <= 360; i++) {
			u = usage_total(&p, i * 7000000LL, i * 10000LL, 512);
			due = usage_since(&u, &recorded);
			sum += due.cost_micros;
			recorded = u;
		}
		assert_int_equal(sum, usage_total(&p, 360 * 7000000LL, 3600000, 512).cost_micros);
	}
	/* 32 CPUs and 64 GiB for a year do not overflow. */
	u = usage_total(&p, 32LL * 365 * 86400 * 1000000000, 365LL * 86400 * 1000, 65536);
	assert_int_equal(u.cost_micros, 8760LL * (32 * 25000 + 64 * 7500));
	/* A clock that went back charges nothing. */
	u = usage_total(&p, 5, -1000, 512);
	assert_int_equal(u.memory_mib_ms, 0);
}

/* ---- manifests ---- */

#define SHA "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
#define DISK_AND_KERNEL                                                            \
	"\"files\":{\"disk\":{\"name\":\"disk.raw\",\"bytes\":1,\"sha256\":\"" SHA \
	"\"},\"kernel\":{\"name\":\"vmlinux\",\"bytes\":2,\"sha256\":\"" SHA "\"}}"

static int parse(const char *text, struct manifest *m)
{
	struct err e = { 0 };
	int r = manifest_parse(text, strlen(text), m, &e);

	if (r < 0)
		assert_string_equal(e.code, "image_corrupt");
	return r;
}

static void test_manifest(void **state)
{
	struct manifest m;

	(void)state;
	assert_int_equal(parse("{\"schema\":1,\"name\":\"base\",\"kernelVersion\":\"6.1\","
			       "\"cmdline\":\"a b\",\"recipe\":\"later\"," DISK_AND_KERNEL "}",
			       &m),
			 0);
	assert_string_equal(m.name, "base");
	assert_string_equal(m.cmdline, "a b");
	assert_string_equal(m.files[MANIFEST_DISK].name, "disk.raw");
	assert_int_equal(m.files[MANIFEST_KERNEL].bytes, 2);
	assert_string_equal(m.files[MANIFEST_INITRD].name, "");
}

static void test_bad_manifests(void **state)
{
	static const char *const bad[] = {
		"",
		"{",
		"{}",
		"{\"schema\":2,\"name\":\"b\",\"kernelVersion\":\"\",\"cmdline\":"
		"\"\"," DISK_AND_KERNEL "}",
		"{\"schema\":1,\"name\":\"../b\",\"kernelVersion\":\"\",\"cmdline\":"
		"\"\"," DISK_AND_KERNEL "}",
		"{\"schema\":1,\"name\":\"b\",\"kernelVersion\":\"\",\"cmdline\":\"\",\"files\":{"
		"\"disk\":{\"name\":\"disk.raw\",\"bytes\":1,\"sha256\":\"" SHA "\"}}}",
		"{\"schema\":1,\"name\":\"b\",\"kernelVersion\":\"\",\"cmdline\":\"\",\"files\":{"
		"\"disk\":{\"name\":\"/etc/shadow\",\"bytes\":1,\"sha256\":\"" SHA "\"},"
		"\"kernel\":{\"name\":\"vmlinux\",\"bytes\":1,\"sha256\":\"" SHA "\"}}}",
		"{\"schema\":1,\"name\":\"b\",\"kernelVersion\":\"\",\"cmdline\":\"\",\"files\":{"
		"\"disk\":{\"name\":\"..\",\"bytes\":1,\"sha256\":\"" SHA "\"},"
		"\"kernel\":{\"name\":\"vmlinux\",\"bytes\":1,\"sha256\":\"" SHA "\"}}}",
		"{\"schema\":1,\"name\":\"b\",\"kernelVersion\":\"\",\"cmdline\":\"\",\"files\":{"
		"\"disk\":{\"name\":\"d\",\"bytes\":-1,\"sha256\":\"" SHA "\"},"
		"\"kernel\":{\"name\":\"vmlinux\",\"bytes\":1,\"sha256\":\"" SHA "\"}}}",
	};
	struct manifest m;

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
		if (parse(bad[i], &m) == 0)
			fail_msg("accepted: %s", bad[i]);
}

/* ---- images ---- */

struct place {
	char dir[32], state[48], import[48];
	const char *imports[1];
	struct images *im;
};

static void write_at(const char *dir, const char *name, const void *p, size_t n)
{
	char path[PATH_MAX];
	struct err e = { 0 };

	assert_in_range(snprintf(path, sizeof(path), "%s/%s", dir, name), 1, sizeof(path) - 1);
	assert_int_equal(fd_write_file_atomic(path, p, n, 0644, &e), 0);
}

static void sha_of(const void *p, size_t n, char out[SHA256_HEX_LEN])
{
	struct sha256 h;

	sha256_init(&h);
	sha256_add(&h, p, n);
	sha256_end_hex(&h, out);
}

/* An image whose disk is `disk`, claimed to have the digest of `claimed`. */
static void put_image(const struct place *p, const char *name, const char *disk,
		      const char *claimed)
{
	char dir[PATH_MAX], text[1024], disk_sha[SHA256_HEX_LEN], kernel_sha[SHA256_HEX_LEN];

	snprintf(dir, sizeof(dir), "%s/%s", p->import, name);
	mkdir(dir, 0755);
	sha_of(claimed, strlen(claimed), disk_sha);
	sha_of("kernel", 6, kernel_sha);
	write_at(dir, "disk.raw", disk, strlen(disk));
	write_at(dir, "vmlinux", "kernel", 6);
	snprintf(text, sizeof(text),
		 "{\"schema\":1,\"name\":\"%s\",\"kernelVersion\":\"6.1\",\"cmdline\":\"\","
		 "\"files\":{\"disk\":{\"name\":\"disk.raw\",\"bytes\":%zu,\"sha256\":\"%s\"},"
		 "\"kernel\":{\"name\":\"vmlinux\",\"bytes\":6,\"sha256\":\"%s\"}}}",
		 name, strlen(claimed), disk_sha, kernel_sha);
	write_at(dir, "manifest.json", text, strlen(text));
}

static int place_new(void **state)
{
	struct place *p = calloc(1, sizeof(*p));
	char path[PATH_MAX];
	struct err e = { 0 };

	snprintf(p->dir, sizeof(p->dir), "/tmp/cloche-images-XXXXXX");
	assert_non_null(mkdtemp(p->dir));
	snprintf(p->state, sizeof(p->state), "%s/state", p->dir);
	snprintf(p->import, sizeof(p->import), "%s/import", p->dir);
	mkdir(p->state, 0755);
	mkdir(p->import, 0755);
	snprintf(path, sizeof(path), "%s/images", p->state);
	mkdir(path, 0755);
	p->imports[0] = p->import;
	assert_int_equal(images_new(p->state, p->imports, 1, &p->im, &e), 0);
	*state = p;
	return 0;
}

static int place_free(void **state)
{
	static const char *const subs[] = {
		"/state/images/base", "/state/images", "/state", "/import/base",
		"/import/bad",	      "/import",       ""
	};
	struct place *p = *state;
	char path[PATH_MAX];

	images_free(p->im);
	for (size_t i = 0; i < ARRAY_SIZE(subs); i++) {
		snprintf(path, sizeof(path), "%s%s", p->dir, subs[i]);
		disk_remove_dir(path, NULL);
	}
	/* A failed import leaves nothing behind, so the whole is gone now. */
	assert_int_equal(access(p->dir, F_OK), -1);
	free(p);
	return 0;
}

static void open_and_read(struct place *p, const char *want)
{
	struct image i = IMAGE_NONE;
	struct err e = { 0 };
	char text[64] = { 0 };

	if (images_open(p->im, "base", &i, &e) < 0)
		fail_msg("%s: %s", e.code, e.msg);
	assert_true(pread(i.fds[MANIFEST_DISK], text, sizeof(text) - 1, 0) >= 0);
	assert_string_equal(text, want);
	assert_true(i.fds[MANIFEST_KERNEL] >= 0);
	assert_int_equal(i.fds[MANIFEST_INITRD], -1);
	image_close(&i);
}

static void test_import(void **state)
{
	struct place *p = *state;
	_cleanup_json_ json_t *list = NULL;
	struct err e = { 0 };

	put_image(p, "base", "disk one", "disk one");
	open_and_read(p, "disk one"); /* imported because it was asked for */
	assert_int_equal(images_list(p->im, &list, &e), 0);
	assert_int_equal(json_array_size(list), 1);
	assert_string_equal(json_get_str(json_array_get(list, 0), "name", ""), "base");
	put_image(p, "base", "disk two!", "disk two!");
	open_and_read(p, "disk one"); /* replaced by a rescan only */
	images_rescan(p->im);
	open_and_read(p, "disk two!");
}

static void test_corrupt_import(void **state)
{
	struct place *p = *state;
	struct image i = IMAGE_NONE;
	struct err e = { 0 };

	put_image(p, "bad", "disk 0ne", "disk one");
	assert_true(images_open(p->im, "bad", &i, &e) < 0);
	assert_string_equal(e.code, "image_corrupt");
	assert_non_null(strstr(e.msg, "SHA-256"));
	assert_true(e.fix[0] != '\0');
	put_image(p, "bad", "disk one, longer", "disk one");
	assert_true(images_open(p->im, "bad", &i, &e) < 0);
	assert_string_equal(e.code, "image_corrupt");
}

static void test_damaged_later(void **state)
{
	struct place *p = *state;
	struct image i = IMAGE_NONE;
	struct err e = { 0 };
	char dir[PATH_MAX];

	put_image(p, "base", "disk one", "disk one");
	open_and_read(p, "disk one");
	snprintf(dir, sizeof(dir), "%s/images/base", p->state);
	write_at(dir, "disk.raw", "disk 0ne", 8); /* another inode: verified again */
	assert_true(images_open(p->im, "base", &i, &e) < 0);
	assert_string_equal(e.code, "image_corrupt");
	write_at(dir, "disk.raw", "disk one", 8);
	open_and_read(p, "disk one");
}

static void test_unknown_image(void **state)
{
	struct place *p = *state;
	struct image i = IMAGE_NONE;
	struct err e = { 0 };

	assert_int_equal(images_open(p->im, "nosuch", &i, &e), -ENOENT);
	assert_string_equal(e.code, "image_not_found");
	put_image(p, "base", "d", "d");
	open_and_read(p, "d");
	assert_int_equal(images_open(p->im, "nosuch", &i, &e), -ENOENT);
	assert_non_null(strstr(e.msg, "base")); /* names those there are */
}

/* ---- disks ---- */

static void test_disk_copy(void **state)
{
	char dir[] = "/tmp/cloche-disk-XXXXXX", path[64], buf[8] = { 0 };
	_cleanup_close_ int src = -1, dst = -1;
	struct err e = { 0 };
	struct stat st;

	(void)state;
	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/src", dir);
	src = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	assert_int_equal(ftruncate(src, 64 << 20), 0);
	assert_int_equal(pwrite(src, "middle", 6, 32 << 20), 6);
	snprintf(path, sizeof(path), "%s/dst", dir);
	assert_int_equal(disk_copy(src, path, 128 << 20, &e), 0);
	dst = open(path, O_RDONLY | O_CLOEXEC);
	assert_int_equal(fstat(dst, &st), 0);
	assert_int_equal(st.st_size, 128 << 20);
	assert_true(st.st_blocks * 512 <= 1 << 20); /* the holes stayed holes */
	assert_int_equal(pread(dst, buf, 6, 32 << 20), 6);
	assert_string_equal(buf, "middle");
	assert_true(disk_copy(src, path, 128 << 20, &e) < 0); /* exists */
	assert_int_equal(access(path, F_OK), 0);
	assert_int_equal(disk_remove_dir(dir, &e), 0);
	assert_int_equal(disk_remove_dir(dir, &e), 0);
}

#define IMAGE_TEST(f) cmocka_unit_test_setup_teardown(f, place_new, place_free)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_transitions),   cmocka_unit_test(test_end_reasons),
		cmocka_unit_test(test_usage),	      cmocka_unit_test(test_manifest),
		cmocka_unit_test(test_bad_manifests), IMAGE_TEST(test_import),
		IMAGE_TEST(test_corrupt_import),      IMAGE_TEST(test_damaged_later),
		IMAGE_TEST(test_unknown_image),	      cmocka_unit_test(test_disk_copy),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
