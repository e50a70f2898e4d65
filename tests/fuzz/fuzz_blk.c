/*
 * The disk under a hostile driver. No worker runs: the target takes the requests itself, so that
 * an input always does the same. What must hold: the disk keeps its size and answers stay inside
 * of the request.
 */
#include "virtio_script.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "vmm/virtio/blk.h"
#include "vmm/virtio/blk_backend.h"
#include "vmm/virtio/blk_request.h"

#define DISK (64u << 10)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void serve(struct script *s, const struct blk_disk *disk)
{
	static struct virtq_chain c;
	struct virtio_blk_stats st = { 0 };
	unsigned left = 16;

	while (left-- > 0 && virtio_pop(s->v, 0, &c)) {
		int64_t n = blk_request_serve(disk, &c, !virtio_has_feature(s->v, 9), &st);

		if (n > (int64_t)c.in_len)
			abort();
		if (n < 0) {
			virtio_break(s->v, "no room for a status");
			return;
		}
		virtq_push(&s->v->queues[0], c.head, (uint32_t)n);
		virtio_publish(s->v, 0);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	int fd = memfd_create("disk", MFD_CLOEXEC);
	struct virtio_blk_setup setup = { .serial = "fuzz" };
	struct virtio_blk *blk = NULL;
	struct blk_disk disk = { .serial = "fuzz" };
	struct script s;
	struct stat st;
	unsigned left;

	script_begin(&s, data, size);
	if (fd < 0 || ftruncate(fd, DISK) < 0 ||
	    blk_raw_new(fd, size && data[0] & 0x80, &setup.backend, NULL) < 0 ||
	    virtio_blk_new(s.mem, &setup, &blk, NULL) < 0)
		abort();
	disk.backend = setup.backend;
	s.v = virtio_blk_mmio(blk);
	for (left = SCRIPT_OPS_MAX; left > 0 && s.p < s.end; left--) {
		unsigned op = (unsigned)script_take(&s, 1) % OP_DEVICE;

		script_common(&s, op);
		if (op == OP_KICK)
			serve(&s, &disk);
		script_check(&s);
	}
	if (fstat(fd, &st) < 0 || st.st_size != DISK)
		abort();
	virtio_blk_free(blk);
	blk_backend_free(setup.backend);
	close(fd);
	script_end(&s);
	return 0;
}
