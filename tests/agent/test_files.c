/* File operations of the real agent, as its users see them. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/sha256.h"
#include "harness.h"

static struct harness H;
static const char *agent_path;

static json_t *at(const char *path)
{
	return json_pack("{s:s}", "path", path);
}

/* file.write of n bytes. 0, or negative with e. Releases request. */
static int put(json_t *request, const void *p, size_t n, json_t **st, struct err *e)
{
	_cleanup_agent_conn_ struct agent_conn *c = NULL;
	_cleanup_json_ json_t *req = request;
	int r = agent_open(harness_dial(&H), "file.write", req, &c, e);

	if (r == 0)
		r = agent_write(c, p, n, WAIT_MS, e);
	return r < 0 ? r : agent_write_end(c, NULL, st, WAIT_MS, e);
}

/* file.read into b. 0, or negative with e. Releases request. */
static int get(json_t *request, struct buf *b, char sha[65], struct err *e)
{
	_cleanup_agent_conn_ struct agent_conn *c = NULL;
	_cleanup_json_ json_t *req = request;
	const void *p;
	size_t n;
	int r = agent_open(harness_dial(&H), "file.read", req, &c, e);

	if (r == 0)
		r = agent_reply(c, NULL, WAIT_MS, e);
	while (r == 0 && (r = agent_read(c, &p, &n, WAIT_MS, e)) == 0 && n)
		assert_int_equal(buf_add(b, p, n), 0);
	if (r == 0 && sha)
		snprintf(sha, 65, "%s", agent_read_sha256(c));
	return r;
}

static const char *get_error(const char *path, struct err *e)
{
	_cleanup_buf_ struct buf b = { 0 };

	return get(at(path), &b, NULL, e) < 0 ? e->code : "no error";
}

static const char *put_error(const char *path, struct err *e)
{
	return put(at(path), "x", 1, NULL, e) < 0 ? e->code : "no error";
}

/* The output of shell text that must succeed. */
static void sh(struct run *r, const char *text)
{
	int code = harness_sh(&H, r, text);

	if (code != 0)
		fail_msg("%s: %d %s%s", text, code, r->out.data ? r->out.data : "",
			 r->err.data ? r->err.data : "");
}

static void expect(const char *text, const char *out)
{
	_cleanup_run_ struct run r = { 0 };

	sh(&r, text);
	assert_string_equal(r.out.data ? r.out.data : "", out);
}

static void round_trip_of_every_size(void **state)
{
	static const size_t sizes[] = { 0, 1, 131071, 131072, 131073, 5 << 20 };
	char *bytes = malloc(5 << 20);

	(void)state;
	for (size_t i = 0; i < 5 << 20; i++)
		bytes[i] = (char)(i * 31 + (i >> 9));
	for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
		_cleanup_buf_ struct buf b = { 0 };
		_cleanup_json_ json_t *st = NULL;
		char sha[65], want[SHA256_HEX_LEN];
		struct err e = { 0 };
		struct sha256 s;

		assert_int_equal(
			put(json_pack("{s:s,s:I}", "path", "/mnt/f", "size", (json_int_t)sizes[i]),
			    bytes, sizes[i], &st, &e),
			0);
		assert_int_equal(json_get_int(st, "size", -1), sizes[i]);
		assert_string_equal(json_get_str(st, "user", ""), "agent");
		assert_int_equal(get(at("/mnt/f"), &b, sha, &e), 0);
		assert_int_equal(b.len, sizes[i]);
		assert_memory_equal(b.data ? b.data : "", bytes, sizes[i]);
		sha256_init(&s);
		sha256_add(&s, bytes, sizes[i]);
		sha256_end_hex(&s, want);
		assert_string_equal(sha, want);
	}
	free(bytes);
	expect("rm /mnt/f; ls -A /mnt | grep cloche || true", "");
}

static void ranges(void **state)
{
	static const struct {
		json_int_t offset, length;
		const char *want;
	} cases[] = { { 0, 3, "012" },	     { 4, 3, "456" },
		      { 8, 100, "89" },	     { 10, 1, "" },
		      { 4096, 5, "" },	     { 3, 0, "" },
		      { 9, INT64_MAX, "9" }, { INT64_MAX, INT64_MAX, "" } };
	struct err e = { 0 };

	(void)state;
	assert_int_equal(put(at("/mnt/r"), "0123456789", 10, NULL, &e), 0);
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_buf_ struct buf b = { 0 };

		if (get(json_pack("{s:s,s:I,s:I}", "path", "/mnt/r", "offset", cases[i].offset,
				  "length", cases[i].length),
			&b, NULL, &e) < 0)
			fail_msg("%s (%s)", e.msg, e.code);
		assert_string_equal(b.data ? b.data : "", cases[i].want);
	}
}

