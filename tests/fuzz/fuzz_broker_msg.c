/* Requests and records that reach the broker: whatever the bytes, an id it takes is an id. */
#include <stdint.h>
#include <stdlib.h>

#include "base/err.h"
#include "broker/msg.h"
#include "broker/record.h"
#include "proto/vmm.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct broker_request r;
	struct record rec;
	struct err e;

	if (broker_msg_parse(data, n, &r, &e) == 0) {
		if (r.id[0] && !id_valid("sbx", r.id))
			abort();
		if (r.op == BROKER_VMM_SPAWN &&
		    (!r.id[0] || r.vcpus < 1 || r.vcpus > VMM_VCPUS_MAX ||
		     r.memory_mib < VMM_MEMORY_MIN_MIB || r.memory_mib > VMM_MEMORY_MAX_MIB))
			abort();
	}
	if (record_parse((const char *)data, n, &rec, &e) == 0 && (rec.uid == 0 || rec.pid < 0))
		abort(); /* root's, or every process */
	return 0;
}
