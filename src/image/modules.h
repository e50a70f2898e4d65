/*
 * Which kernel modules the initramfs must hold, and the archive made of them.
 */
#ifndef CLOCHE_IMAGE_MODULES_H
#define CLOCHE_IMAGE_MODULES_H

#include <stddef.h>

struct buf;
struct err;

/*
 * The load order of the modules in want[n] and of all they depend on, from the texts of depmod's
 * modules.dep and modules.builtin. Appends one path a line to order, relative to the kernel's
 * module folder ("kernel/fs/ext4/ext4.ko"). What is built in is left out; a name in neither is
 * "no_module" unless it begins with '?', which means "if there is one". '-' and '_' in names are
 * the same.
 */
int modules_order(const char *dep, const char *builtin, const char *const *want, size_t n,
		  struct buf *order, struct err *e);

/*
 * Appends to cpio an archive with those modules, uncompressed, under lib/modules/RELEASE, and
 * "modules.order" at its top with their paths. dir is the module folder to read from.
 */
int modules_pack(const char *dir, const char *release, const char *const *want, size_t n,
		 struct buf *cpio, struct err *e);

#endif
