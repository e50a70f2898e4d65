/* Policies and rule sets from outside: no text may crash the parser, or open a closed range. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/json.h"
#include "egress/policy.h"
#include "egress/ruleset.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	static const uint8_t loopback[4] = { 127, 0, 0, 1 };
	_cleanup_ruleset_book_ struct ruleset_book *book = NULL;
	_cleanup_policy_ struct policy *p = NULL;
	_cleanup_json_ json_t *problems = json_array();
	_cleanup_json_ json_t *o = json_parse((const char *)data, n, NULL);
	_cleanup_buf_ struct buf b = { 0 };
	struct ip a = ip_from_v4(loopback);
	struct verdict v;

	if (ruleset_book_parse((const char *)data, n, &book, NULL) < 0)
		book = NULL;
	if (!o || policy_parse(o, book, &p, problems) < 0)
		return 0;
	v = policy_both(p, "a.example", &a, 80);
	if (v.allow && !v.by_range)
		abort(); /* a name opened loopback */
	policy_explain(&v, "a.example:80", &b);
	policy_fix(&v, "a.example", &a, &b);
	v = policy_addr(p, &a, 80);
	if (v.allow && !v.by_range)
		abort();
	return 0;
}
