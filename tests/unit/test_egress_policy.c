/* The policy engine: what passes, what does not, and which rule said so. Known faults 25, 36. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "egress/policy.h"
#include "egress/rule.h"
#include "egress/ruleset.h"

static struct policy *make_with(const char *text, const struct ruleset_book *book)
{
	_cleanup_json_ json_t *o = json_parse(text, strlen(text), NULL);
	_cleanup_json_ json_t *problems = json_array();
	struct policy *p = NULL;

	assert_non_null(o);
	if (policy_parse(o, book, &p, problems) < 0)
		fail_msg("%s", json_dumps(problems, 0));
	return p;
}

static struct policy *make(const char *text)
{
	return make_with(text, NULL);
}

static struct ip addr(const char *text)
{
	struct ip a;

	assert_int_equal(ip_parse(text, &a), 0);
	return a;
}

static bool addr_passes(const struct policy *p, const char *a, uint16_t port)
{
	struct ip ip = addr(a);

	return policy_addr(p, &ip, port).allow;
}

static bool both_pass(const struct policy *p, const char *name, const char *a, uint16_t port)
{
	struct ip ip = addr(a);

	return policy_both(p, name, &ip, port).allow;
}

static void mode_none_closes_everything(void **state)
{
	_cleanup_policy_ struct policy *p =
		make("{\"mode\":\"none\",\"allow\":[\"a.example\",\"8.8.8.8\"]}");

	(void)state;
	assert_false(policy_name(p, "a.example", 443).allow);
	assert_false(addr_passes(p, "8.8.8.8", 53));
	assert_false(both_pass(p, "a.example", "8.8.8.8", 443));
	assert_int_equal(policy_name(p, "a.example", 443).why, WHY_MODE_NONE);
}

static void names_wildcards_and_ports(void **state)
{
	_cleanup_policy_ struct policy *p = make("{\"mode\":\"allow\",\"allow\":[\"Example.COM.\","
						 "\"*.wild.example\",\"db.example:5432\"]}");

	(void)state;
	assert_true(policy_name(p, "example.com", 443).allow);
	assert_false(policy_name(p, "www.example.com", 443).allow);
	assert_false(policy_name(p, "example.com.evil.net", 443).allow);
	assert_false(policy_name(p, "notexample.com", 443).allow);
	assert_true(policy_name(p, "a.b.wild.example", 80).allow);
	assert_false(policy_name(p, "wild.example", 80).allow);
	assert_false(policy_name(p, "evilwild.example", 80).allow);
	assert_true(policy_name(p, "db.example", 5432).allow);
	assert_false(policy_name(p, "db.example", 22).allow);
	assert_true(policy_name(p, "db.example", 0).allow); /* may be looked up */
}

static void deny_wins_and_is_named(void **state)
{
	_cleanup_policy_ struct policy *p =
		make("{\"mode\":\"open\",\"allow\":[\"bad.example\"],"
		     "\"deny\":[\"bad.example\",\"*.ads.example\",\"9.9.9.0/24\",\"*:25\"]}");
	struct verdict v = policy_name(p, "bad.example", 443);

	(void)state;
	assert_false(v.allow);
	assert_int_equal(v.why, WHY_DENY_RULE);
	assert_string_equal(v.rule, "bad.example");
	assert_false(both_pass(p, "good.example", "9.9.9.9", 443));
	assert_true(both_pass(p, "good.example", "9.9.8.9", 443));
	assert_false(both_pass(p, "good.example", "9.9.8.9", 25));
	assert_false(addr_passes(p, "9.9.8.9", 25));
	assert_true(policy_name(p, "good.example", 0).allow); /* port 25 alone is closed */
	assert_true(policy_denies_names(p));
}

static void closed_ranges_stay_closed_for_names(void **state)
{
	static const char *const closed[] = {
		"127.0.0.1",
		"10.1.2.3",
		"172.16.0.1",
		"192.168.1.1",
		"169.254.169.254",
		"100.64.0.1",
		"224.0.0.1",
		"255.255.255.255",
		"0.0.0.0",
		"198.18.0.1",
		"::1",
		"::",
		"fe80::1",
		"fd00::1",
		"ff02::1",
		"::ffff:127.0.0.1",
		"::ffff:10.0.0.1",
		"::127.0.0.1",
		"64:ff9b::7f00:1",
		"2002:7f00:1::",
		"2001:0:7f00:1::",
		"fec0::1",
		"168.63.129.16",
		"64:ff9b:1::a00:1",
	};
	_cleanup_policy_ struct policy *open = make("{\"mode\":\"open\",\"allow\":[\"*\"]}");
	_cleanup_policy_ struct policy *allow =
		make("{\"mode\":\"allow\",\"allow\":[\"*\",\"rebind.example\"]}");

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(closed); i++) {
		struct ip a = addr(closed[i]);
		struct verdict v = policy_both(allow, "rebind.example", &a, 80);

		if (v.allow || policy_addr(open, &a, 80).allow)
			fail_msg("%s is open", closed[i]);
		assert_int_equal(v.why, WHY_CLOSED_RANGE);
		assert_non_null(v.closed);
	}
	assert_true(addr_passes(open, "1.1.1.1", 443));
	assert_true(addr_passes(open, "2606:4700::1111", 443));
	assert_true(addr_passes(open, "172.15.0.1", 443));
	assert_true(addr_passes(open, "172.32.0.1", 443));
}

