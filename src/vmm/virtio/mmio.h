/*
 * The virtio-mmio transport, version 2 (virtio 1.2, section 4.2): one device's registers, its
 * queues, its interrupt. Each device (blk.h, vsock.h, …) makes one and hands it out for the VMM
 * to wire up:
 *
 *	registers	KVM_EXIT_MMIO in [base, base + VIRTIO_MMIO_SIZE) calls
 *virtio_mmio_read/write from the vCPU's thread; they lock the device
 *	kicks		KVM_IOEVENTFD, 4 bytes at base + VIRTIO_MMIO_QUEUE_NOTIFY with datamatch q,
 *			on virtio_mmio_kick_fd(v, q) for each q < virtio_mmio_queues(v). Without
 *			ioeventfds a register write does the same
 *	interrupt	KVM_IRQFD on virtio_mmio_irq_fd(v), edge triggered
 *	work		virtio_mmio_attach() makes the I/O loop (or the device's own thread) serve
 *kicks
 *
 * A driver that breaks the rules of a queue gets DEVICE_NEEDS_RESET and a configuration interrupt;
 * writes in the wrong state are ignored, as the specification allows. Nothing a guest writes fails
 * or stops the process.
 */
#ifndef CLOCHE_VMM_VIRTIO_MMIO_H
#define CLOCHE_VMM_VIRTIO_MMIO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf;
struct err;
struct loop;
struct virtio_mmio;

#define VIRTIO_MMIO_SIZE 0x200 /* bytes of address space a device answers */

/* Register offset for KVM_IOEVENTFD; spelled as in <linux/virtio_mmio.h>. */
#define VIRTIO_MMIO_QUEUE_NOTIFY 0x050

/* Reads or writes len bytes at a register offset. Odd sizes and offsets read as 0. Any thread. */
void virtio_mmio_read(struct virtio_mmio *v, uint64_t offset, void *data, size_t len);
void virtio_mmio_write(struct virtio_mmio *v, uint64_t offset, const void *data, size_t len);

uint32_t virtio_mmio_device_id(const struct virtio_mmio *v);
unsigned virtio_mmio_queues(const struct virtio_mmio *v);

/* Eventfds that stay the device's; valid until it is freed. */
int virtio_mmio_kick_fd(const struct virtio_mmio *v, unsigned queue);
int virtio_mmio_irq_fd(const struct virtio_mmio *v);

/*
 * Starts to serve the device: on the loop's thread, or before it runs. Devices with a thread of
 * their own start it here. Once per device. Freeing the device detaches it.
 */
int virtio_mmio_attach(struct virtio_mmio *v, struct loop *l, struct err *e);

/*
 * Pause returns when no request is being worked on and no guest memory is touched until resume;
 * kicks that arrive meanwhile are kept. Call on the loop's thread, with the vCPUs stopped when the
 * device shall be saved.
 */
void virtio_mmio_pause(struct virtio_mmio *v);
void virtio_mmio_resume(struct virtio_mmio *v);

/*
 * The whole state of a paused device, appended to b; and back, into a fresh device of the same
 * configuration that was not attached yet. Restore checks everything and changes nothing on
 * failure. Error codes: state_invalid, state_mismatch. Kicks and interrupts that could have been
 * lost are raised again by virtio_mmio_resume(), which the restored device needs too.
 *
 * After fork(2) the child abandons its parent's devices: their threads did not come along and
 * their eventfds are shared. It never frees them, closes their descriptors by number, and makes
 * devices of its own from the saved state, over the guest memory that it inherited.
 */
int virtio_mmio_save(struct virtio_mmio *v, struct buf *b, struct err *e);
int virtio_mmio_restore(struct virtio_mmio *v, const void *p, size_t n, struct err *e);

/* Whether the driver broke the device's rules and it waits for a reset. Any thread. */
bool virtio_mmio_is_broken(struct virtio_mmio *v);

#endif
