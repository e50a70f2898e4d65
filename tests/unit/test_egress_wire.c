/* What egress reads from a hostile guest: DNS queries, ClientHellos, HTTP heads and bodies. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <openssl/ssl.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "egress/client_hello.h"
#include "egress/dns_msg.h"
#include "egress/http_head.h"

/* www.Example.com A IN, RD, with an OPT record offering 4096 bytes. */
static const uint8_t query[] = {
	0x12, 0x34, 0x01, 0x00, 0,   1,	  0,	0,   0,	  0, 0,	  1,   3,   'w', 'w',
	'w',  7,    'E',  'x',	'a', 'm', 'p',	'l', 'e', 3, 'c', 'o', 'm', 0,	 0,
	1,    0,    1,	  0,	0,   41,  0x10, 0,   0,	  0, 0,	  0,   0,   0,
};

static void dns_query_and_answer(void **state)
{
	struct ip a[2] = { 0 };
	struct dns_answer ans = { .rcode = DNS_NOERROR, .addrs = a, .n = 2, .ttl = 60 };
	struct dns_query q;
	uint8_t out[512];
	size_t n;

	(void)state;
	assert_int_equal(ip_parse("93.184.216.34", &a[0]), 0);
	assert_int_equal(ip_parse("93.184.216.35", &a[1]), 0);
	assert_int_equal(dns_query_parse(query, sizeof(query), &q), DNS_NOERROR);
	assert_string_equal(q.name, "www.example.com");
	assert_int_equal(q.type, DNS_A);
	assert_true(q.edns);
	assert_int_equal(q.udp_max, DNS_UDP_MAX);
	n = dns_answer_write(&q, &ans, out, sizeof(out));
	/* header 12, question 21, two records of 16, OPT 11 */
	assert_int_equal(n, 12 + 21 + 32 + 11);
	assert_memory_equal(out, "\x12\x34\x81\x80\0\1\0\2\0\0\0\1", 12);
	assert_memory_equal(out + 12, query + 12, 21); /* the letter case is kept */
	assert_memory_equal(out + 33, "\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4\x5d\xb8\xd8\x22", 16);
}

static void dns_refusal_carries_its_reason(void **state)
{
	struct dns_answer ans = { .rcode = DNS_REFUSED, .reason = "no rule" };
	struct dns_query q;
	uint8_t out[512];
	size_t n;

	(void)state;
	assert_int_equal(dns_query_parse(query, sizeof(query), &q), DNS_NOERROR);
	n = dns_answer_write(&q, &ans, out, sizeof(out));
	assert_int_equal(out[3] & 15, 5);
	assert_memory_equal(out + n - 13, "\0\x0f\0\x09\0\x12no rule", 13);
}

static void dns_nonsense_is_told_apart(void **state)
{
	static const uint8_t loop[] = { 0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0xc0, 12, 0, 1, 0, 1 };
	uint8_t m[sizeof(query)];
	struct dns_query q;

	(void)state;
	assert_int_equal(dns_query_parse(query, 11, &q), -EBADMSG);
	assert_int_equal(dns_query_parse(loop, sizeof(loop), &q), DNS_FORMERR);
	for (size_t n = 12; n < sizeof(query); n++) /* cut anywhere */
		assert_int_equal(dns_query_parse(query, n, &q), DNS_FORMERR);
	memcpy(m, query, sizeof(m));
	m[2] |= 0x80;
	assert_int_equal(dns_query_parse(m, sizeof(m), &q), -EBADMSG); /* an answer */
	m[2] = 0x29;
	assert_int_equal(dns_query_parse(m, sizeof(m), &q), DNS_NOTIMP); /* UPDATE */
	memcpy(m, query, sizeof(m));
	m[16] = '.'; /* a dot inside a label */
	m[12] = 3;
	m[14] = '.';
	assert_int_equal(dns_query_parse(m, sizeof(m), &q), DNS_FORMERR);
}

