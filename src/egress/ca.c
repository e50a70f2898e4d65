/*
 * P-256 throughout. One key, made at start and never stored, serves all leaves: what tells hosts
 * apart is the certificate. The cache is a small table with the least recently used entry
 * replaced; leaves are remade well before they end.
 */
#include "egress/ca.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "egress/hostname.h"

#define DAY 86400L
#define CA_DAYS 3650L
#define LEAF_DAYS 90L
#define LEAF_RENEW_DAYS 30L
#define SKEW_DAYS 7L /* a guest's clock may be behind */
#define CACHE 256

struct leaf {
	char host[HOSTNAME_LEN];
	X509 *cert;
	uint64_t made, used;
};

struct ca {
	X509 *cert;
	EVP_PKEY *key, *leaf_key;
	char *pem;
	struct leaf leaves[CACHE];
};

static int ssl_error(struct err *e, const char *what)
{
	char text[256];

	ERR_error_string_n(ERR_get_error(), text, sizeof(text));
	ERR_clear_error();
	return err_set(e, "tls_failed", EIO, "%s: %s", what, text);
}

static int add_extension(X509 *cert, X509 *issuer, int nid, const char *value)
{
	X509V3_CTX ctx;
	X509_EXTENSION *x;
	int ok;

	X509V3_set_ctx(&ctx, issuer, cert, NULL, NULL, 0);
	x = X509V3_EXT_conf_nid(NULL, &ctx, nid, value);
	ok = x && X509_add_ext(cert, x, -1) == 1;
	X509_EXTENSION_free(x);
	return ok;
}

static int random_serial(X509 *cert)
{
	unsigned char b[16];
	BIGNUM *n;
	int ok;

	if (RAND_bytes(b, sizeof(b)) != 1)
		return 0;
	b[0] &= 0x7f;
	n = BN_bin2bn(b, sizeof(b), NULL);
	ok = n && BN_to_ASN1_INTEGER(n, X509_get_serialNumber(cert));
	BN_free(n);
	return ok;
}

/* A certificate with names, key and times set; extensions and signature come after. */
static X509 *cert_start(const char *cn, X509_NAME *issuer, EVP_PKEY *key, long days)
{
	X509 *c = X509_new();
	X509_NAME *name = c ? X509_get_subject_name(c) : NULL;

	if (c && X509_set_version(c, 2) && random_serial(c) &&
	    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, (const unsigned char *)cn, -1, -1,
				       0) &&
	    X509_set_issuer_name(c, issuer ? issuer : name) &&
	    X509_gmtime_adj(X509_getm_notBefore(c), -SKEW_DAYS * DAY) &&
	    X509_gmtime_adj(X509_getm_notAfter(c), days * DAY) && X509_set_pubkey(c, key))
		return c;
	X509_free(c);
	return NULL;
}

static int make_ca(struct ca *ca, struct err *e)
{
	unsigned char tag[4];
	char cn[64];

	if (RAND_bytes(tag, sizeof(tag)) != 1)
		return ssl_error(e, "make the certificate authority");
	snprintf(cn, sizeof(cn), "Cloche egress CA %02x%02x%02x%02x", tag[0], tag[1], tag[2],
		 tag[3]);
	ca->key = EVP_EC_gen("P-256");
	ca->cert = ca->key ? cert_start(cn, NULL, ca->key, CA_DAYS) : NULL;
	if (!ca->cert ||
	    !add_extension(ca->cert, ca->cert, NID_basic_constraints,
			   "critical,CA:TRUE,pathlen:0") ||
	    !add_extension(ca->cert, ca->cert, NID_key_usage, "critical,keyCertSign,cRLSign") ||
	    !add_extension(ca->cert, ca->cert, NID_subject_key_identifier, "hash") ||
	    !X509_sign(ca->cert, ca->key, EVP_sha256()))
		return ssl_error(e, "make the certificate authority");
	return 0;
}

static int write_pem(const char *path, mode_t mode, X509 *cert, EVP_PKEY *key, struct err *e)
{
	BIO *b = BIO_new(cert ? BIO_s_mem() : BIO_s_secmem());
	char *p;
	long n;
	int r;

	if (!b || !(cert ? PEM_write_bio_X509(b, cert)
			 : PEM_write_bio_PrivateKey(b, key, NULL, NULL, 0, NULL, NULL))) {
		BIO_free(b);
		return ssl_error(e, "write a key");
	}
	n = BIO_get_mem_data(b, &p);
	r = fd_write_file_atomic(path, p, (size_t)n, mode, e);
	BIO_free(b);
	return r;
}

/* The key goes first: a certificate without its key would be trusted and of no use. */
static int keep_ca(struct ca *ca, const char *cert_path, const char *key_path, struct err *e)
{
	int r = make_ca(ca, e);

	if (r == 0)
		r = write_pem(key_path, 0600, NULL, ca->key, e);
	if (r == 0)
		r = write_pem(cert_path, 0644, ca->cert, NULL, e);
	return r;
}

