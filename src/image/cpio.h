/*
 * Writes a "newc" cpio archive into a buffer: what the kernel unpacks as its initramfs. Several
 * archives may be put one after another; the kernel unpacks them all.
 */
#ifndef CLOCHE_IMAGE_CPIO_H
#define CLOCHE_IMAGE_CPIO_H

#include <stddef.h>
#include <sys/types.h>

struct buf;

/*
 * Appends one regular file owned by root. path is relative ("lib/x.ko"); its folders must have
 * been added before. Returns 0, -ENOMEM, or -EINVAL for an absolute, empty or too long path or
 * more than 4 GiB of data.
 */
int cpio_add_file(struct buf *b, const char *path, mode_t mode, const void *data, size_t n);

/* Appends a folder, mode 0755. */
int cpio_add_dir(struct buf *b, const char *path);

/* Ends the archive and pads it to 512 bytes. */
int cpio_end(struct buf *b);

#endif
