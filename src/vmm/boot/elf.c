/*
 * Headers are copied out of the file with pread(2) and checked field by field; sizes are added
 * with overflow checks. Segments are only described here: the loader reads them straight into
 * guest memory. Refusing segments that overlap lets it leave fresh (zero) guest memory alone where
 * a segment is longer in memory than in the file.
 */
#include "vmm/boot/elf.h"

#include <elf.h>
#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "vmm/layout.h"

#define PHDRS_MAX 64
#define NOTES_MAX (64u << 10)
#define NOTE_OWNER "Xen"
#define NOTE_PHYS32_ENTRY 18

struct elf_file {
	int fd;
	uint64_t size;
};

#define invalid(e, ...) err_set(e, "kernel_invalid", ENOEXEC, "kernel: " __VA_ARGS__)

/* Reads exactly n bytes at off, which the file must have. */
static int file_read(const struct elf_file *f, uint64_t off, void *p, size_t n, struct err *e)
{
	size_t done = 0;

	if (off > f->size || n > f->size - off)
		return invalid(e, "the file ends before its headers do");
	while (done < n) {
		ssize_t r = pread(f->fd, (char *)p + done, n - done, (off_t)(off + done));

		if (r < 0 && errno == EINTR)
			continue;
		if (r < 0)
			return err_errno(e, errno, "read the kernel");
		if (r == 0)
			return invalid(e, "the file became shorter while it was read");
		done += (size_t)r;
	}
	return 0;
}

static int check_header(const Elf64_Ehdr *h, struct err *e)
{
	if (memcmp(h->e_ident, ELFMAG, SELFMAG) != 0)
		return invalid(e, "not an ELF file (a bzImage must be unpacked to its vmlinux)");
	if (h->e_ident[EI_CLASS] != ELFCLASS64 || h->e_ident[EI_DATA] != ELFDATA2LSB ||
	    h->e_machine != EM_X86_64)
		return invalid(e, "not a 64-bit x86 ELF file");
	if (h->e_type != ET_EXEC && h->e_type != ET_DYN)
		return invalid(e, "not an executable ELF file");
	if (h->e_phentsize != sizeof(Elf64_Phdr) || h->e_phnum == 0 || h->e_phnum > PHDRS_MAX)
		return invalid(e, "%u program headers of %u bytes", h->e_phnum, h->e_phentsize);
	return 0;
}

static bool ranges_overlap(uint64_t a, uint64_t an, uint64_t b, uint64_t bn)
{
	return a < b + bn && b < a + an;
}

static int add_segment(const struct elf_file *f, const Elf64_Phdr *p, struct elf_image *out,
		       struct err *e)
{
	uint64_t file_end, end;

	if (p->p_memsz == 0)
		return 0;
	if (p->p_filesz > p->p_memsz ||
	    __builtin_add_overflow(p->p_offset, p->p_filesz, &file_end) || file_end > f->size)
		return invalid(e, "a segment is larger than the file");
	if (p->p_paddr < LAYOUT_KERNEL_MIN ||
	    __builtin_add_overflow(p->p_paddr, p->p_memsz, &end) || end > LAYOUT_HOLE_END)
		return invalid(e, "a segment lies outside 1 MiB to 4 GiB");
	if (out->nsegments == ELF_SEGMENTS_MAX)
		return invalid(e, "more than %d segments", ELF_SEGMENTS_MAX);
	for (unsigned i = 0; i < out->nsegments; i++) {
		const struct elf_segment *s = &out->segments[i];

		if (ranges_overlap(s->paddr, s->memsz, p->p_paddr, p->p_memsz))
			return invalid(e, "segments overlap");
	}
	out->segments[out->nsegments++] =
		(struct elf_segment){ p->p_offset, p->p_filesz, p->p_paddr, p->p_memsz };
	if (end > out->end)
		out->end = end;
	return 0;
}

