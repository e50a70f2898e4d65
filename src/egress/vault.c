/*
 * Sealed form: version byte 1, 12 bytes of nonce, ciphertext, 16 bytes of tag; the id is
 * authenticated with it. Placeholders are an HMAC under a key derived from the same file, so they
 * cannot be guessed and need not be stored.
 */
#include "egress/vault.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <string.h>
#include <sys/stat.h>

#include "base/base64.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/fd.h"

#define KEY_LEN 32
#define NONCE_LEN 12
#define TAG_LEN 16
#define SEAL_VERSION 1
#define SECURE_HEAP (4 << 20)

struct vault {
	unsigned char key[KEY_LEN];
};

static int key_make(const char *path, unsigned char key[KEY_LEN], struct err *e)
{
	if (RAND_bytes(key, KEY_LEN) != 1)
		return err_set(e, "system", EIO, "no entropy for a key");
	return fd_write_file_atomic(path, key, KEY_LEN, 0600, e);
}

static int key_load(int fd, const char *path, unsigned char key[KEY_LEN], struct err *e)
{
	struct stat st;

	if (fstat(fd, &st) < 0)
		return err_errno(e, errno, "look at %s", path);
	if (st.st_mode & 077)
		return err_set(e, "key_exposed", EPERM, "%s can be read by others (mode %o)", path,
			       st.st_mode & 07777);
	if (st.st_size != KEY_LEN || fd_read_full(fd, key, KEY_LEN) != KEY_LEN)
		return err_set(e, "key_invalid", EINVAL, "%s is not a key of %d bytes", path,
			       KEY_LEN);
	return 0;
}

int vault_open(const char *key_path, struct vault **out, struct err *e)
{
	_cleanup_close_ int fd = open(key_path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	struct vault *v;
	int r;

	if (fd < 0 && errno != ENOENT)
		return err_errno(e, errno, "open %s", key_path);
	if (!CRYPTO_secure_malloc_initialized() && CRYPTO_secure_malloc_init(SECURE_HEAP, 32) < 1)
		return err_set(e, "system", ENOMEM, "cannot set memory for secrets aside");
	v = OPENSSL_secure_zalloc(sizeof(*v));
	if (!v)
		return err_errno(e, ENOMEM, "vault");
	r = fd < 0 ? key_make(key_path, v->key, e) : key_load(fd, key_path, v->key, e);
	if (r < 0) {
		vault_free(v);
		return r;
	}
	*out = v;
	return 0;
}

void vault_free(struct vault *v)
{
	OPENSSL_secure_clear_free(v, v ? sizeof(*v) : 0);
}

void vault_value_free(struct vault_value *val)
{
	OPENSSL_secure_clear_free(val->p, val->p ? val->n + 1 : 0);
	*val = (struct vault_value){ 0 };
}

/* One GCM pass. `in` and `out` have n bytes; tag is written (seal) or checked. */
static int gcm(const struct vault *v, bool seal, const unsigned char *nonce, const char *id,
	       const unsigned char *in, size_t n, unsigned char *out, unsigned char tag[TAG_LEN])
{
	EVP_CIPHER_CTX *c = EVP_CIPHER_CTX_new();
	int len, ok;

	ok = c && EVP_CipherInit_ex(c, EVP_aes_256_gcm(), NULL, v->key, nonce, seal) == 1 &&
	     EVP_CipherUpdate(c, NULL, &len, (const unsigned char *)id, (int)strlen(id)) == 1 &&
	     EVP_CipherUpdate(c, out, &len, in, (int)n) == 1;
	if (ok && !seal)
		ok = EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_GCM_SET_TAG, TAG_LEN, tag) == 1;
	if (ok)
		ok = EVP_CipherFinal_ex(c, out + n, &len) == 1;
	if (ok && seal)
		ok = EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_GCM_GET_TAG, TAG_LEN, tag) == 1;
	EVP_CIPHER_CTX_free(c);
	return ok ? 0 : -EIO;
}

int vault_seal(const struct vault *v, const char *id, const char *value, size_t n, struct buf *out,
	       struct err *e)
{
	unsigned char raw[1 + NONCE_LEN + VAULT_VALUE_MAX + TAG_LEN];

	if (n > VAULT_VALUE_MAX)
		return err_set(e, "secret_invalid", E2BIG, "a value has at most %d bytes",
			       VAULT_VALUE_MAX);
	raw[0] = SEAL_VERSION;
	if (RAND_bytes(raw + 1, NONCE_LEN) != 1 ||
	    gcm(v, true, raw + 1, id, (const unsigned char *)value, n, raw + 1 + NONCE_LEN,
		raw + 1 + NONCE_LEN + n) < 0)
		return err_set(e, "system", EIO, "cannot seal a secret");
	if (base64_encode(out, raw, 1 + NONCE_LEN + n + TAG_LEN) < 0)
		return err_errno(e, ENOMEM, "seal a secret");
	return 0;
}

int vault_unseal(const struct vault *v, const char *id, const char *sealed, struct vault_value *out,
		 struct err *e)
{
	_cleanup_buf_ struct buf raw = { 0 };
	struct vault_value val;

	if (base64_decode(&raw, sealed, strlen(sealed)) < 0 || raw.len < 1 + NONCE_LEN + TAG_LEN ||
	    raw.data[0] != SEAL_VERSION || raw.len > 1 + NONCE_LEN + VAULT_VALUE_MAX + TAG_LEN)
		return err_set(e, "secret_invalid", EINVAL, "secret %s: not a sealed value", id);
	val.n = raw.len - 1 - NONCE_LEN - TAG_LEN;
	val.p = OPENSSL_secure_zalloc(val.n + 1);
	if (!val.p)
		return err_errno(e, ENOMEM, "secret %s", id);
	if (gcm(v, false, (unsigned char *)raw.data + 1, id,
		(unsigned char *)raw.data + 1 + NONCE_LEN, val.n, (unsigned char *)val.p,
		(unsigned char *)raw.data + raw.len - TAG_LEN) < 0) {
		vault_value_free(&val);
		return err_set(e, "secret_invalid", EBADMSG,
			       "secret %s does not open: another key, another id, or damage", id);
	}
	*out = val;
	return 0;
}

int vault_placeholder(const struct vault *v, const char *scope, const char *id,
		      char out[EGRESS_PLACEHOLDER_LEN + 1], struct err *e)
{
	static const char digits[] = "0123456789abcdef", label[] = "placeholder";
	unsigned char sub[EVP_MAX_MD_SIZE], mac[EVP_MAX_MD_SIZE];
	_cleanup_buf_ struct buf what = { 0 };
	unsigned n;
	size_t at = strlen(EGRESS_PLACEHOLDER_PREFIX);

	if (buf_printf(&what, "%s/%s", scope, id) < 0)
		return err_errno(e, ENOMEM, "placeholder");
	if (!HMAC(EVP_sha256(), v->key, KEY_LEN, (const unsigned char *)label, sizeof(label), sub,
		  &n) ||
	    !HMAC(EVP_sha256(), sub, (int)n, (unsigned char *)what.data, what.len, mac, &n))
		return err_set(e, "system", EIO, "cannot make a placeholder");
	OPENSSL_cleanse(sub, sizeof(sub));
	memcpy(out, EGRESS_PLACEHOLDER_PREFIX, at);
	for (size_t i = 0; i < EGRESS_PLACEHOLDER_HEX / 2; i++) {
		out[at + 2 * i] = digits[mac[i] >> 4];
		out[at + 2 * i + 1] = digits[mac[i] & 15];
	}
	out[EGRESS_PLACEHOLDER_LEN] = '\0';
	return 0;
}