/* A ClientHello as OpenSSL writes it. */
static size_t openssl_hello(const char *sni, const char *alpn, size_t alpn_len, uint8_t *out,
			    size_t max)
{
	SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
	SSL *ssl = SSL_new(ctx);
	BIO *in = BIO_new(BIO_s_mem()), *o = BIO_new(BIO_s_mem());
	int n;

	SSL_set_bio(ssl, in, o);
	if (sni)
		SSL_set_tlsext_host_name(ssl, sni);
	if (alpn)
		SSL_set_alpn_protos(ssl, (const unsigned char *)alpn, (unsigned)alpn_len);
	SSL_connect(ssl);
	n = BIO_read(o, out, (int)max);
	SSL_free(ssl);
	SSL_CTX_free(ctx);
	assert_true(n > 0);
	return (size_t)n;
}

static void hello_of_a_real_client(void **state)
{
	struct client_hello h;
	uint8_t b[4096];
	size_t n = openssl_hello("API.Example.com", "\x02h2\x08http/1.1", 12, b, sizeof(b));

	(void)state;
	assert_int_equal(client_hello_parse(b, n, &h), 1);
	assert_string_equal(h.sni, "api.example.com");
	assert_true(h.alpn && h.alpn_h2 && h.alpn_http1);
	for (size_t i = 0; i < n; i++) /* every prefix asks for more */
		assert_int_equal(client_hello_parse(b, i, &h), 0);
	n = openssl_hello(NULL, NULL, 0, b, sizeof(b));
	assert_int_equal(client_hello_parse(b, n, &h), 1);
	assert_string_equal(h.sni, "");
}

static void hello_split_over_records(void **state)
{
	struct client_hello h;
	uint8_t b[4096], out[8192];
	size_t n = openssl_hello("api.example.com", NULL, 0, b, sizeof(b)), m = 0;

	(void)state;
	for (size_t at = 5; at < n; at += 7) { /* records of seven bytes */
		size_t part = n - at < 7 ? n - at : 7;

		memcpy(out + m, "\x16\x03\x01\x00", 4);
		out[m + 4] = (uint8_t)part;
		memcpy(out + m + 5, b + at, part);
		m += 5 + part;
	}
	assert_int_equal(client_hello_parse(out, m, &h), 1);
	assert_string_equal(h.sni, "api.example.com");
}

static void hello_that_lies_is_refused(void **state)
{
	struct client_hello h;
	uint8_t b[4096];
	size_t n = openssl_hello("api.example.com", NULL, 0, b, sizeof(b));
	uint8_t *name = memmem(b, n, "api.example.com", 15);

	(void)state;
	assert_non_null(name);
	name[3] = '\0'; /* "api\0example.com" */
	assert_int_equal(client_hello_parse(b, n, &h), -EPROTO);
	assert_int_equal(client_hello_parse((const uint8_t *)"GET / HTTP/1.1", 14, &h), -EPROTO);
	assert_int_equal(client_hello_parse((const uint8_t *)"\x16\x03\x01\xff\xff", 5, &h),
			 -EPROTO);
}

static long request(const char *text, struct http_head *h)
{
	const char *problem = NULL;
	long n = http_request_parse(text, strlen(text), h, &problem);

	if (n < 0)
		assert_non_null(problem);
	return n;
}

static void request_head(void **state)
{
	struct http_head *h = calloc(1, sizeof(*h));
	static const char text[] =
		"POST /a?b HTTP/1.1\r\nHost: Example.com:8080\r\nContent-Length: 5"
		"\r\nX:  y z \r\n\r\nhello";

	(void)state;
	assert_int_equal(request(text, h), strlen(text) - 5);
	assert_string_equal(h->host, "example.com");
	assert_int_equal(h->framing, HTTP_BODY_LENGTH);
	assert_int_equal(h->length, 5);
	assert_true(slice_is(http_field(h, "x")->value, "y z"));
	assert_int_equal(request("GET / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", h), 34);
	assert_true(h->host_is_address);
	assert_int_equal(request("GET / HTTP/1.1\r\nHost: a", h), 0);
	free(h);
}

