/*
 * Worker threads wait for the queue's kick eventfd themselves: a request costs one wake-up, and
 * storage that is slow holds up neither the I/O loop nor a vCPU. A worker takes a request under
 * the device's lock, serves it without, and hands it back under the lock again. Plain preadv and
 * pwritev instead of io_uring: io_uring's operations pass by seccomp, and one thread on a page
 * cache is not slower.
 *
 * Invariants: `inflight` counts the requests taken and not handed back; drain waits for 0, and
 * nothing is taken while the device is paused or resets. A FLUSH covers the writes that were
 * answered before it, as the specification asks, so several workers need no order between them.
 */
#include "vmm/virtio/blk.h"

#include <errno.h>
#include <linux/virtio_blk.h>
#include <linux/virtio_ids.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/err.h"
#include "base/log.h"
#include "vmm/virtio/blk_backend.h"
#include "vmm/virtio/blk_request.h"
#include "vmm/virtio/device.h"

#define QUEUE_SIZE VIRTQ_SIZE_MAX
#define WORKER_STACK (256u << 10)

struct worker {
	struct virtio_blk *blk;
	pthread_t thread;
	struct virtq_chain chain;
};

struct virtio_blk {
	struct virtio_mmio mmio;
	struct blk_disk disk;
	struct virtio_blk_setup setup;
	struct virtio_blk_config config; /* what the driver reads */
	struct virtio_blk_stats stats;	 /* under the lock */
	pthread_cond_t idle;		 /* inflight became 0 */
	unsigned inflight;
	int stop_fd; /* readable once the workers shall end */
	unsigned started;
	struct worker workers[VIRTIO_BLK_WORKERS_MAX];
};

static void add_stats(struct virtio_blk_stats *to, const struct virtio_blk_stats *s)
{
	to->reads += s->reads;
	to->writes += s->writes;
	to->flushes += s->flushes;
	to->discards += s->discards;
	to->bytes_read += s->bytes_read;
	to->bytes_written += s->bytes_written;
	to->errors += s->errors;
	to->malformed += s->malformed;
	to->no_space |= s->no_space;
}

/* Serves the request in w->chain; the lock is let go meanwhile. */
static void serve_one(struct worker *w)
{
	struct virtio_blk *b = w->blk;
	struct virtio_blk_stats stats = { 0 };
	bool write_through = !virtio_has_feature(&b->mmio, VIRTIO_BLK_F_FLUSH);
	int64_t n;

	b->inflight++;
	pthread_mutex_unlock(&b->mmio.lock);
	n = blk_request_serve(&b->disk, &w->chain, write_through, &stats);
	pthread_mutex_lock(&b->mmio.lock);
	add_stats(&b->stats, &stats);
	if (n < 0) {
		b->stats.malformed++;
		virtio_break(&b->mmio, "disk request without room for a status");
	} else {
		virtq_push(&b->mmio.queues[0], w->chain.head, (uint32_t)n);
		virtio_publish(&b->mmio, 0);
	}
	if (--b->inflight == 0)
		pthread_cond_broadcast(&b->idle);
}

/* Takes requests until none is left. Lock held. */
static void serve_queue(struct worker *w)
{
	struct virtio_blk *b = w->blk;
	struct virtq *q = &b->mmio.queues[0];

	virtq_want_kick(q, false);
	while (virtio_can_work(&b->mmio)) {
		if (!virtio_pop(&b->mmio, 0, &w->chain)) {
			if (!virtq_want_kick(q, true))
				return;
			continue;
		}
		/* A fellow takes the next one while this one waits for the storage. */
		if (b->started > 1 && b->inflight + 1 < b->started && virtq_has_more(q))
			virtio_kick(&b->mmio, 0);
		serve_one(w);
	}
}

static void *worker_main(void *ctx)
{
	struct worker *w = ctx;
	struct virtio_blk *b = w->blk;
	struct pollfd fds[2] = {
		{ .fd = b->mmio.kick_fds[0], .events = POLLIN },
		{ .fd = b->stop_fd, .events = POLLIN },
	};

	if (b->setup.worker_begin && b->setup.worker_begin(b->setup.ctx) < 0)
		return NULL;
	for (;;) {
		uint64_t n;

		if (poll(fds, 2, -1) < 0 && errno != EINTR) {
			log_error("disk worker: poll: %s", strerror(errno));
			return NULL;
		}
		if (fds[1].revents)
			return NULL;
		if (read(fds[0].fd, &n, sizeof(n)) < 0)
			continue; /* EAGAIN: a fellow took it */
		pthread_mutex_lock(&b->mmio.lock);
		serve_queue(w);
		pthread_mutex_unlock(&b->mmio.lock);
	}
}

static void blk_drain(void *dev)
{
	struct virtio_blk *b = dev;

	while (b->inflight)
		pthread_cond_wait(&b->idle, &b->mmio.lock);
}