static void modes_and_owners(void **state)
{
	struct err e = { 0 };

	(void)state;
	expect("rm -f /mnt/m; umask 077; touch /mnt/m; chmod 751 /mnt/m", "");
	assert_int_equal(put(at("/mnt/m"), "a", 1, NULL, &e), 0); /* keeps the old mode */
	expect("stat -c '%a %U' /mnt/m", "751 agent\n");
	assert_int_equal(
		put(json_pack("{s:s,s:i}", "path", "/mnt/m", "mode", 0604), "a", 1, NULL, &e), 0);
	expect("stat -c '%a %U' /mnt/m", "604 agent\n");
	assert_int_equal(put(json_pack("{s:s,s:s}", "path", "/mnt/root-file", "user", "root"), "a",
			     1, NULL, &e),
			 0);
	expect("stat -c '%a %U %G' /mnt/root-file", "644 root root\n");
	assert_int_equal(put(json_pack("{s:s,s:b}", "path", "/mnt/a/b/c/d", "makeParents", 1), "a",
			     1, NULL, &e),
			 0);
	expect("stat -c '%a %U' /mnt/a/b/c", "755 agent\n");
	expect("rm -r /mnt/a", "");
}

static void paths_that_are_wrong(void **state)
{
	_cleanup_free_ char *longname = calloc(1, 400);
	struct err e = { 0 };

	(void)state;
	assert_string_equal(get_error("/mnt/none", &e), "not_found");
	assert_string_equal(get_error("relative", &e), "bad_request");
	assert_string_equal(get_error("", &e), "bad_request");
	assert_string_equal(get_error("/mnt", &e), "is_a_directory");
	assert_string_equal(get_error("/etc/passwd/x", &e), "not_a_directory");
	assert_string_equal(get_error("/dev/zero", &e), "not_a_file");
	assert_string_equal(get_error("/etc/shadow", &e), "permission_denied");
	assert_string_equal(put_error("/mnt/none/f", &e), "not_found");
	assert_string_equal(put_error("/mnt/", &e), "is_a_directory");
	assert_string_equal(put_error("/mnt/..", &e), "is_a_directory");
	assert_string_equal(put_error("/mnt/home", &e), "is_a_directory");
	assert_string_equal(put_error("/etc/by-agent", &e), "permission_denied");
	assert_string_equal(put_error("/dev/null", &e), "not_a_file");
	assert_string_equal(put_error("/proc/by-agent", &e), "not_found");
	memset(longname, 'n', 399);
	memcpy(longname, "/mnt/", 5);
	assert_string_equal(put_error(longname, &e), "name_too_long");
	assert_string_equal(harness_error(&H, "file.stat",
					  json_pack("{s:s,s:s}", "path", "/", "user", "ghost"), &e),
			    "user_not_found");
}

/* NUL can come in no way: JSON's is refused, a raw one is no JSON. */
static void nul_in_a_path(void **state)
{
	static const char *const texts[] = { "{\"op\":\"file.stat\",\"path\":\"/mnt\\u0000/x\"}",
					     "{\"op\":\"file.stat\",\"path\":\"/mnt\x01/x\"}" };

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(texts); i++) {
		_cleanup_buf_ struct buf b = { 0 };
		char text[64], answer[600] = "";
		int fd = harness_dial(&H);
		size_t n = strlen(texts[i]);
		uint8_t head[8] = { (uint8_t)n, 0, 0, 0, 1 };

		memcpy(text, texts[i], n);
		for (size_t k = 0; k < n; k++)
			if (text[k] == 1)
				text[k] = '\0';
		assert_int_equal(write(fd, head, 8), 8);
		assert_int_equal(write(fd, text, n), n);
		while (b.len < 8 || !memchr(b.data + 8, '}', b.len - 8)) {
			ssize_t got = read(fd, answer, sizeof(answer));

			assert_true(got > 0);
			assert_int_equal(buf_add(&b, answer, (size_t)got), 0);
		}
		assert_int_equal(b.data[4], 17); /* ERROR */
		assert_non_null(strstr(b.data + 8, "\"bad_request\""));
		close(fd);
	}
}

/* ".." is the guest kernel's business and stays in the guest with the user's rights. */
static void dot_dot_is_resolved_by_the_kernel(void **state)
{
	_cleanup_buf_ struct buf b = { 0 };
	struct err e = { 0 };

	(void)state;
	assert_int_equal(get(at("/mnt/home/../../etc/passwd"), &b, NULL, &e), 0);
	assert_int_equal(strncmp(b.data, "root:x:0:0:", 11), 0);
	assert_string_equal(get_error("/mnt/home/../../etc/shadow", &e), "permission_denied");
}