static int load_key(struct ca *ca, const char *path, struct err *e)
{
	_cleanup_fclose_ FILE *f = fopen(path, "re");
	struct stat st;

	if (!f || fstat(fileno(f), &st) < 0)
		return err_errno(e, errno, "open %s", path);
	if (st.st_mode & 077)
		return err_set(e, "key_exposed", EPERM, "%s can be read by others (mode %o)", path,
			       st.st_mode & 07777);
	ca->key = PEM_read_PrivateKey(f, NULL, NULL, NULL);
	return ca->key ? 0 : ssl_error(e, path);
}

static int load_ca(struct ca *ca, const char *cert_path, const char *key_path, struct err *e)
{
	_cleanup_fclose_ FILE *f = fopen(cert_path, "re");
	int r;

	if (!f && errno == ENOENT)
		return keep_ca(ca, cert_path, key_path, e);
	if (!f)
		return err_errno(e, errno, "open %s", cert_path);
	ca->cert = PEM_read_X509(f, NULL, NULL, NULL);
	if (!ca->cert)
		return ssl_error(e, cert_path);
	r = load_key(ca, key_path, e);
	if (r < 0)
		return r;
	if (X509_check_private_key(ca->cert, ca->key) != 1)
		return err_set(e, "ca_invalid", EINVAL, "%s does not belong to %s", key_path,
			       cert_path);
	return 0;
}

int ca_open(const char *dir, struct ca **out, struct err *e)
{
	_cleanup_buf_ struct buf cert = { 0 }, key = { 0 }, pem = { 0 };
	struct ca *ca = calloc(1, sizeof(*ca));
	int r = 0;

	if (!ca || buf_printf(&cert, "%s/ca.pem", dir) < 0 ||
	    buf_printf(&key, "%s/ca.key", dir) < 0)
		r = err_errno(e, ENOMEM, "certificate authority");
	if (r == 0)
		r = load_ca(ca, cert.data, key.data, e);
	if (r == 0 && !(ca->leaf_key = EVP_EC_gen("P-256")))
		r = ssl_error(e, "make a key for leaves");
	if (r == 0)
		r = fd_read_file(cert.data, &pem, 1 << 16, e);
	if (r < 0) {
		ca_free(ca);
		return r;
	}
	ca->pem = buf_steal(&pem);
	*out = ca;
	return 0;
}

void ca_free(struct ca *ca)
{
	if (!ca)
		return;
	for (size_t i = 0; i < CACHE; i++)
		X509_free(ca->leaves[i].cert);
	X509_free(ca->cert);
	EVP_PKEY_free(ca->key);
	EVP_PKEY_free(ca->leaf_key);
	free(ca->pem);
	free(ca);
}

const char *ca_pem(const struct ca *ca)
{
	return ca->pem;
}

X509 *ca_cert(const struct ca *ca)
{
	return ca->cert;
}

EVP_PKEY *ca_leaf_key(const struct ca *ca)
{
	return ca->leaf_key;
}

static int make_leaf(struct ca *ca, const char *host, X509 **out, struct err *e)
{
	char san[HOSTNAME_LEN + 8];
	X509 *c;

	snprintf(san, sizeof(san), "DNS:%s", host);
	/* The name is in the SAN, where clients look; a CN holds no more than 64 bytes. */
	c = cert_start("Cloche egress", X509_get_subject_name(ca->cert), ca->leaf_key, LEAF_DAYS);
	if (!c || !add_extension(c, ca->cert, NID_basic_constraints, "critical,CA:FALSE") ||
	    !add_extension(c, ca->cert, NID_key_usage, "critical,digitalSignature") ||
	    !add_extension(c, ca->cert, NID_ext_key_usage, "serverAuth") ||
	    !add_extension(c, ca->cert, NID_authority_key_identifier, "keyid") ||
	    !add_extension(c, ca->cert, NID_subject_alt_name, san) ||
	    !X509_sign(c, ca->key, EVP_sha256())) {
		X509_free(c);
		return ssl_error(e, "make a certificate");
	}
	*out = c;
	return 0;
}

int ca_leaf(struct ca *ca, const char *host, X509 **out, struct err *e)
{
	uint64_t now = clock_mono_ns(), renew = (uint64_t)LEAF_RENEW_DAYS * DAY * NSEC_PER_SEC;
	struct leaf *l = &ca->leaves[0];
	X509 *cert;
	int r;

	for (size_t i = 0; i < CACHE; i++) {
		if (ca->leaves[i].cert && strcmp(ca->leaves[i].host, host) == 0) {
			l = &ca->leaves[i];
			break;
		}
		if (ca->leaves[i].used < l->used)
			l = &ca->leaves[i];
	}
	if (!l->cert || strcmp(l->host, host) != 0 || now - l->made > renew) {
		r = make_leaf(ca, host, &cert, e);
		if (r < 0)
			return r;
		X509_free(l->cert);
		l->cert = cert;
		l->made = now;
		snprintf(l->host, sizeof(l->host), "%s", host);
	}
	l->used = now;
	*out = l->cert;
	return 0;
}
