/* Guest memory into a memory file, without the pages that are zero. */
#ifndef CLOCHE_VMM_STATE_MEMORY_H
#define CLOCHE_VMM_STATE_MEMORY_H

#include <stdint.h>

struct err;
struct guest_mem;

/*
 * Writes the memory of a paused guest to fd, an empty regular file, which becomes as long as the
 * memory and sparse where it is zero. *written gets the bytes that are not. Error code system.
 */
int memory_save(const struct guest_mem *mem, int fd, uint64_t *written, struct err *e);

#endif