/* 42: what a link points to is opened with the rights of the user who asks, and no other. */
static void fault_42_links_give_no_rights(void **state)
{
	struct err e = { 0 };

	(void)state;
	expect("ln -sfn /etc/shadow /mnt/steal; ln -sfn /root /mnt/dirlink; "
	       "ln -sfn /mnt/loop /mnt/loop",
	       "");
	assert_string_equal(get_error("/mnt/steal", &e), "permission_denied");
	assert_string_equal(get_error("/mnt/loop", &e), "too_many_links");
	assert_string_equal(put_error("/mnt/steal", &e), "permission_denied");
	assert_string_equal(put_error("/mnt/dirlink/f", &e), "permission_denied");
	assert_string_equal(put_error("/mnt/loop", &e), "too_many_links");
}

/* 42: a listing, and a recursive removal, see links and never go through them. */
static void fault_42_trees_stop_at_links(void **state)
{
	_cleanup_json_ json_t *part = NULL;
	_cleanup_agent_conn_ struct agent_conn *c = NULL;
	_cleanup_json_ json_t *req = json_pack("{s:s,s:i}", "path", "/mnt/tree", "depth", 16);
	struct err e = { 0 };
	bool truncated;
	size_t i;
	json_t *st;

	(void)state;
	expect("mkdir -p /mnt/tree/sub /mnt/outside; echo keep > /mnt/outside/file; "
	       "ln -s /mnt/outside /mnt/tree/link; ln -s /mnt/outside/file /mnt/tree/sub/l2",
	       "");
	assert_int_equal(agent_open(harness_dial(&H), "file.list", req, &c, &e), 0);
	assert_int_equal(agent_reply(c, NULL, WAIT_MS, &e), 0);
	assert_int_equal(agent_entries(c, &part, &truncated, WAIT_MS, &e), 0);
	assert_int_equal(json_array_size(part), 3);
	json_array_foreach (part, i, st)
		assert_null(strstr(json_get_str(st, "path", ""), "link/"));
	st = json_array_get(part, 0);
	assert_string_equal(json_get_str(st, "path", ""), "/mnt/tree/link");
	assert_string_equal(json_get_str(st, "type", ""), "symlink");
	assert_string_equal(json_get_str(st, "target", ""), "/mnt/outside");
	json_decref(harness_call(&H, "file.remove",
				 json_pack("{s:s,s:b}", "path", "/mnt/tree", "recursive", 1)));
	expect("test ! -e /mnt/tree && cat /mnt/outside/file; rm -r /mnt/outside", "keep\n");
}

/* A link as the last name is written through, and stays a link. */
static void writing_through_a_link(void **state)
{
	struct err e = { 0 };

	(void)state;
	expect("echo old > /mnt/real; ln -sfn real /mnt/alias", "");
	assert_int_equal(put(at("/mnt/alias"), "new\n", 4, NULL, &e), 0);
	expect("cat /mnt/real; readlink /mnt/alias; rm /mnt/real /mnt/alias", "new\nreal\n");
}

/* The old file is there, whole, until the new one is; and nothing else stays behind. */
static void interrupted_write_leaves_the_old_file(void **state)
{
	_cleanup_json_ json_t *req = at("/mnt/home/atomic");
	_cleanup_run_ struct run r = { 0 };
	struct agent_conn *c;
	char part[300 << 10] = "";
	struct err e = { 0 };

	(void)state;
	assert_int_equal(put(at("/mnt/home/atomic"), "old", 3, NULL, &e), 0);
	assert_int_equal(agent_open(harness_dial(&H), "file.write", req, &c, &e), 0);
	assert_int_equal(agent_write(c, part, sizeof(part), WAIT_MS, &e), 0);
	agent_free(c);
	/* Its helper ends when it sees the end of the stream. */
	sh(&r,
	   "while ls -A /mnt/home | grep -q cloche-; do sleep 0.01; done; cat /mnt/home/atomic");
	assert_string_equal(r.out.data, "old");
}