static int start_worker(struct virtio_blk *b, struct err *e)
{
	struct worker *w = &b->workers[b->started];
	sigset_t all, old;
	pthread_attr_t attr;
	int r;

	w->blk = b;
	r = pthread_attr_init(&attr);
	if (r != 0)
		return err_errno(e, r, "disk worker");
	pthread_attr_setstacksize(&attr, WORKER_STACK);
	/* Signals belong to the other threads. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	r = pthread_create(&w->thread, &attr, worker_main, w);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&attr);
	return r != 0 ? err_errno(e, r, "disk worker") : 0;
}

static int blk_attach(void *dev, struct loop *l, struct err *e)
{
	struct virtio_blk *b = dev;
	unsigned n = b->setup.workers;
	int r;

	(void)l;
	while (b->started < n) {
		r = start_worker(b, e);
		if (r < 0)
			return r;
		pthread_mutex_lock(&b->mmio.lock);
		b->started++;
		pthread_mutex_unlock(&b->mmio.lock);
	}
	return 0;
}

static const struct virtio_ops blk_ops = {
	.drain = blk_drain,
	.attach = blk_attach,
};

#define FEATURE(name) (1ULL << VIRTIO_BLK_F_##name)

static uint64_t disk_features(const struct blk_backend *b)
{
	uint64_t f = FEATURE(FLUSH) | FEATURE(BLK_SIZE) | FEATURE(SEG_MAX);

	return f | (b->read_only ? FEATURE(RO) : FEATURE(DISCARD) | FEATURE(WRITE_ZEROES));
}

static struct virtio_blk_config disk_config(const struct blk_backend *b)
{
	return (struct virtio_blk_config){
		.capacity = b->size / 512,
		.seg_max = VIRTQ_CHAIN_MAX - 2, /* header and status have their own */
		.blk_size = 512,
		.max_discard_sectors = BLK_RANGE_SECTORS_MAX,
		.max_discard_seg = BLK_SEGMENTS_MAX,
		.discard_sector_alignment = 8, /* file systems punch whole 4 KiB blocks */
		.max_write_zeroes_sectors = BLK_RANGE_SECTORS_MAX,
		.max_write_zeroes_seg = BLK_SEGMENTS_MAX,
		.write_zeroes_may_unmap = 1,
	};
}

static int set_up(struct virtio_blk *b, struct guest_mem *mem, struct err *e)
{
	struct virtio_spec spec = {
		.ops = &blk_ops,
		.device_id = VIRTIO_ID_BLOCK,
		.features = disk_features(b->disk.backend),
		.nqueues = 1,
		.queue_size = QUEUE_SIZE,
		.own_kicks = true,
		.config = &b->config,
		.config_len = sizeof(b->config),
	};

	b->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (b->stop_fd < 0)
		return err_errno(e, errno, "disk device");
	if ((errno = pthread_cond_init(&b->idle, NULL)) != 0)
		return err_errno(e, errno, "disk device");
	return virtio_mmio_init(&b->mmio, &spec, b, mem, e);
}

int virtio_blk_new(struct guest_mem *mem, const struct virtio_blk_setup *setup,
		   struct virtio_blk **out, struct err *e)
{
	_cleanup_virtio_blk_ struct virtio_blk *b = NULL;
	int r;

	if (setup->workers > VIRTIO_BLK_WORKERS_MAX)
		return err_set(e, "bad_request", EINVAL, "a disk has at most %d workers",
			       VIRTIO_BLK_WORKERS_MAX);
	b = calloc(1, sizeof(*b));
	if (!b)
		return err_errno(e, ENOMEM, "disk device");
	b->setup = *setup;
	b->setup.workers = setup->workers ? setup->workers : 1;
	b->disk.backend = setup->backend;
	memcpy(b->disk.serial, setup->serial, sizeof(b->disk.serial));
	b->config = disk_config(setup->backend);
	r = set_up(b, mem, e);
	if (r < 0)
		return r;
	*out = steal_ptr(b);
	return 0;
}

void virtio_blk_free(struct virtio_blk *b)
{
	uint64_t one = 1;
	unsigned i;

	if (!b)
		return;
	if (b->started) {
		pthread_mutex_lock(&b->mmio.lock);
		b->mmio.paused = true; /* no worker takes another request */
		pthread_mutex_unlock(&b->mmio.lock);
		if (write(b->stop_fd, &one, sizeof(one)) < 0)
			log_error("disk worker: stop: %s", strerror(errno));
	}
	for (i = 0; i < b->started; i++)
		pthread_join(b->workers[i].thread, NULL);
	close_fd(&b->stop_fd);
	virtio_mmio_fini(&b->mmio);
	pthread_cond_destroy(&b->idle);
	free(b);
}

struct virtio_mmio *virtio_blk_mmio(struct virtio_blk *b)
{
	return &b->mmio;
}

void virtio_blk_stats(struct virtio_blk *b, struct virtio_blk_stats *out)
{
	pthread_mutex_lock(&b->mmio.lock);
	*out = b->stats;
	pthread_mutex_unlock(&b->mmio.lock);
}

bool virtio_blk_take_no_space(struct virtio_blk *b)
{
	bool r;

	pthread_mutex_lock(&b->mmio.lock);
	r = b->stats.no_space;
	b->stats.no_space = false;
	pthread_mutex_unlock(&b->mmio.lock);
	return r;
}
