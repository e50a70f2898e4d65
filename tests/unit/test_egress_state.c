/* What egress keeps: secrets at rest, placeholders and their swap, names, receipts, limits. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "egress/bucket.h"
#include "egress/names.h"
#include "egress/receipt.h"
#include "egress/swap.h"
#include "egress/vault.h"

static char dir[] = "/tmp/cloche-egress-state.XXXXXX";
static char key_path[64];

static struct vault *vault(void)
{
	struct vault *v = NULL;
	struct err e = { 0 };

	if (vault_open(key_path, &v, &e) < 0)
		fail_msg("%s", e.msg);
	return v;
}

static void a_sealed_value_opens_under_its_id_and_key_only(void **state)
{
	_cleanup_buf_ struct buf a = { 0 }, b = { 0 };
	struct vault_value val = { 0 };
	struct vault *v = vault(), *again;
	struct err e = { 0 };

	(void)state;
	assert_int_equal(vault_seal(v, "sec_a", "s3cret", 6, &a, &e), 0);
	assert_int_equal(vault_seal(v, "sec_a", "s3cret", 6, &b, &e), 0);
	assert_string_not_equal(a.data, b.data); /* a nonce of its own each time */
	vault_free(v);
	again = vault(); /* the key was kept */
	assert_int_equal(vault_unseal(again, "sec_a", a.data, &val, &e), 0);
	assert_string_equal(val.p, "s3cret");
	vault_value_free(&val);
	assert_int_equal(vault_unseal(again, "sec_b", a.data, &val, &e), -EBADMSG);
	a.data[a.len / 2] = a.data[a.len / 2] == 'A' ? 'B' : 'A';
	assert_true(vault_unseal(again, "sec_a", a.data, &val, &e) < 0);
	assert_int_equal(vault_unseal(again, "sec_a", "AQ==", &val, &e), -EINVAL);
	assert_null(strstr(e.msg, "s3cret"));
	vault_free(again);
}

