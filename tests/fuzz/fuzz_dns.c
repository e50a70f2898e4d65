/* DNS queries from a guest, and the answers written to them. */
#include <stdint.h>
#include <stdlib.h>

#include "egress/dns_msg.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	static const uint8_t v4[4] = { 192, 0, 2, 1 };
	struct ip addrs[DNS_ANSWERS_MAX];
	struct dns_answer a = { .addrs = addrs, .n = DNS_ANSWERS_MAX, .ttl = 60 };
	struct dns_query q;
	uint8_t out[DNS_TCP_MAX];
	int r = dns_query_parse(data, n, &q);

	if (r < 0)
		return 0;
	for (size_t i = 0; i < DNS_ANSWERS_MAX; i++)
		addrs[i] = ip_from_v4(v4);
	a.rcode = (enum dns_rcode)r;
	a.reason = n & 1 ? "no rule allows this name" : NULL;
	if (dns_answer_write(&q, &a, out, 512) > 512)
		abort();
	if (dns_answer_write(&q, &a, out, sizeof(out)) > sizeof(out))
		abort();
	return 0;
}
