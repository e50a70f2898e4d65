/*
 * A state file whose checksum is right (it is made so here, or nothing would ever get past it): its
 * sections, and a vCPU's state before KVM sees it.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "vmm/state/state_cpu.h"
#include "vmm/state/state_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void look(const struct state_view *v, enum state_tag tag, uint32_t index, size_t want)
{
	static struct vcpu_state vcpu;
	static const struct cpuid host;
	const void *p;
	size_t n;

	if (state_section(v, tag, index, want, &p, &n, NULL) < 0)
		return;
	if ((const uint8_t *)p < v->bytes || (const uint8_t *)p + n > v->bytes + v->len ||
	    (want && n != want))
		abort();
	if (tag != STATE_VCPU)
		return;
	memcpy(&vcpu, p, n);
	vcpu_state_check(&vcpu, &host, NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	_cleanup_buf_ struct buf raw = { 0 }, made = { 0 };
	struct state_view v;

	/* As it is; then with a good header before it. */
	state_open(data, n, &v, NULL);
	if (buf_add(&raw, data, n) < 0 || state_begin(&made) < 0 ||
	    (n && buf_add(&made, raw.data, n) < 0))
		return 0;
	state_finish(&made);
	if (state_open(made.data, made.len, &v, NULL) < 0)
		abort();
	for (uint32_t i = 0; i < 3; i++) {
		look(&v, STATE_SHAPE, i, 0);
		look(&v, STATE_VCPU, i, sizeof(struct vcpu_state));
		look(&v, STATE_VIRTIO, i, 0);
	}
	return 0;
}
