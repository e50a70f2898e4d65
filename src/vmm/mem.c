/*
 * One host mapping, cut at the hole into regions; see mem.h. Over a memory file a discarded page
 * becomes a fresh anonymous one, because MADV_DONTNEED there would bring the file's bytes back;
 * the bitmap remembers such pages for a later save. The mapping never moves, so pointers from
 * guest_mem_at() stay valid as long as the memory lives.
 *
 * Threads: everything but the bitmap is constant after construction; the bitmap is atomic.
 */
#include "vmm/mem.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/err.h"

#define PAGE 4096ULL
#define HUGE_PAGE (2ULL << 20)

struct guest_mem {
	uint8_t *host;
	uint64_t size;
	void *reserved; /* what was mapped: host's mapping with slack for its alignment */
	size_t reserved_len;
	size_t nregions;
	struct guest_mem_region regions[GUEST_MEM_REGIONS_MAX];
	uint8_t *discarded; /* bit per page; NULL when anonymous */
};

static void lay_out(struct guest_mem *m)
{
	uint64_t low = m->size < GUEST_MEM_HOLE_START ? m->size : GUEST_MEM_HOLE_START;

	m->regions[0] = (struct guest_mem_region){ .size = low, .host = m->host };
	m->nregions = 1;
	if (low == m->size)
		return;
	m->regions[1] = (struct guest_mem_region){
		.gpa = GUEST_MEM_HOLE_END,
		.size = m->size - low,
		.offset = low,
		.host = m->host + low,
	};
	m->nregions = 2;
}

