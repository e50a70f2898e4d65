/*
 * Two contexts. No session is resumed on the sandbox's side: its leaf may be another next time.
 * Each handshake towards a server is a full one too, so a policy or trust change holds at once.
 */
#include "egress/tls.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "egress/ca.h"
#include "egress/client_hello.h"

static const unsigned char alpn_h2[] = "\x02h2";
static const unsigned char alpn_http1[] = "\x08http/1.1";
static const unsigned char alpn_both[] = "\x02h2\x08http/1.1";

struct tls {
	struct ca *ca;
	SSL_CTX *server, *client;
};

static int ssl_error(struct err *e, const char *what)
{
	char text[256];

	ERR_error_string_n(ERR_get_error(), text, sizeof(text));
	ERR_clear_error();
	return err_set(e, "tls_failed", EIO, "%s: %s", what, text);
}

/* The session's application data is the one protocol it may speak ("h2" or "http/1.1"). */
static int on_alpn(SSL *ssl, const unsigned char **out, unsigned char *out_len,
		   const unsigned char *in, unsigned in_len, void *arg)
{
	const unsigned char *want = SSL_get_app_data(ssl);

	(void)arg;
	if (SSL_select_next_proto((unsigned char **)(uintptr_t)out, out_len, want, want[0] + 1u, in,
				  in_len) == OPENSSL_NPN_NEGOTIATED)
		return SSL_TLSEXT_ERR_OK;
	/* A client that offers neither speaks HTTP/1.1 if anything we can read. */
	return want == alpn_h2 ? SSL_TLSEXT_ERR_ALERT_FATAL : SSL_TLSEXT_ERR_NOACK;
}

/*
 * The system's authorities, read now and as a whole: looking them up in a folder when they are
 * needed is not possible once the process can open no file.
 */
static int load_system_trust(SSL_CTX *c)
{
	static const char *const bundles[] = { "/etc/ssl/certs/ca-certificates.crt",
					       "/etc/pki/tls/certs/ca-bundle.crt",
					       "/etc/ssl/cert.pem" };
	const char *env = getenv("SSL_CERT_FILE");

	if (env)
		return SSL_CTX_load_verify_file(c, env);
	for (size_t i = 0; i < ARRAY_SIZE(bundles); i++)
		if (access(bundles[i], R_OK) == 0)
			return SSL_CTX_load_verify_file(c, bundles[i]);
	return 1; /* none installed: only the trust file counts, and other servers are refused */
}

static SSL_CTX *context(const SSL_METHOD *method)
{
	SSL_CTX *c = SSL_CTX_new(method);

	if (!c)
		return NULL;
	SSL_CTX_set_min_proto_version(c, TLS1_2_VERSION);
	SSL_CTX_set_options(c, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION |
				       SSL_OP_IGNORE_UNEXPECTED_EOF);
	SSL_CTX_set_mode(c, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
				    SSL_MODE_RELEASE_BUFFERS);
	SSL_CTX_set_session_cache_mode(c, SSL_SESS_CACHE_OFF);
	SSL_CTX_set_num_tickets(c, 0);
	return c;
}

int tls_new(const char *state_dir, const char *trust_file, struct tls **out, struct err *e)
{
	struct tls *t = calloc(1, sizeof(*t));
	int r;

	if (!t)
		return err_errno(e, ENOMEM, "TLS");
	r = ca_open(state_dir, &t->ca, e);
	if (r < 0) {
		tls_free(t);
		return r;
	}
	t->server = context(TLS_server_method());
	t->client = context(TLS_client_method());
	if (!t->server || !t->client || load_system_trust(t->client) != 1 ||
	    (trust_file && SSL_CTX_load_verify_file(t->client, trust_file) != 1)) {
		r = ssl_error(e, trust_file ? trust_file : "TLS");
		tls_free(t);
		return r;
	}
	SSL_CTX_set_verify(t->client, SSL_VERIFY_PEER, NULL);
	SSL_CTX_set_alpn_select_cb(t->server, on_alpn, NULL);
	*out = t;
	return 0;
}

void tls_free(struct tls *t)
{
	if (!t)
		return;
	SSL_CTX_free(t->server);
	SSL_CTX_free(t->client);
	ca_free(t->ca);
	free(t);
}

const char *tls_ca_pem(const struct tls *t)
{
	return ca_pem(t->ca);
}

int tls_upstream(struct tls *t, int fd, const char *host, const struct client_hello *offered,
		 SSL **out, struct err *e)
{
	const unsigned char *alpn = offered->alpn_h2 && offered->alpn_http1 ? alpn_both
				    : offered->alpn_h2			    ? alpn_h2
									    : alpn_http1;
	SSL *s = SSL_new(t->client);

	if (!s || SSL_set_fd(s, fd) != 1 || SSL_set_tlsext_host_name(s, host) != 1 ||
	    SSL_set1_host(s, host) != 1 ||
	    (offered->alpn && SSL_set_alpn_protos(s, alpn, (unsigned)strlen((const char *)alpn)))) {
		SSL_free(s);
		return ssl_error(e, "TLS to the server");
	}
	SSL_set_hostflags(s, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
	SSL_set_connect_state(s);
	*out = s;
	return 0;
}

int tls_downstream(struct tls *t, int fd, const char *host, bool h2, SSL **out, struct err *e)
{
	SSL *s = SSL_new(t->server);
	X509 *leaf;
	int r = ca_leaf(t->ca, host, &leaf, e);

	if (r < 0) {
		SSL_free(s);
		return r;
	}
	if (!s || SSL_set_fd(s, fd) != 1 || SSL_use_certificate(s, leaf) != 1 ||
	    SSL_use_PrivateKey(s, ca_leaf_key(t->ca)) != 1 ||
	    SSL_set_app_data(s, (void *)(uintptr_t)(h2 ? alpn_h2 : alpn_http1)) != 1) {
		SSL_free(s);
		return ssl_error(e, "TLS to the sandbox");
	}
	SSL_set_accept_state(s);
	*out = s;
	return 0;
}

bool tls_is_h2(SSL *ssl)
{
	const unsigned char *p = NULL;
	unsigned n = 0;

	SSL_get0_alpn_selected(ssl, &p, &n);
	return n == 2 && memcmp(p, "h2", 2) == 0;
}
