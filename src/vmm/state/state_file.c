/*
 * Sections start at multiples of 8, so that structs in them may be copied with natural alignment.
 * The digest covers all bytes after the header; the header's own fields are checked against what
 * they describe.
 */
#include "vmm/state/state_file.h"

#include <errno.h>
#include <string.h>

#include "base/err.h"
#include "base/sha256.h"

#define STATE_MAGIC "CLOCHEVM"
#define ALIGN 8u

struct header {
	char magic[8];
	uint32_t version, reserved;
	uint64_t length; /* of the whole state */
	uint8_t digest[SHA256_LEN];
};

struct section {
	uint32_t tag, index;
	uint64_t length; /* of the payload, without padding */
};

_Static_assert(sizeof(struct header) == 56, "state header layout");
_Static_assert(sizeof(struct section) == 16, "state section layout");

#define invalid(e, ...) err_set(e, "state_invalid", EBADMSG, "saved state: " __VA_ARGS__)

int state_begin(struct buf *b)
{
	struct header h = { .version = STATE_VERSION };

	memcpy(h.magic, STATE_MAGIC, sizeof(h.magic));
	return buf_add(b, &h, sizeof(h));
}

int state_add(struct buf *b, enum state_tag tag, uint32_t index, const void *p, size_t n)
{
	static const char zero[ALIGN];
	struct section s = { (uint32_t)tag, index, n };
	int r = buf_add(b, &s, sizeof(s));

	if (r == 0)
		r = buf_add(b, p, n);
	return r < 0 ? r : buf_add(b, zero, -n % ALIGN);
}

static void digest_of(const void *bytes, size_t len, uint8_t out[SHA256_LEN])
{
	struct sha256 s;

	sha256_init(&s);
	sha256_add(&s, (const char *)bytes + sizeof(struct header), len - sizeof(struct header));
	sha256_end(&s, out);
}

void state_finish(struct buf *b)
{
	struct header *h = (struct header *)b->data;

	h->length = b->len;
	digest_of(b->data, b->len, h->digest);
}

int state_open(const void *p, size_t n, struct state_view *out, struct err *e)
{
	uint8_t digest[SHA256_LEN];
	struct header h;

	if (n < sizeof(h))
		return invalid(e, "%zu bytes are too few", n);
	memcpy(&h, p, sizeof(h));
	if (memcmp(h.magic, STATE_MAGIC, sizeof(h.magic)) != 0)
		return invalid(e, "not one");
	if (h.version != STATE_VERSION)
		return err_set(e, "state_version", EPROTONOSUPPORT,
			       "saved state: version %u, this program reads %d", h.version,
			       STATE_VERSION);
	if (h.length != n || h.reserved)
		return invalid(e, "%zu bytes of %llu", n, (unsigned long long)h.length);
	digest_of(p, n, digest);
	if (memcmp(digest, h.digest, sizeof(digest)) != 0)
		return invalid(e, "the checksum is wrong");
	*out = (struct state_view){ p, n };
	return 0;
}

int state_section(const struct state_view *s, enum state_tag tag, uint32_t index, size_t want,
		  const void **p, size_t *n, struct err *e)
{
	size_t at = sizeof(struct header);

	while (s->len - at >= sizeof(struct section)) {
		struct section c;

		memcpy(&c, s->bytes + at, sizeof(c));
		at += sizeof(c);
		if (c.length > s->len - at)
			return invalid(e, "a section is longer than the file");
		if (c.tag == (uint32_t)tag && c.index == index) {
			if (want && c.length != want)
				return invalid(e, "section %d.%u has %llu bytes, not %zu", tag,
					       index, (unsigned long long)c.length, want);
			*p = s->bytes + at;
			*n = (size_t)c.length;
			return 0;
		}
		if (c.length + (-c.length % ALIGN) > s->len - at)
			break;
		at += (size_t)(c.length + (-c.length % ALIGN));
	}
	return invalid(e, "section %d.%u is missing", tag, index);
}