static void checksums_and_sizes_are_checked(void **state)
{
	_cleanup_agent_conn_ struct agent_conn *c = NULL;
	_cleanup_json_ json_t *req = at("/mnt/home/sum");
	struct err e = { 0 };

	(void)state;
	assert_int_equal(put(at("/mnt/home/sum"), "old", 3, NULL, &e), 0);
	assert_int_equal(agent_open(harness_dial(&H), "file.write", req, &c, &e), 0);
	assert_int_equal(agent_write(c, "new", 3, WAIT_MS, &e), 0);
	assert_true(agent_write_end(
			    c, "0000000000000000000000000000000000000000000000000000000000000000",
			    NULL, WAIT_MS, &e) < 0);
	assert_string_equal(e.code, "checksum_mismatch");
	agent_free(steal_ptr(c));
	assert_true(put(json_pack("{s:s,s:i}", "path", "/mnt/home/sum", "size", 4), "new", 3, NULL,
			&e) < 0);
	assert_string_equal(e.code, "bad_request");
	expect("cat /mnt/home/sum", "old");
}

/* 44: a full disk is an error that says so, early when the size is told; after it all works. */
static void fault_44_full_disk(void **state)
{
	char *big = calloc(1, 3 << 20);
	struct err e = { 0 };

	(void)state;
	assert_int_equal(put(at("/mnt/small/f"), "old", 3, NULL, &e), 0);
	assert_true(put(at("/mnt/small/f"), big, 3 << 20, NULL, &e) < 0);
	assert_string_equal(e.code, "no_space");
	assert_true(put(json_pack("{s:s,s:i}", "path", "/mnt/small/f", "size", 3 << 20), big,
			3 << 20, NULL, &e) < 0);
	assert_string_equal(e.code, "no_space");
	expect("ls -A /mnt/small; cat /mnt/small/f", "f\nold");
	assert_int_equal(put(at("/mnt/small/g"), big, 512 << 10, NULL, &e), 0);
	free(big);
}

static void directories_and_moves(void **state)
{
	_cleanup_json_ json_t *st = NULL;
	struct err e = { 0 };

	(void)state;
	st = harness_call(&H, "file.mkdir", json_pack("{s:s,s:i}", "path", "/mnt/d", "mode", 0700));
	assert_string_equal(json_get_str(st, "type", ""), "directory");
	assert_int_equal(json_get_int(st, "mode", 0), 0700);
	assert_string_equal(harness_error(&H, "file.mkdir", at("/mnt/d"), &e), "exists");
	assert_string_equal(harness_error(&H, "file.mkdir", at("/mnt/x/y"), &e), "not_found");
	json_decref(harness_call(&H, "file.mkdir",
				 json_pack("{s:s,s:b}", "path", "/mnt/d/e/f", "parents", 1)));
	json_decref(harness_call(&H, "file.mkdir",
				 json_pack("{s:s,s:b}", "path", "/mnt/d/e/f", "parents", 1)));
	expect("echo 1 > /mnt/d/one; echo 2 > /mnt/d/two", "");
	assert_string_equal(
		harness_error(&H, "file.move",
			      json_pack("{s:s,s:s}", "from", "/mnt/d/one", "to", "/mnt/d/two"), &e),
		"exists");
	json_decref(harness_call(&H, "file.move",
				 json_pack("{s:s,s:s,s:b}", "from", "/mnt/d/one", "to",
					   "/mnt/d/two", "overwrite", 1)));
	expect("cat /mnt/d/two", "1\n");
	assert_string_equal(
		harness_error(&H, "file.move",
			      json_pack("{s:s,s:s}", "from", "/mnt/d/two", "to", "/mnt/small/two"),
			      &e),
		"cross_device");
	assert_string_equal(harness_error(&H, "file.remove", at("/mnt/d"), &e), "not_empty");
	assert_string_equal(harness_error(&H, "file.remove", at("/mnt/d/."), &e), "bad_request");
	json_decref(harness_call(&H, "file.remove",
				 json_pack("{s:s,s:b}", "path", "/mnt/d/", "recursive", 1)));
	expect("test ! -e /mnt/d", "");
	assert_string_equal(harness_error(&H, "file.remove", at("/mnt/d"), &e), "not_found");
}

/* Deeper than descriptors or path lengths reach. */
static void removing_a_deep_tree(void **state)
{
	(void)state;
	/* Not by a shell: its cd works out the whole path each time. */
	expect("mkdir /mnt/deep; cd /mnt/deep; python3 -c 'import os\n"
	       "for i in range(3000): os.mkdir(\"d\"); os.chdir(\"d\"); open(\"f\", "
	       "\"w\").close()'",
	       "");
	json_decref(harness_call(&H, "file.remove",
				 json_pack("{s:s,s:b}", "path", "/mnt/deep", "recursive", 1)));
	expect("test ! -e /mnt/deep", "");
}

