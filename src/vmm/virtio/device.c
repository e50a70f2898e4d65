/*
 * What is behind the registers of every device: its eventfds and its lock, kicks on the I/O loop,
 * interrupts, pause and resume.
 *
 * Threads: see device.h.
 */
#include "vmm/virtio/device.h"

#include <errno.h>
#include <linux/virtio_config.h>
#include <linux/virtio_mmio.h>
#include <linux/virtio_ring.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/log.h"
#include "base/loop.h"

#define COMPLAINTS_MAX 8

static void bump(int eventfd)
{
	uint64_t one = 1;
	ssize_t ignored = write(eventfd, &one, sizeof(one)); /* full means already raised */

	(void)ignored;
}

static void raise_interrupt(struct virtio_mmio *v, uint32_t why)
{
	__atomic_fetch_or(&v->isr, why, __ATOMIC_SEQ_CST);
	bump(v->irq_fd);
}

uint64_t virtio_offered(const struct virtio_mmio *v)
{
	return v->spec.features | 1ULL << VIRTIO_F_VERSION_1 | 1ULL << VIRTIO_RING_F_INDIRECT_DESC |
	       1ULL << VIRTIO_RING_F_EVENT_IDX;
}

int virtio_mmio_init(struct virtio_mmio *v, const struct virtio_spec *spec, void *dev,
		     struct guest_mem *mem, struct err *e)
{
	unsigned i;

	v->spec = *spec;
	v->dev = dev;
	v->mem = mem;
	for (i = 0; i < VIRTIO_QUEUES_MAX; i++)
		v->kick_fds[i] = -1;
	v->irq_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (v->irq_fd < 0)
		return err_errno(e, errno, "interrupt of a virtio device");
	for (i = 0; i < spec->nqueues; i++) {
		v->queues[i].size_max = spec->queue_size;
		v->kick_fds[i] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
		if (v->kick_fds[i] < 0)
			return err_errno(e, errno, "queue of a virtio device");
	}
	if ((errno = pthread_mutex_init(&v->lock, NULL)) != 0)
		return err_errno(e, errno, "lock of a virtio device");
	return 0;
}

void virtio_mmio_fini(struct virtio_mmio *v)
{
	unsigned i;

	if (!v->dev)
		return;
	for (i = 0; i < v->spec.nqueues; i++) {
		loop_remove(v->kick_sources[i]);
		close_fd(&v->kick_fds[i]);
	}
	close_fd(&v->irq_fd);
	pthread_mutex_destroy(&v->lock);
	v->dev = NULL;
}

/* What devices call. */

bool virtio_can_work(const struct virtio_mmio *v)
{
	return (v->status & VIRTIO_CONFIG_S_DRIVER_OK) &&
	       !(v->status & VIRTIO_CONFIG_S_NEEDS_RESET) && !v->paused && !v->resetting;
}

bool virtio_has_feature(const struct virtio_mmio *v, unsigned bit)
{
	return v->driver_features & 1ULL << bit;
}

int virtio_pop(struct virtio_mmio *v, unsigned queue, struct virtq_chain *c)
{
	int r;

	if (!virtio_can_work(v))
		return 0;
	r = virtq_pop(&v->queues[queue], c);
	if (r < 0)
		virtio_break(v, "invalid descriptor chain or ring index");
	return r > 0;
}

void virtio_publish(struct virtio_mmio *v, unsigned queue)
{
	if (virtq_publish(&v->queues[queue]))
		raise_interrupt(v, VIRTIO_MMIO_INT_VRING);
}

void virtio_complain(struct virtio_mmio *v, const char *what)
{
	if (v->complaints >= COMPLAINTS_MAX)
		return;
	v->complaints++;
	log_warn("virtio device %u: %s%s", v->spec.device_id, what,
		 v->complaints == COMPLAINTS_MAX ? " (its next faults are not logged)" : "");
}

