/* Builds small kernel ELF files in a memory file, well formed unless the test damages them. */
#ifndef CLOCHE_TESTS_UNIT_VMM_ELF_BUILD_H
#define CLOCHE_TESTS_UNIT_VMM_ELF_BUILD_H

#include <elf.h>
#include <stddef.h>
#include <stdint.h>

#define ELF_BUILD_PHDRS 3

/* Two segments and a note; file layout is the struct's. */
struct elf_build {
	Elf64_Ehdr h;
	Elf64_Phdr ph[ELF_BUILD_PHDRS]; /* text, data with bss, notes */
	struct {
		Elf64_Nhdr h;
		char name[4];
		uint32_t entry;
	} note;
	char text[64];
	char data[64];
};

void elf_build_good(struct elf_build *b);

/* A memory file with its first n bytes, at offset 0; the caller closes it. */
int elf_build_file(const struct elf_build *b, size_t n);

#endif
