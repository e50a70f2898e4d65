/*
 * A page is written when any of its bytes is not zero; neighbours go out in one call. Reading a
 * page that was never touched maps the shared zero page and allocates nothing.
 */
#include "vmm/state/state_memory.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "vmm/mem.h"

#define PAGE 4096u

/* Compares the page with itself shifted by one word: all equal to a first word of zero. */
static bool page_is_zero(const uint8_t *p)
{
	uint64_t first;

	memcpy(&first, p, sizeof(first));
	return first == 0 && memcmp(p, p + sizeof(first), PAGE - sizeof(first)) == 0;
}

static int write_at(int fd, const uint8_t *p, uint64_t n, uint64_t at)
{
	while (n) {
		ssize_t r = pwrite(fd, p, n, (off_t)at);

		if (r < 0 && errno == EINTR)
			continue;
		if (r < 0)
			return -errno;
		p += r;
		at += (uint64_t)r;
		n -= (uint64_t)r;
	}
	return 0;
}

static int save_region(const struct guest_mem_region *g, int fd, uint64_t *written)
{
	const uint8_t *host = g->host;
	uint64_t at = 0;

	while (at < g->size) {
		uint64_t from;
		int r;

		while (at < g->size && page_is_zero(host + at))
			at += PAGE;
		from = at;
		while (at < g->size && !page_is_zero(host + at))
			at += PAGE;
		r = write_at(fd, host + from, at - from, g->offset + from);
		if (r < 0)
			return r;
		*written += at - from;
	}
	return 0;
}

int memory_save(const struct guest_mem *mem, int fd, uint64_t *written, struct err *e)
{
	const struct guest_mem_region *regions;
	struct stat st;
	size_t n;

	*written = 0;
	if (fstat(fd, &st) < 0)
		return err_errno(e, errno, "memory file");
	if (!S_ISREG(st.st_mode) || st.st_size != 0)
		return err_set(e, "bad_request", EINVAL, "the memory file is not an empty file");
	if (ftruncate(fd, (off_t)guest_mem_size(mem)) < 0)
		return err_errno(e, errno, "memory file");
	regions = guest_mem_regions(mem, &n);
	for (size_t i = 0; i < n; i++) {
		int r = save_region(&regions[i], fd, written);

		if (r < 0)
			return err_errno(e, -r, "write the memory file");
	}
	return 0;
}
