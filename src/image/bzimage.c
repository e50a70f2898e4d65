/*
 * The setup header (Documentation/x86/boot.rst) says where in the protected-mode part the packed
 * kernel lies: payload_offset and payload_length, there since boot protocol 2.08. The kernel build
 * appends the unpacked size as four little-endian bytes, which bounds the output before anything is
 * unpacked. Every offset read from the file is checked against the file's size before use.
 */
#include "image/bzimage.h"

#include <elf.h>
#include <errno.h>
#include <lz4.h>
#include <lzma.h>
#include <stdbool.h>
#include <string.h>
#include <zstd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"

#define SETUP_SECTS 0x1f1
#define HEADER_MAGIC 0x202
#define HEADER_VERSION 0x206
#define PAYLOAD_OFFSET 0x248
#define PAYLOAD_LENGTH 0x24c
#define HEADER_END 0x250

#define LZ4_LEGACY_MAGIC 0x184c2102U
#define LZ4_LEGACY_BLOCK (8UL << 20) /* unpacked bytes in every block but the last */
#define ZSTD_MAGIC 0xfd2fb528U
#define RATIO_MAX 1000 /* no kernel shrinks that far */
#define PVH_NOTE_TYPE 18 /* XEN_ELFNOTE_PHYS32_ENTRY */

static const uint8_t xz_magic[] = { 0xfd, '7', 'z', 'X', 'Z', 0 };

