#include "vmm_elf_build.h"

#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

void elf_build_good(struct elf_build *b)
{
	memset(b, 0, sizeof(*b));
	memcpy(b->h.e_ident, ELFMAG, SELFMAG);
	b->h.e_ident[EI_CLASS] = ELFCLASS64;
	b->h.e_ident[EI_DATA] = ELFDATA2LSB;
	b->h.e_type = ET_EXEC;
	b->h.e_machine = EM_X86_64;
	b->h.e_phoff = offsetof(struct elf_build, ph);
	b->h.e_phentsize = sizeof(Elf64_Phdr);
	b->h.e_phnum = ELF_BUILD_PHDRS;
	b->ph[0] = (Elf64_Phdr){ .p_type = PT_LOAD,
				 .p_offset = offsetof(struct elf_build, text),
				 .p_paddr = 0x100000,
				 .p_filesz = sizeof(b->text),
				 .p_memsz = sizeof(b->text) };
	b->ph[1] = (Elf64_Phdr){ .p_type = PT_LOAD,
				 .p_offset = offsetof(struct elf_build, data),
				 .p_paddr = 0x200000,
				 .p_filesz = sizeof(b->data),
				 .p_memsz = 0x10000 };
	b->ph[2] = (Elf64_Phdr){ .p_type = PT_NOTE,
				 .p_offset = offsetof(struct elf_build, note),
				 .p_filesz = sizeof(b->note),
				 .p_align = 4 };
	b->note.h = (Elf64_Nhdr){ 4, 4, 18 };
	memcpy(b->note.name, "Xen", 4);
	b->note.entry = 0x100010;
	memset(b->text, 'T', sizeof(b->text));
	memset(b->data, 'D', sizeof(b->data));
}

int elf_build_file(const struct elf_build *b, size_t n)
{
	int fd = memfd_create("kernel", MFD_CLOEXEC);

	if (fd >= 0 && pwrite(fd, b, n, 0) != (ssize_t)n) {
		close(fd);
		return -1;
	}
	return fd;
}
