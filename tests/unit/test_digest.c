/* SHA-256 and base64 against the vectors of FIPS 180-4 and RFC 4648. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/base64.h"
#include "base/buf.h"
#include "base/sha256.h"

static void sha256_vectors(void **state)
{
	static const struct {
		const char *text, *hex;
	} v[] = {
		{ "", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" },
		{ "abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" },
		{ "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
		  "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1" },
		{ "abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmno"
		  "pqklmnopqrlmnopqrsmnopqrstnopqrstu",
		  "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(v) / sizeof(v[0]); i++) {
		char hex[SHA256_HEX_LEN];
		struct sha256 s;

		sha256_init(&s);
		sha256_add(&s, v[i].text, strlen(v[i].text));
		sha256_end_hex(&s, hex);
		assert_string_equal(hex, v[i].hex);
	}
}

/* A million times "a", in pieces of every size up to 200: the block edges are all crossed. */
static void sha256_million(void **state)
{
	char a[200], hex[SHA256_HEX_LEN];
	size_t left = 1000000, piece = 0;
	struct sha256 s;

	(void)state;
	memset(a, 'a', sizeof(a));
	sha256_init(&s);
	while (left) {
		piece = piece % sizeof(a) + 1;
		if (piece > left)
			piece = left;
		sha256_add(&s, a, piece);
		left -= piece;
	}
	sha256_end_hex(&s, hex);
	assert_string_equal(hex,
			    "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

static void base64_vectors(void **state)
{
	static const char *const v[][2] = { { "", "" },
					    { "f", "Zg==" },
					    { "fo", "Zm8=" },
					    { "foo", "Zm9v" },
					    { "foob", "Zm9vYg==" },
					    { "fooba", "Zm9vYmE=" },
					    { "foobar", "Zm9vYmFy" } };

	(void)state;
	for (size_t i = 0; i < sizeof(v) / sizeof(v[0]); i++) {
		_cleanup_buf_ struct buf text = { 0 }, back = { 0 };

		assert_int_equal(base64_encode(&text, v[i][0], strlen(v[i][0])), 0);
		assert_int_equal(text.len, strlen(v[i][1]));
		assert_memory_equal(text.data, v[i][1], text.len);
		assert_int_equal(base64_decode(&back, v[i][1], strlen(v[i][1])), 0);
		assert_int_equal(back.len, strlen(v[i][0]));
		assert_memory_equal(back.data, v[i][0], back.len);
	}
}

static void base64_refused(void **state)
{
	static const char *const bad[] = { "Zg",   "Zg=",  "Zh==",   "Zm9=",	 "Z===", "====",
					   "=AAA", "Zm 9", "Zm9v\n", "Zg==Zg==", "Zm-_" };

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		_cleanup_buf_ struct buf b = { 0 };

		assert_int_equal(buf_str(&b, "kept"), 0);
		assert_int_equal(base64_decode(&b, bad[i], strlen(bad[i])), -EINVAL);
		assert_string_equal(b.data, "kept");
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(sha256_vectors),
					    cmocka_unit_test(sha256_million),
					    cmocka_unit_test(base64_vectors),
					    cmocka_unit_test(base64_refused) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