static void long_listings_come_whole_and_sorted(void **state)
{
	_cleanup_agent_conn_ struct agent_conn *c = NULL;
	_cleanup_json_ json_t *req = json_pack("{s:s,s:i}", "path", "/mnt/many", "limit", 3000);
	struct err e = { 0 };
	bool truncated = false;
	char last[64] = "";
	int n = 0;

	(void)state;
	expect("mkdir /mnt/many; cd /mnt/many; seq -f name-%05g 4000 | xargs touch", "");
	assert_int_equal(agent_open(harness_dial(&H), "file.list", req, &c, &e), 0);
	assert_int_equal(agent_reply(c, NULL, WAIT_MS, &e), 0);
	for (;;) {
		_cleanup_json_ json_t *part = NULL;
		json_t *st;
		size_t i;

		assert_int_equal(agent_entries(c, &part, &truncated, WAIT_MS, &e), 0);
		if (!part)
			break;
		json_array_foreach (part, i, st) {
			assert_true(strcmp(last, json_get_str(st, "path", "")) < 0);
			snprintf(last, sizeof(last), "%s", json_get_str(st, "path", ""));
			n++;
		}
	}
	assert_int_equal(n, 3000);
	assert_true(truncated);
	assert_string_equal(last, "/mnt/many/name-03000");
	expect("rm -r /mnt/many", "");
}

/* A name in no encoding is shown, marked, and does not spoil the answer. */
static void names_that_are_not_utf8(void **state)
{
	_cleanup_agent_conn_ struct agent_conn *c = NULL;
	_cleanup_json_ json_t *req = at("/mnt/odd"), *part = NULL;
	struct err e = { 0 };
	bool truncated;
	json_t *st;

	(void)state;
	expect("mkdir /mnt/odd; touch /mnt/odd/$(printf 'a\\377b')", "");
	assert_int_equal(agent_open(harness_dial(&H), "file.list", req, &c, &e), 0);
	assert_int_equal(agent_reply(c, NULL, WAIT_MS, &e), 0);
	assert_int_equal(agent_entries(c, &part, &truncated, WAIT_MS, &e), 0);
	st = json_array_get(part, 0);
	assert_string_equal(json_get_str(st, "path", ""), "/mnt/odd/a\xef\xbf\xbd"
							  "b");
	assert_true(json_get_bool(st, "lossyName", false));
	expect("rm -r /mnt/odd", "");
}

/* The agent answers while many file operations wait for their bytes, and says when it is full. */
static void waiting_writes_do_not_block(void **state)
{
	struct agent_conn *c[70];
	struct err e = { 0 };
	int refused = 0;

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(c); i++) {
		_cleanup_json_ json_t *req = json_pack("{s:s}", "path", "/mnt/home/waiting");

		assert_int_equal(agent_open(harness_dial(&H), "file.write", req, &c[i], &e), 0);
	}
	json_decref(harness_call(&H, "hello", NULL));
	for (size_t i = 0; i < ARRAY_SIZE(c); i++) {
		if (i >= 64 && agent_reply(c[i], NULL, WAIT_MS, &e) < 0 &&
		    strcmp(e.code, "too_many_streams") == 0)
			refused++;
		agent_free(c[i]);
	}
	assert_int_equal(refused, 6);
	expect("while ls -A /mnt/home | grep -q cloche-; do sleep 0.01; done", "");
}

static int start(void **state)
{
	(void)state;
	return harness_start(&H, agent_path, false) ? 0 : -1;
}

static int stop(void **state)
{
	(void)state;
	harness_stop(&H);
	return 0;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(round_trip_of_every_size),
		cmocka_unit_test(ranges),
		cmocka_unit_test(modes_and_owners),
		cmocka_unit_test(paths_that_are_wrong),
		cmocka_unit_test(nul_in_a_path),
		cmocka_unit_test(dot_dot_is_resolved_by_the_kernel),
		cmocka_unit_test(fault_42_links_give_no_rights),
		cmocka_unit_test(fault_42_trees_stop_at_links),
		cmocka_unit_test(writing_through_a_link),
		cmocka_unit_test(interrupted_write_leaves_the_old_file),
		cmocka_unit_test(checksums_and_sizes_are_checked),
		cmocka_unit_test(fault_44_full_disk),
		cmocka_unit_test(directories_and_moves),
		cmocka_unit_test(removing_a_deep_tree),
		cmocka_unit_test(long_listings_come_whole_and_sorted),
		cmocka_unit_test(names_that_are_not_utf8),
		cmocka_unit_test(waiting_writes_do_not_block),
	};

	if (argc != 2)
		return 2;
	agent_path = argv[1];
	if (geteuid() != 0) {
		puts("1..0 # SKIP needs root for namespaces");
		return 0;
	}
	return cmocka_run_group_tests(tests, start, stop);
}
