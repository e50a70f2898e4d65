/*
 * A saved device state from anywhere, restored into each kind of device, which then goes on. A
 * state that is taken must be the same when it is saved again.
 */
#include "virtio_script.h"

#include "base/buf.h"
#include "vmm/virtio/rng.h"
#include "vmm/virtio/vsock.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void try(struct script *s, const uint8_t *data, size_t size)
{
	_cleanup_buf_ struct buf b = { 0 };
	unsigned q;

	if (virtio_mmio_restore(s->v, data, size, NULL) < 0)
		return;
	if (virtio_mmio_save(s->v, &b, NULL) < 0 || b.len != size)
		abort();
	if (virtio_mmio_attach(s->v, s->loop, NULL) < 0)
		abort();
	virtio_mmio_resume(s->v);
	for (q = 0; q < 4; q++)
		script_turn(s);
	script_check(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct virtio_rng *rng = NULL;
	struct virtio_vsock *vsock = NULL;
	struct script s;

	script_begin(&s, data, size);
	if (virtio_rng_new(s.mem, &rng, NULL) < 0 || virtio_vsock_new(s.mem, 3, &vsock, NULL) < 0)
		abort();
	s.v = virtio_rng_mmio(rng);
	try(&s, data, size);
	s.v = virtio_vsock_mmio(vsock);
	try(&s, data, size);
	virtio_rng_free(rng);
	virtio_vsock_free(vsock);
	script_end(&s);
	return 0;
}
