/* The transport and the rings under a hostile driver, with the rng device behind them. */
#include "virtio_script.h"

#include "vmm/virtio/rng.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct virtio_rng *rng = NULL;
	struct script s;
	unsigned left;

	script_begin(&s, data, size);
	if (virtio_rng_new(s.mem, &rng, NULL) < 0)
		abort();
	s.v = virtio_rng_mmio(rng);
	if (virtio_mmio_attach(s.v, s.loop, NULL) < 0)
		abort();
	for (left = SCRIPT_OPS_MAX; left > 0 && s.p < s.end; left--) {
		script_common(&s, (unsigned)script_take(&s, 1) % OP_DEVICE);
		script_check(&s);
	}
	virtio_rng_free(rng);
	script_end(&s);
	return 0;
}
