/*
 * Unpacks the ELF kernel out of a Linux bzImage, which is how distributions ship it. Our machine
 * monitor enters the ELF through its PVH note and wants no decompressor in the guest.
 */
#ifndef CLOCHE_IMAGE_BZIMAGE_H
#define CLOCHE_IMAGE_BZIMAGE_H

#include <stddef.h>
#include <stdint.h>

struct buf;
struct err;

#define BZIMAGE_KERNEL_MAX (256UL << 20) /* most bytes an unpacked kernel may have */

/*
 * Appends the kernel inside the n bytes at image to out. The payload may be LZ4 (legacy frame, as
 * the kernel build makes it), Zstandard, XZ, or a bare ELF. Fails with "bad_kernel" when the image is
 * malformed, packed otherwise, or what comes out is not an ELF with a PVH entry note.
 */
int bzimage_extract(const uint8_t *image, size_t n, struct buf *out, struct err *e);

#endif