static void smuggling_shapes_are_refused(void **state)
{
	static const char *const bad[] = {
		"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: "
		"chunked\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1,1\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
		"POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a\r\nX: y\r\n z\r\n\r\n",
		"POST / HTTP/1.1\nHost: a\n\n",
		"GET / HTTP/1.1\r\nHost: a\rX: y\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
		"GET / HTTP/1.1\r\nX: y\r\n\r\n",
		"GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n",
		"GET /a b HTTP/1.1\r\nHost: a\r\n\r\n",
		"GET / HTTP/2.0\r\nHost: a\r\n\r\n",
		"CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a b\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a\r\nX: \x01\r\n\r\n",
		"\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
	};
	struct http_head *h = calloc(1, sizeof(*h));

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
		if (request(bad[i], h) != -EPROTO)
			fail_msg("accepted: %s", bad[i]);
	free(h);
}

static void collect(void *ctx, const char *p, size_t n)
{
	buf_add(ctx, p, n);
}

static void chunked_body_byte_by_byte(void **state)
{
	static const char text[] =
		"5\r\nhello\r\n1A\r\nabcdefghijklmnopqrstuvwxyz\r\n0\r\nT: v\r\n\r\n";
	struct http_head h = { .framing = HTTP_BODY_CHUNKED };
	_cleanup_buf_ struct buf got = { 0 };
	struct http_body b;

	(void)state;
	http_body_init(&b, &h);
	for (size_t i = 0; i < sizeof(text) - 1; i++) {
		assert_false(b.done);
		assert_int_equal(http_body_feed(&b, text + i, 1, collect, &got), 1);
	}
	assert_true(b.done);
	assert_string_equal(got.data, "helloabcdefghijklmnopqrstuvwxyz");
	http_body_init(&b, &h);
	assert_int_equal(http_body_feed(&b, "3\r\nabc\r\n0\r\n\r\nGET /", 20, NULL, NULL), 13);
}

static void bad_chunks_are_refused(void **state)
{
	static const char *const bad[] = { "5;x=y\r\n",	 " 5\r\n",     "5\n",
					   "-1\r\n",	 "\r\n",       "3\r\nabcX\r\n",
					   "0x3\r\n",	 "3\r\nabc\n", "1000000000000000\r\n",
					   "0\r\n x\r\n" };
	struct http_head h = { .framing = HTTP_BODY_CHUNKED };
	struct http_body b;

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		http_body_init(&b, &h);
		if (http_body_feed(&b, bad[i], strlen(bad[i]), NULL, NULL) != -EPROTO)
			fail_msg("accepted: %s", bad[i]);
	}
}

static void response_framing(void **state)
{
	struct http_head *h = calloc(1, sizeof(*h));
	const struct slice get = { "GET", 3 }, head = { "HEAD", 4 };
	static const char close_text[] = "HTTP/1.1 200 OK\r\n\r\n";
	static const char cl[] = "HTTP/1.1 200\r\nContent-Length: 7\r\n\r\n";
	static const char ws[] = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n"
				 "Connection: Upgrade\r\n\r\n";
	const char *problem;

	(void)state;
	assert_true(http_response_parse(close_text, strlen(close_text), get, h, &problem) > 0);
	assert_int_equal(h->framing, HTTP_BODY_UNTIL_CLOSE);
	assert_true(http_response_parse(cl, strlen(cl), get, h, &problem) > 0);
	assert_int_equal(h->length, 7);
	assert_int_equal(h->framing, HTTP_BODY_LENGTH);
	assert_true(http_response_parse(cl, strlen(cl), head, h, &problem) > 0);
	assert_int_equal(h->framing, HTTP_BODY_NONE);
	assert_true(http_response_parse(ws, strlen(ws), get, h, &problem) > 0);
	assert_int_equal(h->status, 101);
	assert_true(h->upgrade);
	free(h);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(dns_query_and_answer),
		cmocka_unit_test(dns_refusal_carries_its_reason),
		cmocka_unit_test(dns_nonsense_is_told_apart),
		cmocka_unit_test(hello_of_a_real_client),
		cmocka_unit_test(hello_split_over_records),
		cmocka_unit_test(hello_that_lies_is_refused),
		cmocka_unit_test(request_head),
		cmocka_unit_test(smuggling_shapes_are_refused),
		cmocka_unit_test(chunked_body_byte_by_byte),
		cmocka_unit_test(bad_chunks_are_refused),
		cmocka_unit_test(response_framing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
