/*
 * What a device gives the transport and gets from it. A device embeds struct virtio_mmio; its
 * functions are called with the device's lock held unless said otherwise.
 *
 * Threads: registers come from vCPU threads, kicks from the I/O loop (or the device's own threads,
 * see own_kicks). The lock is held for all of them, so a device needs none of its own. Never block
 * on a peer with the lock held.
 */
#ifndef CLOCHE_VMM_VIRTIO_DEVICE_H
#define CLOCHE_VMM_VIRTIO_DEVICE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "vmm/virtio/mmio.h"
#include "vmm/virtio/queue.h"

#define VIRTIO_QUEUES_MAX 4

struct buf;
struct guest_mem;
struct loop_source;

struct virtio_ops {
	/* The I/O loop: requests may have come in this queue; the device runs. */
	void (*kick)(void *dev, unsigned queue);
	/*
	 * Any thread: return when no request is in flight and none is started until the queues run
	 * again. May let go of the lock while it waits.
	 */
	void (*drain)(void *dev);
	/*
	 * The I/O loop, after the driver reset the device or broke it: forget what it was told.
	 * No queue is usable.
	 */
	void (*forget)(void *dev);
	/* The I/O loop: the device was paused, or goes on. */
	void (*paused)(void *dev, bool paused);
	/* The I/O loop, lock not held: what must be told to others once the lock is free. */
	void (*unlocked)(void *dev);
	/* A vCPU wrote into the configuration, which was changed already. */
	void (*config_written)(void *dev);
	/* virtio_mmio_attach(), lock not held. */
	int (*attach)(void *dev, struct loop *l, struct err *e);
	/* The device's own part of a saved state; absent when it has none. */
	int (*save)(void *dev, struct buf *b, struct err *e);
	int (*restore)(void *dev, const void *p, size_t n, struct err *e);
};

struct virtio_spec {
	const struct virtio_ops *ops; /* absent ones are NULL, but kick unless own_kicks */
	uint32_t device_id;
	uint64_t features; /* of the device; VERSION_1 and those of the rings are added */
	unsigned nqueues;
	uint16_t queue_size;
	bool own_kicks;	       /* the device's threads read the kick eventfds */
	void *config;	       /* configuration bytes, in the device */
	uint32_t config_len;   /* bytes */
	uint32_t writable_at;  /* offset and length of what the driver may write there */
	uint32_t writable_len; /* 0: nothing */
};

struct virtio_mmio {
	pthread_mutex_t lock;
	struct virtio_spec spec;
	void *dev;
	struct guest_mem *mem;
	struct loop *loop;
	int irq_fd;
	int kick_fds[VIRTIO_QUEUES_MAX];
	struct loop_source *kick_sources[VIRTIO_QUEUES_MAX];
	struct virtq queues[VIRTIO_QUEUES_MAX];
	uint64_t driver_features;
	uint32_t device_features_sel, driver_features_sel, queue_sel;
	uint32_t config_generation;
	uint32_t status;
	uint32_t isr;	/* atomic: interrupt handlers do not wait for the lock */
	bool resetting; /* a reset waits for the device to drain; other writes are ignored */
	bool paused;
	unsigned complaints; /* logged so far */
	bool forget;	     /* a reset or break happened that ops->forget has not seen */
};

int virtio_mmio_init(struct virtio_mmio *v, const struct virtio_spec *spec, void *dev,
		     struct guest_mem *mem, struct err *e);
void virtio_mmio_fini(struct virtio_mmio *v); /* safe on a zeroed or half-made one */

/*
 * Lock and unlock for the I/O loop's callbacks: enter lets the device forget a reset first, leave
 * runs ops->unlocked.
 */
void virtio_enter(struct virtio_mmio *v);
void virtio_leave(struct virtio_mmio *v);

/* Whether requests may be taken: DRIVER_OK, not broken, not paused, not in a reset. */
bool virtio_can_work(const struct virtio_mmio *v);

/* The features that a driver may accept, those of the transport included. */
uint64_t virtio_offered(const struct virtio_mmio *v);

/* Whether the driver accepted a feature bit. */
bool virtio_has_feature(const struct virtio_mmio *v, unsigned bit);

/* virtq_pop() that breaks the device when the queue is broken; 1 or 0. */
int virtio_pop(struct virtio_mmio *v, unsigned queue, struct virtq_chain *c);

/* Publishes a queue's used ring and interrupts the driver if it wants that. */
void virtio_publish(struct virtio_mmio *v, unsigned queue);

/*
 * Says what the driver did wrong. Only the first few times in a device's life: the guest can do it
 * for ever, and the log is the host's.
 */
void virtio_complain(struct virtio_mmio *v, const char *what);

/* The driver broke the rules: nothing is served until it resets the device. Says why once. */
void virtio_break(struct virtio_mmio *v, const char *why);

/* The device changed its configuration bytes. */
void virtio_config_changed(struct virtio_mmio *v);

/* Makes the loop (or the device's thread) look at a queue. */
void virtio_kick(struct virtio_mmio *v, unsigned queue);
void virtio_kick_all(struct virtio_mmio *v);

#endif