void virtio_break(struct virtio_mmio *v, const char *why)
{
	if (v->status & VIRTIO_CONFIG_S_NEEDS_RESET)
		return;
	virtio_complain(v, why);
	v->status |= VIRTIO_CONFIG_S_NEEDS_RESET;
	v->forget = true;
	virtio_kick(v, 0);
	if (v->status & VIRTIO_CONFIG_S_DRIVER_OK)
		raise_interrupt(v, VIRTIO_MMIO_INT_CONFIG);
}

void virtio_config_changed(struct virtio_mmio *v)
{
	v->config_generation++;
	if (v->status & VIRTIO_CONFIG_S_DRIVER_OK)
		raise_interrupt(v, VIRTIO_MMIO_INT_CONFIG);
}

void virtio_kick(struct virtio_mmio *v, unsigned queue)
{
	bump(v->kick_fds[queue]);
}

void virtio_kick_all(struct virtio_mmio *v)
{
	unsigned i;

	for (i = 0; i < v->spec.nqueues; i++)
		virtio_kick(v, i);
}

void virtio_enter(struct virtio_mmio *v)
{
	pthread_mutex_lock(&v->lock);
	if (!v->forget)
		return;
	v->forget = false;
	if (v->spec.ops->forget)
		v->spec.ops->forget(v->dev);
}

void virtio_leave(struct virtio_mmio *v)
{
	pthread_mutex_unlock(&v->lock);
	if (v->spec.ops->unlocked)
		v->spec.ops->unlocked(v->dev);
}

/* Kicks on the loop. */

static void on_kick(void *ctx, int fd, uint32_t events)
{
	struct virtio_mmio *v = ctx;
	uint64_t n;
	unsigned q;

	(void)events;
	if (read(fd, &n, sizeof(n)) < 0)
		return; /* EAGAIN: nothing new */
	for (q = 0; v->kick_fds[q] != fd; q++)
		;
	virtio_enter(v);
	if (virtio_can_work(v) && v->queues[q].ready)
		v->spec.ops->kick(v->dev, q);
	virtio_leave(v);
}

int virtio_mmio_attach(struct virtio_mmio *v, struct loop *l, struct err *e)
{
	unsigned i;
	int r;

	v->loop = l;
	for (i = 0; i < v->spec.nqueues && !v->spec.own_kicks; i++) {
		r = loop_add_fd(l, v->kick_fds[i], EPOLLIN, on_kick, v, &v->kick_sources[i], e);
		if (r < 0)
			return r;
	}
	return v->spec.ops->attach ? v->spec.ops->attach(v->dev, l, e) : 0;
}

void virtio_mmio_pause(struct virtio_mmio *v)
{
	virtio_enter(v);
	v->paused = true;
	if (v->spec.ops->drain)
		v->spec.ops->drain(v->dev);
	if (v->spec.ops->paused)
		v->spec.ops->paused(v->dev, true);
	virtio_leave(v);
}

void virtio_mmio_resume(struct virtio_mmio *v)
{
	virtio_enter(v);
	v->paused = false;
	if (v->spec.ops->paused)
		v->spec.ops->paused(v->dev, false);
	virtio_leave(v);
	/* What came while paused, and an interrupt that a restore would have lost. */
	virtio_kick_all(v);
	if (__atomic_load_n(&v->isr, __ATOMIC_SEQ_CST))
		bump(v->irq_fd);
}

uint32_t virtio_mmio_device_id(const struct virtio_mmio *v)
{
	return v->spec.device_id;
}

unsigned virtio_mmio_queues(const struct virtio_mmio *v)
{
	return v->spec.nqueues;
}

int virtio_mmio_kick_fd(const struct virtio_mmio *v, unsigned queue)
{
	return queue < v->spec.nqueues ? v->kick_fds[queue] : -EINVAL;
}

int virtio_mmio_irq_fd(const struct virtio_mmio *v)
{
	return v->irq_fd;
}

bool virtio_mmio_is_broken(struct virtio_mmio *v)
{
	bool r;

	pthread_mutex_lock(&v->lock);
	r = v->status & VIRTIO_CONFIG_S_NEEDS_RESET;
	pthread_mutex_unlock(&v->lock);
	return r;
}
