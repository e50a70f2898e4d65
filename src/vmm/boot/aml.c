/*
 * Bytes are appended in order. A length that is known only at the end (PkgLength, buffer size) is
 * reserved at its widest form when the scope opens and filled in when it closes: a PkgLength of
 * four bytes (28 bits), which the specification allows for any size.
 */
#include "vmm/boot/aml.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#define PKG_LENGTH_BYTES 4
#define PKG_LENGTH_MAX 0x0fffffffU

enum {
	OP_NAME = 0x08,
	OP_BYTE = 0x0a,
	OP_WORD = 0x0b,
	OP_DWORD = 0x0c,
	OP_STRING = 0x0d,
	OP_QWORD = 0x0e,
	OP_SCOPE = 0x10,
	OP_BUFFER = 0x11,
	OP_PACKAGE = 0x12,
	OP_EXT = 0x5b,
	OP_EXT_DEVICE = 0x82,
};

static void put(struct aml *a, const void *p, size_t n)
{
	if (a->error == 0 && buf_add(&a->out, p, n) < 0)
		a->error = -ENOMEM;
}

static void put_byte(struct aml *a, uint8_t v)
{
	put(a, &v, 1);
}

static void put_le(struct aml *a, uint64_t v, unsigned bytes)
{
	for (unsigned i = 0; i < bytes; i++)
		put_byte(a, (uint8_t)(v >> (8 * i)));
}

/* A NameString: optional root, then segments of four padded with underscores. */
static void put_name(struct aml *a, const char *name)
{
	char seg[4] = { '_', '_', '_', '_' };
	size_t n;

	if (*name == '\\') {
		put_byte(a, '\\');
		name++;
	}
	n = strlen(name);
	if (n == 0 || n > sizeof(seg)) {
		a->error = a->error ? a->error : -EINVAL;
		return;
	}
	memcpy(seg, name, n);
	put(a, seg, sizeof(seg));
}

static void open_length(struct aml *a)
{
	static const uint8_t room[PKG_LENGTH_BYTES];

	if (a->depth == AML_DEPTH_MAX) {
		a->error = a->error ? a->error : -E2BIG;
		return;
	}
	a->open[a->depth++] = a->out.len;
	put(a, room, sizeof(room));
}

void aml_close(struct aml *a)
{
	size_t at, length;
	uint8_t *p;

	if (a->error)
		return;
	if (a->depth == 0) {
		a->error = -EINVAL;
		return;
	}
	at = a->open[--a->depth];
	length = a->out.len - at; /* counts its own bytes */
	if (length > PKG_LENGTH_MAX) {
		a->error = -E2BIG;
		return;
	}
	p = (uint8_t *)a->out.data + at;
	p[0] = (uint8_t)((PKG_LENGTH_BYTES - 1) << 6 | (length & 0x0f));
	p[1] = (uint8_t)(length >> 4);
	p[2] = (uint8_t)(length >> 12);
	p[3] = (uint8_t)(length >> 20);
}

void aml_scope_open(struct aml *a, const char *path)
{
	put_byte(a, OP_SCOPE);
	open_length(a);
	put_name(a, path);
}

void aml_device_open(struct aml *a, const char *name)
{
	put_byte(a, OP_EXT);
	put_byte(a, OP_EXT_DEVICE);
	open_length(a);
	put_name(a, name);
}

static void put_integer(struct aml *a, uint64_t v)
{
	if (v <= 1) {
		put_byte(a, (uint8_t)v); /* ZeroOp, OneOp */
	} else if (v <= UINT8_MAX) {
		put_byte(a, OP_BYTE);
		put_le(a, v, 1);
	} else if (v <= UINT16_MAX) {
		put_byte(a, OP_WORD);
		put_le(a, v, 2);
	} else if (v <= UINT32_MAX) {
		put_byte(a, OP_DWORD);
		put_le(a, v, 4);
	} else {
		put_byte(a, OP_QWORD);
		put_le(a, v, 8);
	}
}