static void a_range_rule_opens_its_range_only(void **state)
{
	_cleanup_policy_ struct policy *p =
		make("{\"mode\":\"allow\",\"allow\":[\"10.1.0.0/16:5432\",\"[fd00:1::/32]:22\","
		     "\"1.2.3.4\"],\"deny\":[\"10.1.9.0/24\"]}");
	struct ip mapped = addr("::ffff:10.1.2.3");

	(void)state;
	assert_true(addr_passes(p, "10.1.2.3", 5432));
	assert_true(policy_addr(p, &mapped, 5432).allow); /* the same address */
	assert_true(policy_addr(p, &mapped, 5432).by_range);
	assert_false(addr_passes(p, "10.1.2.3", 5433));
	assert_false(addr_passes(p, "10.2.2.3", 5432));
	assert_false(addr_passes(p, "10.1.9.1", 5432));
	assert_true(addr_passes(p, "fd00:1::7", 22));
	assert_false(addr_passes(p, "fd00:2::7", 22));
	assert_true(addr_passes(p, "1.2.3.4", 1));
	assert_false(addr_passes(p, "1.2.3.5", 1));
	/* A name nobody allowed still reaches an address that a range allows. */
	assert_true(both_pass(p, "whatever.example", "1.2.3.4", 443));
}

static void every_problem_names_its_field(void **state)
{
	static const char text[] =
		"{\"mode\":\"allow\",\"allow\":[\"ok.example\",\"http://x.example/\",\"10.0.0.1/"
		"8\","
		"\"a.*.example\",\"x.example:0\",\"@pyton\",\"b\xc3\xbc"
		"cher.example\",\"127.1\",\"2130706433\",\"[::1]x\",\"\"],\"deny\":[\"::zz\"]}";
	static const char book_text[] = "[python]\npypi.org\n";
	_cleanup_json_ json_t *o = json_parse(text, sizeof(text) - 1, NULL);
	_cleanup_json_ json_t *problems = json_array();
	struct ruleset_book *book = NULL;
	struct policy *p = NULL;

	(void)state;
	assert_int_equal(ruleset_book_parse(book_text, sizeof(book_text) - 1, &book, NULL), 0);
	assert_int_equal(policy_parse(o, book, &p, problems), -EINVAL);
	assert_null(p);
	assert_int_equal(json_array_size(problems), 11);
	for (size_t i = 0; i < 10; i++) {
		char want[32];

		snprintf(want, sizeof(want), "allow[%zu]", i + 1);
		assert_string_equal(json_get_str(json_array_get(problems, i), "field", ""), want);
	}
	assert_string_equal(json_get_str(json_array_get(problems, 1), "hint", ""), "10.0.0.0/8");
	assert_string_equal(json_get_str(json_array_get(problems, 4), "hint", ""), "python");
	assert_string_equal(json_get_str(json_array_get(problems, 10), "field", ""), "deny[0]");
	ruleset_book_free(book);
}

static void sets_expand_and_are_named(void **state)
{
	static const char book_text[] = "# indexes\n[python]\npypi.org\n"
					"files.pythonhosted.org:443 # wheels\n\n[none]\n";
	static const char bad[] = "[a]\nok.example\n10.0.0.1/8\n";
	_cleanup_ruleset_book_ struct ruleset_book *book = NULL;
	_cleanup_policy_ struct policy *p = NULL;
	struct err e = { 0 };
	struct verdict v;

	(void)state;
	assert_int_equal(ruleset_book_parse(book_text, sizeof(book_text) - 1, &book, &e), 0);
	p = make_with("{\"mode\":\"allow\",\"allow\":[\"@python\",\"@none\"]}", book);
	v = policy_name(p, "files.pythonhosted.org", 443);
	assert_true(v.allow);
	assert_string_equal(v.rule, "@python: files.pythonhosted.org:443");
	assert_false(policy_name(p, "files.pythonhosted.org", 80).allow);
	assert_int_equal(ruleset_book_parse(bad, sizeof(bad) - 1, &book, &e), -EINVAL);
	assert_non_null(strstr(e.msg, "line 3"));
	assert_non_null(strstr(e.msg, "10.0.0.0/8"));
}

static void refusals_say_what_to_add(void **state)
{
	_cleanup_policy_ struct policy *p = make("{\"mode\":\"allow\",\"allow\":[\"a.example\"]}");
	_cleanup_buf_ struct buf why = { 0 }, fix = { 0 };
	struct verdict v = policy_name(p, "b.example", 443);

	(void)state;
	assert_int_equal(policy_explain(&v, "b.example:443", &why), 0);
	assert_int_equal(policy_fix(&v, "b.example", NULL, &fix), 0);
	assert_string_equal(why.data, "b.example:443 is refused: no allow rule names it");
	assert_string_equal(fix.data, "Add \"b.example\" to network.allow.");
	assert_string_equal(policy_why_code(v.why), "not_allowed");
}

static void secret_hosts_are_names(void **state)
{
	const char *why = NULL;

	(void)state;
	assert_int_equal(host_pattern_check("api.example.com", &why), 0);
	assert_int_equal(host_pattern_check("*.example.com:8443", &why), 0);
	assert_int_equal(host_pattern_check("*", &why), -EINVAL);
	assert_int_equal(host_pattern_check("10.0.0.0/8", &why), -EINVAL);
	assert_true(host_pattern_match("*.example.com", "a.example.com", 443));
	assert_false(host_pattern_match("*.example.com:8443", "a.example.com", 443));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(mode_none_closes_everything),
		cmocka_unit_test(names_wildcards_and_ports),
		cmocka_unit_test(deny_wins_and_is_named),
		cmocka_unit_test(closed_ranges_stay_closed_for_names),
		cmocka_unit_test(a_range_rule_opens_its_range_only),
		cmocka_unit_test(every_problem_names_its_field),
		cmocka_unit_test(sets_expand_and_are_named),
		cmocka_unit_test(refusals_say_what_to_add),
		cmocka_unit_test(secret_hosts_are_names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