/* Reserves address space in which the RAM starts on a huge page, as KVM needs to map it in such. */
static int reserve(struct guest_mem *m, struct err *e)
{
	uintptr_t p;

	m->reserved_len = (size_t)(m->size + HUGE_PAGE);
	m->reserved = mmap(NULL, m->reserved_len, PROT_NONE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (m->reserved == MAP_FAILED) {
		m->reserved = NULL;
		return err_set(e, "memory_unavailable", errno,
			       "reserve %llu MiB of guest memory: %s",
			       (unsigned long long)(m->size >> 20), strerror(errno));
	}
	p = ((uintptr_t)m->reserved + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1);
	m->host = (uint8_t *)p;
	return 0;
}

static int map(struct guest_mem *m, int fd, unsigned flags, struct err *e)
{
	int kind = fd < 0 ? MAP_ANONYMOUS : 0;
	void *p = mmap(m->host, (size_t)m->size, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE | kind, fd, 0);

	if (p == MAP_FAILED)
		return err_set(e, "memory_unavailable", errno, "map %llu MiB of guest memory: %s",
			       (unsigned long long)(m->size >> 20), strerror(errno));
	if (madvise(p, (size_t)m->size, MADV_DONTDUMP) < 0)
		return err_errno(e, errno, "keep guest memory out of core dumps");
	/* Huge pages are a wish: kernels without them answer EINVAL and lose only speed. */
	if (flags & GUEST_MEM_HUGE)
		(void)madvise(p, (size_t)m->size, MADV_HUGEPAGE);
	return 0;
}

static int make(int fd, uint64_t size, unsigned flags, struct guest_mem **out, struct err *e)
{
	_cleanup_guest_mem_ struct guest_mem *m = NULL;
	int r;

	if (size == 0 || size % PAGE || size > GUEST_MEM_MAX)
		return err_set(e, "memory_unavailable", EINVAL,
			       "guest memory of %llu bytes: not whole pages within 1..%llu MiB",
			       (unsigned long long)size, (unsigned long long)(GUEST_MEM_MAX >> 20));
	m = calloc(1, sizeof(*m));
	if (!m)
		return err_errno(e, ENOMEM, "guest memory");
	m->size = size;
	if (fd >= 0) {
		m->discarded = calloc(1, (size_t)(size / PAGE / 8 + 1));
		if (!m->discarded)
			return err_errno(e, ENOMEM, "guest memory");
	}
	r = reserve(m, e);
	if (r == 0)
		r = map(m, fd, flags, e);
	if (r < 0)
		return r;
	lay_out(m);
	*out = steal_ptr(m);
	return 0;
}

int guest_mem_new(uint64_t size, unsigned flags, struct guest_mem **out, struct err *e)
{
	return make(-1, size, flags, out, e);
}

int guest_mem_new_file(int fd, uint64_t size, unsigned flags, struct guest_mem **out, struct err *e)
{
	struct stat st;

	if (fstat(fd, &st) < 0)
		return err_errno(e, errno, "memory file");
	if (st.st_size < 0 || (uint64_t)st.st_size < size)
		return err_set(e, "memory_unavailable", EINVAL,
			       "memory file has %lld bytes, the guest needs %llu",
			       (long long)st.st_size, (unsigned long long)size);
	return make(fd, size, flags, out, e);
}

void guest_mem_free(struct guest_mem *m)
{
	if (!m)
		return;
	if (m->reserved)
		munmap(m->reserved, m->reserved_len);
	free(m->discarded);
	free(m);
}

uint64_t guest_mem_size(const struct guest_mem *m)
{
	return m->size;
}

const struct guest_mem_region *guest_mem_regions(const struct guest_mem *m, size_t *n)
{
	*n = m->nregions;
	return m->regions;
}

void *guest_mem_at(const struct guest_mem *m, uint64_t gpa, uint64_t len)
{
	size_t i;

	if (len == 0)
		return NULL;
	for (i = 0; i < m->nregions; i++) {
		const struct guest_mem_region *r = &m->regions[i];

		if (gpa >= r->gpa && gpa - r->gpa < r->size && len <= r->size - (gpa - r->gpa))
			return (uint8_t *)r->host + (gpa - r->gpa);
	}
	return NULL;
}

uint64_t guest_mem_gpa(const struct guest_mem *m, const void *host)
{
	uint64_t offset = (uint64_t)((const uint8_t *)host - m->host);

	return offset < m->regions[0].size ? offset
					   : offset - m->regions[0].size + GUEST_MEM_HOLE_END;
}

int guest_mem_read(const struct guest_mem *m, uint64_t gpa, void *to, size_t len)
{
	const void *p = guest_mem_at(m, gpa, len);

	if (!p)
		return len ? -EFAULT : 0;
	memcpy(to, p, len);
	return 0;
}

int guest_mem_write(const struct guest_mem *m, uint64_t gpa, const void *from, size_t len)
{
	void *p = guest_mem_at(m, gpa, len);

	if (!p)
		return len ? -EFAULT : 0;
	memcpy(p, from, len);
	return 0;
}

static void mark_discarded(struct guest_mem *m, uint64_t offset, uint64_t len)
{
	uint64_t page;

	for (page = offset / PAGE; page < (offset + len) / PAGE; page++)
		__atomic_fetch_or(&m->discarded[page / 8], (uint8_t)(1u << (page % 8)),
				  __ATOMIC_RELAXED);
}

int guest_mem_discard(struct guest_mem *m, uint64_t gpa, uint64_t len)
{
	uint8_t *p = guest_mem_at(m, gpa, len);

	if (gpa % PAGE || len % PAGE || len == 0)
		return -EINVAL;
	if (!p)
		return -EFAULT;
	if (!m->discarded)
		return madvise(p, (size_t)len, MADV_DONTNEED) < 0 ? -errno : 0;
	/* Marked first: a save that sees the mark too early only writes a page too many. */
	mark_discarded(m, (uint64_t)(p - m->host), len);
	if (mmap(p, (size_t)len, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) == MAP_FAILED)
		return -errno;
	return madvise(p, (size_t)len, MADV_DONTDUMP) < 0 ? -errno : 0;
}

bool guest_mem_was_discarded(const struct guest_mem *m, uint64_t offset)
{
	uint64_t page = offset / PAGE;

	if (!m->discarded || offset >= m->size)
		return false;
	return __atomic_load_n(&m->discarded[page / 8], __ATOMIC_RELAXED) & (1u << (page % 8));
}