static void an_exposed_key_is_refused(void **state)
{
	struct vault *v = NULL;
	struct err e = { 0 };
	struct stat st;

	(void)state;
	vault_free(vault());
	assert_int_equal(stat(key_path, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0600);
	assert_int_equal(chmod(key_path, 0640), 0);
	assert_int_equal(vault_open(key_path, &v, &e), -EPERM);
	assert_string_equal(e.code, "key_exposed");
	assert_int_equal(chmod(key_path, 0600), 0);
}

/* One secret "K" for a.test in the places given; its placeholder in ph. */
static struct swaps *one(struct vault *v, const char *place, const char *value, char ph[64])
{
	_cleanup_json_ json_t *placeholders = json_object(), *problems = json_array(), *list = NULL;
	_cleanup_buf_ struct buf sealed = { 0 };
	struct swaps *s = NULL;
	struct err e = { 0 };

	assert_int_equal(vault_seal(v, "sec_k", value, strlen(value), &sealed, &e), 0);
	list = json_pack("[{s:s,s:s,s:[s],s:[s],s:s}]", "id", "sec_k", "name", "K", "hosts",
			 "a.test", "in", place, "sealed", sealed.data);
	assert_int_equal(swaps_parse(list, v, "sbx_1", &s, placeholders, problems), 0);
	snprintf(ph, 64, "%s", json_get_str(placeholders, "sec_k", ""));
	assert_int_equal(strlen(ph), EGRESS_PLACEHOLDER_LEN);
	return s;
}

static struct slice sl(const char *s)
{
	return (struct slice){ s, strlen(s) };
}

static void placeholders_are_stable_and_differ(void **state)
{
	struct vault *v = vault();
	char a[64], b[64], c[64];

	(void)state;
	assert_int_equal(vault_placeholder(v, "sbx_1", "sec_k", a, NULL), 0);
	assert_int_equal(vault_placeholder(v, "sbx_1", "sec_k", b, NULL), 0);
	assert_int_equal(vault_placeholder(v, "sbx_2", "sec_k", c, NULL), 0);
	assert_string_equal(a, b);
	assert_string_not_equal(a, c);
	vault_free(v);
}

static void values_go_where_they_may(void **state)
{
	_cleanup_buf_ struct buf out = { 0 }, in = { 0 };
	struct vault *v = vault();
	char ph[64];
	struct swaps *s = one(v, "header", "va/l ue", ph);
	struct swap_target t = { .swaps = s, .host = "a.test", .port = 443 };

	(void)state;
	assert_true(swaps_for_host(s, "a.test", 443));
	assert_false(swaps_for_host(s, "b.a.test", 443));
	buf_printf(&in, "Bearer %s; again=%s.", ph, ph);
	assert_int_equal(swap_header(&t, sl("X-Key"), sl(in.data), &out), 0);
	assert_string_equal(out.data, "Bearer va/l ue; again=va/l ue.");
	assert_string_equal(t.used, "K");
	buf_clear(&in);
	buf_printf(&in, "/p?k=%s", ph);
	assert_int_equal(swap_path(&t, sl(in.data), &out), -EACCES); /* header only */
	t.host = "b.test";
	assert_int_equal(swap_header(&t, sl("X-Key"), sl(ph), &out), -EACCES);
	t = (struct swap_target){ .swaps = s, .host = "a.test", .port = 443, .clear_text = true };
	assert_int_equal(swap_header(&t, sl("X-Key"), sl(ph), &out), -EACCES);
	t = (struct swap_target){ .host = "a.test" }; /* no secrets: it is nobody's */
	assert_int_equal(swap_header(&t, sl("X-Key"), sl(ph), &out), -EACCES);
	swaps_free(s);
	vault_free(v);
}

static void query_values_are_escaped(void **state)
{
	_cleanup_buf_ struct buf out = { 0 }, in = { 0 };
	struct vault *v = vault();
	char ph[64];
	struct swaps *s = one(v, "query", "a&b=c d\"#", ph);
	struct swap_target t = { .swaps = s, .host = "a.test", .port = 443 };

	(void)state;
	buf_printf(&in, "/x?y=1&k=%s&z", ph);
	assert_int_equal(swap_path(&t, sl(in.data), &out), 0);
	assert_string_equal(out.data, "/x?y=1&k=a%26b%3Dc%20d%22%23&z");
	buf_clear(&in);
	buf_printf(&in, "/%s", ph);
	assert_int_equal(swap_path(&t, sl(in.data), &out), -EACCES); /* never in the path */
	swaps_free(s);
	vault_free(v);
}

static void the_scan_finds_it_however_it_is_cut(void **state)
{
	static const char before[] = "xxclsec-clclsec-0123", after[] = "zz";
	struct vault *v = vault();
	_cleanup_buf_ struct buf b = { 0 };
	char ph[64];

	(void)state;
	assert_int_equal(vault_placeholder(v, "sbx_1", "sec_k", ph, NULL), 0);
	vault_free(v);
	buf_printf(&b, "%s%s%s", before, ph, after);
	for (size_t cut = 0; cut <= b.len; cut++) {
		struct swap_scan s = { 0 };
		bool hit = swap_scan_feed(&s, b.data, cut);

		hit |= swap_scan_feed(&s, b.data + cut, b.len - cut);
		assert_true(hit);
	}
	for (size_t n = 0; n < strlen(before) + EGRESS_PLACEHOLDER_LEN; n++) {
		struct swap_scan s = { 0 };

		assert_false(swap_scan_feed(&s, b.data, n));
	}
}

static void names_lead_from_addresses(void **state)
{
	struct names *m = NULL;
	struct ip a, b;
	size_t it = 0;
	uint64_t now = 5 * NSEC_PER_SEC, later = now + 61 * NSEC_PER_SEC;
	char name[32];

	(void)state;
	assert_int_equal(names_new(&m), 0);
	ip_parse("45.1.1.1", &a);
	ip_parse("45.1.1.2", &b);
	assert_int_equal(names_put(m, "one.test", DNS_A, &a, 1, 60, now), 0);
	assert_int_equal(names_put(m, "two.test", DNS_A, &a, 1, 60, now), 0);
	assert_string_equal(names_of(m, &a, now, &it), "two.test"); /* the latest first */
	assert_string_equal(names_of(m, &a, now, &it), "one.test");
	assert_null(names_of(m, &a, now, &it));
	assert_non_null(names_fresh(m, "one.test", DNS_A, now));
	assert_null(names_fresh(m, "one.test", DNS_AAAA, now));
	assert_null(names_fresh(m, "one.test", DNS_A, later)); /* beyond its TTL… */
	assert_true(names_has(m, "one.test", &a, later));      /* …but still known */
	assert_int_equal(names_put(m, "one.test", DNS_A, &b, 1, 60, now), 0);
	assert_false(names_has(m, "one.test", &a, now)); /* the newer answer replaced it */
	for (int i = 0; i < NAMES_MAX; i++) {
		snprintf(name, sizeof(name), "n%d.test", i);
		assert_int_equal(names_put(m, name, DNS_A, &a, 1, 60, now), 0);
	}
	assert_false(names_has(m, "one.test", &b, now)); /* the oldest gave way */
	names_free(m);
}

static void receipts_are_read_by_cursor(void **state)
{
	struct receipt r = { .event = RECEIPT_ALLOW, .protocol = "tcp", .reason = "x" };
	struct receipt dns = { .event = RECEIPT_REFUSE, .protocol = "dns", .reason = "y" };
	struct receipts *l = NULL;
	json_t *page;

	(void)state;
	assert_int_equal(receipts_new(&l), 0);
	for (uint64_t i = 1; i <= RECEIPTS_MAX + 10; i++) {
		r.connection = i;
		receipts_add(l, &r);
	}
	page = receipts_json(l, 0, 5);
	assert_int_equal(json_array_size(json_object_get(page, "records")), 5);
	/* The first ten were overrun; numbers show the gap. */
	assert_int_equal(
		json_get_int(json_array_get(json_object_get(page, "records"), 0), "seq", 0), 11);
	assert_int_equal(json_get_int(page, "next", 0), 15);
	json_decref(page);
	for (int i = 0; i < 3; i++) /* the same lookup thrice is one record that says so */
		receipts_add(l, &dns);
	page = receipts_json(l, RECEIPTS_MAX + 10, 100);
	assert_int_equal(json_array_size(json_object_get(page, "records")), 1);
	assert_int_equal(
		json_get_int(json_array_get(json_object_get(page, "records"), 0), "count", 0), 3);
	json_decref(page);
	receipts_free(l);
}

static void buckets_bound_the_rate(void **state)
{
	uint64_t now = 1000 * NSEC_PER_SEC;
	struct bucket b = { 0 };
	int passed = 0;

	(void)state;
	for (int i = 0; i < 100; i++)
		passed += bucket_take(&b, 10, 20, now);
	assert_int_equal(passed, 20);
	assert_false(bucket_take(&b, 10, 20, now + NSEC_PER_SEC / 20));
	assert_true(bucket_take(&b, 10, 20, now + NSEC_PER_SEC / 10));
}

static int setup(void **state)
{
	(void)state;
	if (!mkdtemp(dir))
		return -1;
	snprintf(key_path, sizeof(key_path), "%s/key", dir);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	unlink(key_path);
	return rmdir(dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_sealed_value_opens_under_its_id_and_key_only),
		cmocka_unit_test(an_exposed_key_is_refused),
		cmocka_unit_test(placeholders_are_stable_and_differ),
		cmocka_unit_test(values_go_where_they_may),
		cmocka_unit_test(query_values_are_escaped),
		cmocka_unit_test(the_scan_finds_it_however_it_is_cut),
		cmocka_unit_test(names_lead_from_addresses),
		cmocka_unit_test(receipts_are_read_by_cursor),
		cmocka_unit_test(buckets_bound_the_rate),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
