/* Built with jansson's packer; a failed pack is out of memory, which the caller handles once. */
#include "vmm/control_reply.h"

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/json.h"
#include "base/utf8.h"
#include "vmm/machine.h"

#define FRAME_BYTES 256 /* more than an answer's other members take */

json_t *control_reply_ok(void)
{
	return json_pack("{s:b}", "ok", 1);
}

json_t *control_reply_error(const struct err *e)
{
	return json_pack("{s:b,s:{s:s,s:s}}", "ok", 0, "error", "code", e->code, "message", e->msg);
}

json_t *control_reply_saved(uint64_t memory_bytes)
{
	return json_pack("{s:b,s:I}", "ok", 1, "memoryBytes", (json_int_t)memory_bytes);
}

json_t *control_reply_ended(const struct machine *m)
{
	return json_pack("{s:b,s:s,s:s?}", "ok", 1, "state", machine_state_name(machine_state(m)),
			 "reason", machine_reason(m));
}

static json_t *exits_json(const struct machine_stats *s)
{
	uint64_t sum[VCPU_EXIT_CLASSES] = { 0 }, unclaimed = 0;

	for (unsigned i = 0; i < s->vcpus; i++) {
		for (unsigned c = 0; c < VCPU_EXIT_CLASSES; c++)
			sum[c] += s->cpu[i].exits[c];
		unclaimed += s->cpu[i].unclaimed;
	}
	return json_pack("{s:I,s:I,s:I,s:I,s:I}", "io", (json_int_t)sum[VCPU_EXIT_IO], "mmio",
			 (json_int_t)sum[VCPU_EXIT_MMIO], "interrupted",
			 (json_int_t)sum[VCPU_EXIT_INTERRUPTED], "other",
			 (json_int_t)sum[VCPU_EXIT_OTHER], "unclaimed", (json_int_t)unclaimed);
}

static json_t *cpu_json(const struct machine_stats *s)
{
	json_t *a = json_array();

	for (unsigned i = 0; a && i < s->vcpus; i++)
		json_array_append_new(a, json_integer((json_int_t)s->cpu[i].cpu_ns));
	return a;
}

static json_t *blk_json(const struct machine_stats *s)
{
	json_t *a = json_array();

	for (unsigned i = 0; a && i < s->disks; i++) {
		const struct virtio_blk_stats *b = &s->blk[i];

		json_array_append_new(
			a,
			json_pack("{s:I,s:I,s:I,s:I,s:I,s:I,s:I}", "reads", (json_int_t)b->reads,
				  "writes", (json_int_t)b->writes, "flushes",
				  (json_int_t)b->flushes, "discards", (json_int_t)b->discards,
				  "bytesRead", (json_int_t)b->bytes_read, "bytesWritten",
				  (json_int_t)b->bytes_written, "errors", (json_int_t)b->errors));
	}
	return a;
}

static json_t *vsock_json(const struct virtio_vsock_stats *v)
{
	return json_pack("{s:I,s:I,s:I,s:I,s:I,s:I}", "connections", (json_int_t)v->connections,
			 "connected", (json_int_t)v->connected, "refused", (json_int_t)v->refused,
			 "timedOut", (json_int_t)v->timed_out, "bytesToGuest",
			 (json_int_t)v->bytes_to_guest, "bytesFromGuest",
			 (json_int_t)v->bytes_from_guest);
}

static json_t *net_json(const struct virtio_net_stats *n)
{
	return json_pack("{s:I,s:I,s:I,s:I,s:I,s:I}", "rxPackets", (json_int_t)n->rx_packets,
			 "rxBytes", (json_int_t)n->rx_bytes, "txPackets", (json_int_t)n->tx_packets,
			 "txBytes", (json_int_t)n->tx_bytes, "rxDropped", (json_int_t)n->rx_dropped,
			 "txDropped", (json_int_t)n->tx_dropped);
}

static json_t *balloon_json(const struct virtio_balloon_stats *b)
{
	return json_pack("{s:I,s:I,s:I}", "targetBytes",
			 (json_int_t)b->target_pages * VIRTIO_BALLOON_PAGE, "actualBytes",
			 (json_int_t)b->actual_pages * VIRTIO_BALLOON_PAGE, "reportedBytes",
			 (json_int_t)b->reported_bytes);
}

json_t *control_reply_stats(struct machine *m)
{
	struct machine_stats s;

	machine_stats(m, &s);
	return json_pack("{s:b,s:s,s:I,s:i,s:o,s:o,s:o,s:o,s:o,s:o}", "ok", 1, "state",
			 machine_state_name(s.state), "uptimeMs", (json_int_t)s.uptime_ms,
			 "memoryMiB", (int)s.memory_mib, "exits", exits_json(&s), "cpuNs",
			 cpu_json(&s), "blk", blk_json(&s), "vsock", vsock_json(&s.vsock), "net",
			 net_json(&s.net), "balloon", balloon_json(&s.balloon));
}

/* A serial answer of at most `bytes` of output. */
static json_t *serial_json(struct machine *m, size_t bytes)
{
	_cleanup_buf_ struct buf raw = { 0 }, text = { 0 };
	uint64_t dropped;

	if (machine_serial(m, bytes, &raw, &dropped) < 0)
		return NULL;
	for (size_t i = 0; i < raw.len;
	     i++) /* a NUL is no text to our readers: made a wrong byte */
		if (raw.data[i] == '\0')
			raw.data[i] = '\xff';
	if (utf8_repair(&text, raw.data, raw.len) < 0)
		return NULL;
	return json_pack("{s:b,s:s#,s:I}", "ok", 1, "text", text.data ? text.data : "",
			 (int)text.len, "dropped", (json_int_t)dropped);
}

/* Escapes make the size of the message unpredictable: halve the output until it fits. */
json_t *control_reply_serial(struct machine *m, size_t max)
{
	for (size_t bytes = max;; bytes /= 2) {
		_cleanup_json_ json_t *answer = serial_json(m, bytes);

		if (!answer)
			return NULL;
		if (json_dumpb(answer, NULL, 0, JSON_COMPACT) + FRAME_BYTES <= max)
			return steal_ptr(answer);
	}
}