static void put_name_op(struct aml *a, const char *name)
{
	put_byte(a, OP_NAME);
	put_name(a, name);
}

void aml_name_integer(struct aml *a, const char *name, uint64_t value)
{
	put_name_op(a, name);
	put_integer(a, value);
}

void aml_name_string(struct aml *a, const char *name, const char *value)
{
	put_name_op(a, name);
	put_byte(a, OP_STRING);
	put(a, value, strlen(value) + 1);
}

static int hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return -1;
}

/* Three letters in five bits each, four hex digits; stored big endian in a DWord constant. */
void aml_name_eisa_id(struct aml *a, const char *name, const char *id)
{
	uint32_t v = 0;
	bool ok = strlen(id) == 7;

	for (int i = 0; ok && i < 3; i++) {
		ok = id[i] >= 'A' && id[i] <= 'Z';
		v = v << 5 | (uint32_t)(id[i] - 'A' + 1);
	}
	for (int i = 3; ok && i < 7; i++) {
		ok = hex_digit(id[i]) >= 0;
		v = v << 4 | (uint32_t)hex_digit(id[i]);
	}
	if (!ok) {
		a->error = a->error ? a->error : -EINVAL;
		return;
	}
	put_name_op(a, name);
	put_byte(a, OP_DWORD);
	put_le(a, __builtin_bswap32(v), 4);
}

void aml_name_package(struct aml *a, const char *name, const uint8_t *values, uint8_t n)
{
	put_name_op(a, name);
	put_byte(a, OP_PACKAGE);
	open_length(a);
	put_byte(a, n);
	for (uint8_t i = 0; i < n; i++)
		put_integer(a, values[i]);
	aml_close(a);
}

/* A buffer: its size is a DWord constant filled in on close, right after the package length. */
void aml_resources_open(struct aml *a)
{
	put_name_op(a, "_CRS");
	put_byte(a, OP_BUFFER);
	open_length(a);
	put_byte(a, OP_DWORD);
	put_le(a, 0, 4);
}

void aml_resources_close(struct aml *a)
{
	size_t size_at, size;

	put_byte(a, 0x79); /* end tag */
	put_byte(a, 0);	   /* checksum 0: not checked */
	if (a->error)
		return;
	if (a->depth == 0) {
		a->error = -EINVAL;
		return;
	}
	size_at = a->open[a->depth - 1] + PKG_LENGTH_BYTES + 1;
	size = a->out.len - (size_at + 4);
	for (unsigned i = 0; i < 4; i++)
		a->out.data[size_at + i] = (char)(size >> (8 * i));
	aml_close(a);
}

void aml_resource_io(struct aml *a, uint16_t port, uint8_t length)
{
	put_byte(a, 0x47); /* I/O port descriptor */
	put_byte(a, 1);	   /* 16-bit decode */
	put_le(a, port, 2);
	put_le(a, port, 2);
	put_byte(a, 1); /* alignment */
	put_byte(a, length);
}

void aml_resource_memory32(struct aml *a, uint32_t base, uint32_t length)
{
	put_byte(a, 0x86); /* 32-bit fixed memory */
	put_le(a, 9, 2);
	put_byte(a, 1); /* read-write */
	put_le(a, base, 4);
	put_le(a, length, 4);
}

void aml_resource_interrupt(struct aml *a, uint32_t gsi)
{
	put_byte(a, 0x89); /* extended interrupt */
	put_le(a, 6, 2);
	put_byte(a, 0x03); /* consumer, edge; active high, exclusive */
	put_byte(a, 1);	   /* one interrupt */
	put_le(a, gsi, 4);
}

int aml_finish(struct aml *a)
{
	if (a->error == 0 && a->depth != 0)
		a->error = -EINVAL;
	return a->error;
}

void aml_free(struct aml *a)
{
	buf_free(&a->out);
}
