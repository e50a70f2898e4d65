/* Names and values one after the other in a buffer, fields as places in it. No state. */
#include "egress/h2_headers.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <stdlib.h>
#include <string.h>

#include "egress/http_head.h"
#include "egress/swap.h"

void h2_headers_clear(struct h2_headers *h)
{
	if (h->text.data)
		OPENSSL_cleanse(h->text.data, h->text.cap);
	buf_free(&h->text);
	free(h->fields);
	*h = (struct h2_headers){ 0 };
}

/* Starts a field whose name is appended; the value follows in text. */
static int field_start(struct h2_headers *h, const uint8_t *name, size_t name_len, uint8_t flags)
{
	struct h2_field *f = reallocarray(h->fields, h->n + 1, sizeof(*f));

	if (!f)
		return -ENOMEM;
	h->fields = f;
	f[h->n] = (struct h2_field){ .name = h->text.len, .name_len = name_len, .flags = flags };
	if (buf_add(&h->text, name, name_len) < 0)
		return -ENOMEM;
	f[h->n].value = h->text.len;
	return 0;
}

static void field_end(struct h2_headers *h)
{
	h->fields[h->n].value_len = h->text.len - h->fields[h->n].value;
	h->n++;
}

int h2_headers_add(struct h2_headers *h, const uint8_t *name, size_t name_len, const uint8_t *value,
		   size_t value_len, uint8_t flags)
{
	int r;

	if (h->n == H2_FIELDS_MAX || h->text.len + name_len + value_len > H2_BLOCK_MAX)
		return -EMSGSIZE;
	r = field_start(h, name, name_len, flags);
	if (r < 0 || (r = buf_add(&h->text, value, value_len)) < 0)
		return r;
	field_end(h);
	return 0;
}

const char *h2_headers_get(const struct h2_headers *h, const char *name, size_t *len)
{
	for (size_t i = 0; i < h->n; i++) {
		const struct h2_field *f = &h->fields[i];

		if (f->name_len == strlen(name) &&
		    memcmp(h->text.data + f->name, name, f->name_len) == 0) {
			*len = f->value_len;
			return h->text.data + f->value;
		}
	}
	return NULL;
}

int h2_headers_swap(const struct h2_headers *h, struct swap_target *t, struct h2_headers *out)
{
	for (size_t i = 0; i < h->n; i++) {
		const struct h2_field *f = &h->fields[i];
		struct slice name = { h->text.data + f->name, f->name_len };
		struct slice value = { h->text.data + f->value, f->value_len };
		const char *used = t->used;
		int r = field_start(out, (const uint8_t *)name.p, name.n, f->flags);

		if (r < 0)
			return r;
		r = slice_is(name, ":path") ? swap_path(t, value, &out->text)
					    : swap_header(t, name, value, &out->text);
		if (r < 0)
			return r;
		/* A value in the dynamic table could be probed for by other requests. */
		if (t->used != used || slice_is(name, "authorization"))
			out->fields[out->n].flags |= NGHTTP2_NV_FLAG_NO_INDEX;
		field_end(out);
	}
	return 0;
}

nghttp2_nv *h2_headers_nv(const struct h2_headers *h)
{
	nghttp2_nv *nv = calloc(h->n + 1, sizeof(*nv));

	for (size_t i = 0; nv && i < h->n; i++) {
		const struct h2_field *f = &h->fields[i];

		nv[i] = (nghttp2_nv){ .name = (uint8_t *)h->text.data + f->name,
				      .namelen = f->name_len,
				      .value = (uint8_t *)h->text.data + f->value,
				      .valuelen = f->value_len,
				      .flags = f->flags & NGHTTP2_NV_FLAG_NO_INDEX };
	}
	return nv;
}