/* Size of a note's part in the file: padded to the segment's alignment, 4 or 8. */
static uint64_t note_padded(uint64_t n, uint64_t align)
{
	return (n + align - 1) & ~(align - 1);
}

/* Looks for the entry note in the notes[n]; true when found and well formed. */
static bool find_entry(const char *notes, size_t n, uint64_t align, uint32_t *entry)
{
	size_t at = 0;

	while (n - at >= sizeof(Elf64_Nhdr)) {
		uint64_t name_at = at + sizeof(Elf64_Nhdr), desc_at, next;
		Elf64_Nhdr h;

		memcpy(&h, notes + at, sizeof(h));
		desc_at = name_at + note_padded(h.n_namesz, align);
		next = desc_at + note_padded(h.n_descsz, align); /* 32-bit sizes: no overflow */
		if (desc_at + h.n_descsz > n)
			return false;
		if (h.n_type == NOTE_PHYS32_ENTRY && h.n_namesz == sizeof(NOTE_OWNER) &&
		    memcmp(notes + name_at, NOTE_OWNER, sizeof(NOTE_OWNER)) == 0 &&
		    (h.n_descsz == 4 || h.n_descsz == 8)) {
			uint64_t v = 0;

			memcpy(&v, notes + desc_at, h.n_descsz);
			*entry = (uint32_t)v;
			return v <= UINT32_MAX;
		}
		if (next >= n)
			return false;
		at = (size_t)next;
	}
	return false;
}

static int read_notes(const struct elf_file *f, const Elf64_Phdr *p, struct elf_image *out,
		      struct err *e)
{
	_cleanup_free_ char *notes = NULL;
	int r;

	if (p->p_filesz == 0 || p->p_filesz > NOTES_MAX)
		return 0; /* no kernel's notes are that large */
	notes = malloc((size_t)p->p_filesz);
	if (!notes)
		return err_errno(e, ENOMEM, "read the kernel's notes");
	r = file_read(f, p->p_offset, notes, (size_t)p->p_filesz, e);
	if (r < 0)
		return r;
	if (find_entry(notes, (size_t)p->p_filesz, p->p_align == 8 ? 8 : 4, &out->entry))
		return 1;
	return 0;
}

static bool entry_in_segment(const struct elf_image *i)
{
	for (unsigned s = 0; s < i->nsegments; s++)
		if (i->entry >= i->segments[s].paddr &&
		    i->entry - i->segments[s].paddr < i->segments[s].filesz)
			return true;
	return false;
}

int elf_read(int fd, struct elf_image *out, struct err *e)
{
	struct elf_file f = { .fd = fd };
	Elf64_Phdr ph[PHDRS_MAX];
	bool have_entry = false;
	struct stat st;
	Elf64_Ehdr h;
	int r;

	memset(out, 0, sizeof(*out));
	if (fstat(fd, &st) < 0)
		return err_errno(e, errno, "kernel");
	if (!S_ISREG(st.st_mode))
		return invalid(e, "not a regular file");
	f.size = (uint64_t)st.st_size;
	if ((r = file_read(&f, 0, &h, sizeof(h), e)) < 0 || (r = check_header(&h, e)) < 0)
		return r;
	r = file_read(&f, h.e_phoff, ph, h.e_phnum * sizeof(ph[0]), e);
	if (r < 0)
		return r;
	for (unsigned i = 0; i < h.e_phnum; i++) {
		r = 0;
		if (ph[i].p_type == PT_LOAD)
			r = add_segment(&f, &ph[i], out, e);
		else if (ph[i].p_type == PT_NOTE && !have_entry)
			r = read_notes(&f, &ph[i], out, e);
		if (r < 0)
			return r;
		have_entry = have_entry || r > 0;
	}
	if (!have_entry)
		return invalid(e, "it has no PVH entry note (CONFIG_PVH)");
	if (!entry_in_segment(out))
		return invalid(e, "the PVH entry 0x%x is in no segment", out->entry);
	return 0;
}