static uint32_t le32(const uint8_t *p)
{
	return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static int bad(struct err *e, const char *why)
{
	return err_set(e, "bad_kernel", EINVAL, "the kernel image cannot be used: %s", why);
}

/* Sets *p and *n to the payload, its size word included. */
static int find_payload(const uint8_t *image, size_t size, const uint8_t **p, size_t *n,
			struct err *e)
{
	uint64_t start, len;
	unsigned sects;

	if (size < HEADER_END || memcmp(image + HEADER_MAGIC, "HdrS", 4) != 0)
		return bad(e, "no Linux boot header");
	if ((image[HEADER_VERSION] | image[HEADER_VERSION + 1] << 8) < 0x208)
		return bad(e, "boot protocol older than 2.08");
	sects = image[SETUP_SECTS] ? image[SETUP_SECTS] : 4;
	start = ((uint64_t)sects + 1) * 512 + le32(image + PAYLOAD_OFFSET);
	len = le32(image + PAYLOAD_LENGTH);
	if (len < 8 || start > size || len > size - start)
		return bad(e, "the payload lies outside the file");
	*p = image + start;
	*n = len;
	return 0;
}

/* LZ4's legacy frame: a magic, then blocks of a 32-bit packed size and their bytes. */
static int unpack_lz4(const uint8_t *p, size_t n, struct buf *out, size_t want, struct err *e)
{
	size_t done = 0, at = 4;

	while (at + 4 <= n && done < want) {
		size_t packed = le32(p + at);
		size_t room = want - done < LZ4_LEGACY_BLOCK ? want - done : LZ4_LEGACY_BLOCK;
		int got;

		at += 4;
		if (packed > n - at)
			return bad(e, "an LZ4 block is cut short");
		got = LZ4_decompress_safe((const char *)p + at, out->data + out->len, (int)packed,
					  (int)room);
		if (got <= 0)
			return bad(e, "an LZ4 block is damaged");
		out->len += (size_t)got;
		done += (size_t)got;
		at += packed;
	}
	return done == want ? 0 : bad(e, "the LZ4 payload ends early");
}

static int unpack_zstd(const uint8_t *p, size_t n, struct buf *out, size_t want, struct err *e)
{
	ZSTD_DCtx *d = ZSTD_createDCtx();
	ZSTD_inBuffer in = { p, n, 0 };
	ZSTD_outBuffer to = { out->data + out->len, want, 0 };
	size_t ret = 1;

	if (!d)
		return err_errno(e, ENOMEM, "unpack the kernel");
	/* Kernels are packed with a window as large as they are. */
	ZSTD_DCtx_setParameter(d, ZSTD_d_windowLogMax, 28);
	while (ret != 0 && !ZSTD_isError(ret) && in.pos < in.size && to.pos <= to.size) {
		size_t before = in.pos + to.pos;

		ret = ZSTD_decompressStream(d, &to, &in);
		if (in.pos + to.pos == before)
			break;
	}
	ZSTD_freeDCtx(d);
	if (ret != 0 || to.pos != want)
		return bad(e, "the Zstandard payload is damaged");
	out->len += want;
	return 0;
}

static int unpack_xz(const uint8_t *p, size_t n, struct buf *out, size_t want, struct err *e)
{
	uint64_t memory = 512UL << 20;
	size_t in = 0, got = 0;

	if (lzma_stream_buffer_decode(&memory, 0, NULL, p, &in, n, (uint8_t *)out->data + out->len,
				      &got, want) != LZMA_OK ||
	    got != want)
		return bad(e, "the XZ payload is damaged");
	out->len += want;
	return 0;
}

static int unpack(const uint8_t *p, size_t n, struct buf *out, struct err *e)
{
	size_t want = le32(p + n - 4), old = out->len;
	int ret;

	if (n >= SELFMAG && memcmp(p, ELFMAG, SELFMAG) == 0)
		return buf_add(out, p, n) < 0 ? err_errno(e, ENOMEM, "unpack the kernel") : 0;
	if (want < sizeof(Elf64_Ehdr) || want > BZIMAGE_KERNEL_MAX || want / RATIO_MAX > n)
		return bad(e, "its unpacked size makes no sense");
	if (buf_reserve(out, want) < 0)
		return err_errno(e, ENOMEM, "unpack the kernel");
	if (le32(p) == LZ4_LEGACY_MAGIC)
		ret = unpack_lz4(p, n - 4, out, want, e);
	else if (le32(p) == ZSTD_MAGIC)
		ret = unpack_zstd(p, n - 4, out, want, e);
	else if (n > sizeof(xz_magic) && memcmp(p, xz_magic, sizeof(xz_magic)) == 0)
		ret = unpack_xz(p, n - 4, out, want, e);
	else
		ret = bad(e, "packed with none of LZ4, Zstandard and XZ");
	if (ret < 0)
		out->len = old;
	out->data[out->len] = '\0';
	return ret;
}

/* Whether one note segment holds Xen's PHYS32_ENTRY. */
static bool note_has_pvh(const uint8_t *p, size_t n)
{
	size_t at = 0;

	while (n - at >= sizeof(Elf64_Nhdr)) {
		Elf64_Nhdr h;
		uint64_t name, desc;

		memcpy(&h, p + at, sizeof(h));
		name = ((uint64_t)h.n_namesz + 3) & ~3ULL;
		desc = ((uint64_t)h.n_descsz + 3) & ~3ULL;
		at += sizeof(h);
		if (name + desc > n - at)
			return false;
		if (h.n_type == PVH_NOTE_TYPE && h.n_namesz == 4 && memcmp(p + at, "Xen", 4) == 0)
			return true;
		at += name + desc;
	}
	return false;
}

static int check_elf(const uint8_t *p, size_t n, struct err *e)
{
	Elf64_Ehdr h;

	if (n < sizeof(h))
		return bad(e, "too short for an ELF");
	memcpy(&h, p, sizeof(h));
	if (memcmp(h.e_ident, ELFMAG, SELFMAG) != 0 || h.e_ident[EI_CLASS] != ELFCLASS64 ||
	    h.e_machine != EM_X86_64)
		return bad(e, "what it holds is not an x86-64 ELF");
	for (unsigned i = 0; i < h.e_phnum; i++) {
		uint64_t at = h.e_phoff + (uint64_t)i * sizeof(Elf64_Phdr);
		Elf64_Phdr ph;

		if (h.e_phentsize != sizeof(ph) || h.e_phoff > n || at > n - sizeof(ph))
			return bad(e, "its program headers lie outside the file");
		memcpy(&ph, p + at, sizeof(ph));
		if (ph.p_type != PT_NOTE || ph.p_offset > n || ph.p_filesz > n - ph.p_offset)
			continue;
		if (note_has_pvh(p + ph.p_offset, ph.p_filesz))
			return 0;
	}
	bad(e, "it has no PVH entry point");
	err_fix(e, "Use a kernel built with CONFIG_PVH=y.");
	return -EINVAL;
}

int bzimage_extract(const uint8_t *image, size_t n, struct buf *out, struct err *e)
{
	const uint8_t *p = NULL;
	size_t len = 0, old = out->len;
	int ret;

	ret = find_payload(image, n, &p, &len, e);
	if (ret == 0)
		ret = unpack(p, len, out, e);
	if (ret == 0)
		ret = check_elf((const uint8_t *)out->data + old, out->len - old, e);
	if (ret < 0)
		out->len = old;
	return ret;
}
