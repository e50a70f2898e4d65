/* The parts of the VMM that need no KVM: control messages, serial port, buses, CPUID, text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "vmm/bus.h"
#include "vmm/control_msg.h"
#include "vmm/cpuid.h"
#include "vmm/layout.h"
#include "vmm/power.h"
#include "vmm/ring.h"
#include "vmm/serial.h"

static int parse(const char *text, struct control_request *r, struct err *e)
{
	return control_parse(text, strlen(text), r, e);
}

static void configure_is_parsed(void **state)
{
	struct control_request r;
	int fds[5] = { 10, 11, 12, 13, 14 };
	struct err e;

	(void)state;
	assert_int_equal(parse("{\"verb\":\"configure\",\"id\":7,\"vcpus\":2,\"memoryMiB\":512,"
			       "\"cmdline\":\"quiet\",\"cid\":3,\"initrds\":1,"
			       "\"disks\":[{\"readOnly\":true},{\"readOnly\":false}]}",
			       &r, &e),
			 0);
	assert_int_equal(r.verb, CONTROL_CONFIGURE);
	assert_true(r.has_id);
	assert_int_equal(r.id, 7);
	assert_int_equal(r.config.vcpus, 2);
	assert_int_equal(r.config.memory_mib, 512);
	assert_string_equal(r.config.cmdline, "quiet");
	assert_int_equal(r.config.serial_bytes, MACHINE_SERIAL_BYTES);
	assert_int_equal(r.config.disks, 2);
	assert_true(r.config.read_only[0]);
	assert_false(r.config.read_only[1]);
	assert_int_equal(control_take_fds(&r, fds, 5, &e), 0);
	assert_int_equal(r.config.kvm_fd, 10);
	assert_int_equal(r.config.kernel_fd, 11);
	assert_int_equal(r.config.initrd_fds[0], 12);
	assert_int_equal(r.config.initrd_fds[1], -1);
	assert_int_equal(r.config.disk_fds[1], 14);
	assert_true(control_take_fds(&r, fds, 4, &e) < 0);
	assert_string_equal(e.code, "bad_request");
}

static void restore_takes_its_descriptors(void **state)
{
	int fds[5] = { 10, 11, 12, 13, 14 };
	struct control_request r;
	struct err e;

	(void)state;
	assert_int_equal(parse("{\"verb\":\"restore\",\"disks\":[{\"readOnly\":false}],"
			       "\"net\":{\"mac\":\"02:00:5e:10:00:ff\",\"mtu\":1400}}",
			       &r, &e),
			 0);
	assert_true(r.config.has_net);
	assert_int_equal(r.config.mtu, 1400);
	assert_int_equal(r.config.mac[0], 0x02);
	assert_int_equal(r.config.mac[5], 0xff);
	assert_int_equal(control_take_fds(&r, fds, 5, &e), 0);
	assert_int_equal(r.config.kvm_fd, 10);
	assert_int_equal(r.config.state_fd, 11);
	assert_int_equal(r.config.memory_fd, 12);
	assert_int_equal(r.config.disk_fds[0], 13);
	assert_int_equal(r.config.tap_fd, 14);
	assert_int_equal(r.config.kernel_fd, -1);
	assert_int_equal(parse("{\"verb\":\"save\"}", &r, &e), 0);
	assert_int_equal(control_take_fds(&r, fds, 2, &e), 0);
	assert_true(control_take_fds(&r, fds, 1, &e) < 0);
}

static void bad_requests_are_refused(void **state)
{
	static const struct {
		const char *text, *code;
	} bad[] = {
		{ "", "bad_request" },
		{ "{", "bad_request" },
		{ "[]", "bad_request" },
		{ "{}", "bad_request" },
		{ "{\"verb\":5}", "bad_request" },
		{ "{\"verb\":\"open\"}", "bad_request" },
		{ "{\"verb\":\"stop\",\"now\":true}", "bad_request" },
		{ "{\"verb\":\"stop\",\"id\":\"x\"}", "bad_request" },
		{ "{\"verb\":\"stop\"}{\"verb\":\"stop\"}", "bad_request" },
		{ "{\"verb\":\"stop\",\"verb\":\"stop\"}", "bad_request" },
		{ "{\"verb\":\"restore\",\"disks\":[],\"vcpus\":1}", "bad_request" },
		{ "{\"verb\":\"restore\",\"disks\":[],\"net\":{}}", "bad_request" },
		{ "{\"verb\":\"restore\",\"disks\":[],\"net\":{\"mac\":\"02:00:5e:10:00:fg\"}}",
		  "bad_request" },
		{ "{\"verb\":\"restore\",\"disks\":[],\"net\":{\"mac\":\"02-00-5e-10-00-ff\"}}",
		  "bad_request" },
		{ "{\"verb\":\"restore\",\"disks\":[],\"net\":{\"mac\":\"03:00:5e:10:00:ff\"}}",
		  "bad_request" }, /* multicast */
		{ "{\"verb\":\"balloon\"}", "bad_request" },
		{ "{\"verb\":\"balloon\",\"targetMiB\":-1}", "bad_request" },
		{ "{\"verb\":\"connect\"}", "bad_request" },
		{ "{\"verb\":\"connect\",\"port\":0}", "bad_request" },
		{ "{\"verb\":\"connect\",\"port\":4294967295}", "bad_request" },
		{ "{\"verb\":\"connect\",\"port\":1.5}", "bad_request" },
		{ "{\"verb\":\"configure\",\"vcpus\":0,\"memoryMiB\":512,\"cmdline\":\"\","
		  "\"cid\":3,\"initrds\":0,\"disks\":[]}",
		  "bad_request" },
		{ "{\"verb\":\"configure\",\"vcpus\":33,\"memoryMiB\":512,\"cmdline\":\"\","
		  "\"cid\":3,\"initrds\":0,\"disks\":[]}",
		  "bad_request" },
		{ "{\"verb\":\"configure\",\"vcpus\":1,\"memoryMiB\":31,\"cmdline\":\"\","
		  "\"cid\":3,\"initrds\":0,\"disks\":[]}",
		  "bad_request" },
		{ "{\"verb\":\"configure\",\"vcpus\":1,\"memoryMiB\":64,\"cmdline\":\"\","
		  "\"cid\":2,\"initrds\":0,\"disks\":[]}",
		  "bad_request" },
		{ "{\"verb\":\"configure\",\"vcpus\":1,\"memoryMiB\":64,\"cmdline\":\"\","
		  "\"cid\":3,\"initrds\":5,\"disks\":[]}",
		  "bad_request" },
		{ "{\"verb\":\"configure\",\"vcpus\":1,\"memoryMiB\":64,\"cmdline\":\"\","
		  "\"cid\":3,\"initrds\":0,\"disks\":[{}]}",
		  "bad_request" },
		{ "{\"verb\":\"configure\",\"vcpus\":1,\"memoryMiB\":64,\"cmdline\":\"\","
		  "\"cid\":3,\"initrds\":0,\"disks\":[1]}",
		  "bad_request" },
		{ "{\"verb\":\"configure\",\"vcpus\":1,\"memoryMiB\":64,\"cmdline\":\"\","
		  "\"cid\":3,\"initrds\":0,\"disks\":[{\"readOnly\":true},{\"readOnly\":true},"
		  "{\"readOnly\":true},{\"readOnly\":true},{\"readOnly\":true}]}",
		  "too_many_disks" },
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		struct control_request r;
		struct err e = { 0 };

		if (parse(bad[i].text, &r, &e) == 0)
			fail_msg("accepted: %s", bad[i].text);
		assert_string_equal(e.code, bad[i].code);
		assert_true(e.msg[0] != '\0');
	}
}

static void refusal_keeps_the_id(void **state)
{
	struct control_request r;
	struct err e;

	(void)state;
	assert_true(parse("{\"verb\":\"nonsense\",\"id\":12}", &r, &e) < 0);
	assert_true(r.has_id);
	assert_int_equal(r.id, 12);
}

static void descriptors_must_match_the_verb(void **state)
{
	struct control_request r;
	int fd = 9;
	struct err e;

	(void)state;
	assert_int_equal(parse("{\"verb\":\"connect\",\"port\":5}", &r, &e), 0);
	assert_int_equal(r.port, 5);
	assert_true(control_take_fds(&r, NULL, 0, &e) < 0);
	assert_int_equal(control_take_fds(&r, &fd, 1, &e), 0);
	assert_int_equal(parse("{\"verb\":\"stats\"}", &r, &e), 0);
	assert_true(control_take_fds(&r, &fd, 1, &e) < 0);
}

static uint8_t port_in(const struct bus *b, unsigned reg)
{
	uint8_t v = 0;

	assert_true(bus_read(b, LAYOUT_SERIAL_PORT + reg, &v, 1));
	return v;
}

static void port_out(const struct bus *b, unsigned reg, uint8_t v)
{
	assert_true(bus_write(b, LAYOUT_SERIAL_PORT + reg, &v, 1));
}

static bool irq_raised(const struct serial *s)
{
	uint64_t n;

	return read(s->irq_fd, &n, sizeof(n)) == sizeof(n);
}

static void serial_is_a_16550a(void **state)
{
	struct bus b = { 0 };
	struct serial s;
	struct err e;

	(void)state;
	assert_int_equal(serial_init(&s, 64, &e), 0);
	assert_int_equal(serial_attach(&s, &b, &e), 0);
	port_out(&b, 4, 0x10 | 0x0a); /* how drivers probe: loopback, RTS and OUT2 */
	assert_int_equal(port_in(&b, 6) & 0xf0, 0x90);
	port_out(&b, 4, 0);
	port_out(&b, 1, 0xff);
	assert_int_equal(port_in(&b, 1), 0x0f);
	port_out(&b, 2, 0x01);
	assert_int_equal(port_in(&b, 2) & 0xc0, 0xc0); /* FIFOs on */
	port_out(&b, 3, 0x80);
	port_out(&b, 0, 0x01);
	port_out(&b, 1, 0x00);
	assert_int_equal(port_in(&b, 0), 0x01); /* the divisor, not data */
	port_out(&b, 3, 0x03);
	port_out(&b, 7, 0x5a);
	assert_int_equal(port_in(&b, 7), 0x5a);
	assert_int_equal(s.output.total, 0);
	serial_destroy(&s);
}

static void serial_interrupts_when_empty(void **state)
{
	struct bus b = { 0 };
	struct serial s;
	struct err e;

	(void)state;
	assert_int_equal(serial_init(&s, 64, &e), 0);
	assert_int_equal(serial_attach(&s, &b, &e), 0);
	assert_false(irq_raised(&s));
	assert_int_equal(port_in(&b, 2) & 0x0f, 0x01);
	port_out(&b, 1, 0x02); /* the transmitter is empty already */
	assert_true(irq_raised(&s));
	assert_int_equal(port_in(&b, 2) & 0x0f, 0x02);
	assert_int_equal(port_in(&b, 2) & 0x0f, 0x01); /* reading acknowledges */
	port_out(&b, 0, 'x');
	assert_true(irq_raised(&s));
	assert_int_equal(port_in(&b, 5), 0x60);
	assert_int_equal(s.output.total, 1);
	port_out(&b, 1, 0);
	assert_int_equal(port_in(&b, 2) & 0x0f, 0x01);
	serial_destroy(&s);
}

static void ring_keeps_the_newest(void **state)
{
	_cleanup_buf_ struct buf out = { 0 };
	struct ring r;
	uint64_t dropped;

	(void)state;
	assert_int_equal(ring_init(&r, 8), 0);
	ring_put(&r, "abc", 3);
	assert_int_equal(ring_read_tail(&r, 100, &out, &dropped), 0);
	assert_string_equal(out.data, "abc");
	assert_int_equal(dropped, 0);
	ring_put(&r, "0123456789ABCDEFGHIJ", 20);
	buf_clear(&out);
	assert_int_equal(ring_read_tail(&r, 100, &out, &dropped), 0);
	assert_string_equal(out.data, "CDEFGHIJ");
	assert_int_equal(dropped, 15);
	buf_clear(&out);
	assert_int_equal(ring_read_tail(&r, 2, &out, &dropped), 0);
	assert_string_equal(out.data, "IJ");
	assert_int_equal(dropped, 21);
	ring_destroy(&r);
}

static void note_access(void *ctx, uint64_t offset, const void *data, size_t len)
{
	(void)data;
	*(uint64_t *)ctx = offset << 8 | len;
}

static void give_zero(void *ctx, uint64_t offset, void *data, size_t len)
{
	(void)ctx;
	(void)offset;
	memset(data, 0, len);
}

static void bus_finds_whole_accesses_only(void **state)
{
	static const struct bus_ops ops = { give_zero, note_access };
	struct bus b = { 0 };
	uint64_t seen = 0;
	uint32_t v = 0;
	struct err e;

	(void)state;
	assert_int_equal(bus_add(&b, 0x100, 8, &ops, &seen, &e), 0);
	assert_true(bus_add(&b, 0x107, 4, &ops, &seen, &e) < 0);
	assert_int_equal(bus_add(&b, 0x108, 4, &ops, &seen, &e), 0);
	assert_true(bus_write(&b, 0x104, &v, 4));
	assert_int_equal(seen, 4 << 8 | 4);
	seen = 0;
	assert_false(bus_write(&b, 0x106, &v, 4)); /* reaches into the next device */
	assert_false(bus_write(&b, 0xff, &v, 4));
	assert_int_equal(seen, 0);
	assert_false(bus_read(&b, 0xff, &v, 4));
	assert_int_equal(v, 0xffffffff);
	assert_false(bus_read(&b, UINT64_MAX - 1, &v, 4));
}

static void note_power(void *ctx, enum power_event event)
{
	*(int *)ctx = (int)event;
}

static void power_ports_act_on_their_values_only(void **state)
{
	struct bus b = { 0 };
	int seen = -1;
	struct power p = { note_power, &seen };
	uint8_t v;
	struct err e;

	(void)state;
	assert_int_equal(power_attach(&p, &b, &e), 0);
	v = 5 << 2; /* the sleep type without the enable bit */
	bus_write(&b, POWER_SLEEP_CONTROL_PORT, &v, 1);
	v = 3 << 2 | 1 << 5; /* S3 is not offered */
	bus_write(&b, POWER_SLEEP_CONTROL_PORT, &v, 1);
	v = 0;
	bus_write(&b, POWER_RESET_PORT, &v, 1);
	assert_int_equal(seen, -1);
	v = 5 << 2 | 1 << 5;
	bus_write(&b, POWER_SLEEP_CONTROL_PORT, &v, 1);
	assert_int_equal(seen, POWER_OFF);
	v = POWER_RESET_VALUE;
	bus_write(&b, POWER_RESET_PORT, &v, 1);
	assert_int_equal(seen, POWER_RESET);
	seen = -1;
	v = 0xfe;
	bus_write(&b, 0x64, &v, 1);
	assert_int_equal(seen, POWER_RESET);
}

static const struct kvm_cpuid_entry2 *leaf(const struct cpuid *c, uint32_t function, uint32_t index)
{
	for (uint32_t i = 0; i < c->nent; i++)
		if (c->entries[i].function == function && c->entries[i].index == index)
			return &c->entries[i];
	return NULL;
}

static void cpuid_is_cut_to_the_baseline(void **state)
{
	static struct cpuid c = {
		.nent = 6,
		.entries = {
			{ .function = 0, .eax = 0x20 },
			{ .function = 1, .ebx = 0xaa00ffff, .ecx = ~0u, .edx = ~0u },
			{ .function = 7, .ebx = ~0u, .ecx = ~0u, .edx = ~0u },
			{ .function = 0xa, .eax = ~0u },
			{ .function = 0xd, .eax = ~0u, .ecx = 4096 },
			{ .function = 0x1d, .eax = ~0u },
		},
	};
	const struct kvm_cpuid_entry2 *e;

	(void)state;
	cpuid_normalise(&c, 3, false);
	cpuid_personalise(&c, 2);
	assert_int_equal(leaf(&c, 0, 0)->eax, 0xd);
	e = leaf(&c, 1, 0);
	assert_int_equal(e->ebx >> 24, 2);	  /* APIC id */
	assert_int_equal(e->ebx >> 16 & 0xff, 3); /* logical processors */
	assert_true(e->ecx & 1u << 31);		  /* hypervisor */
	assert_false(e->ecx & 1u << 24);	  /* TSC deadline: KVM did not offer it */
	assert_false(e->ecx & 1u << 15);	  /* PDCM */
	assert_false(e->ecx & 1u << 5);		  /* VMX */
	e = leaf(&c, 7, 0);
	assert_true(e->ebx & 1u << 5);	 /* AVX2 */
	assert_false(e->ebx & 1u << 16); /* AVX-512 */
	assert_false(e->ecx & 1u << 5);	 /* WAITPKG */
	assert_false(e->edx & 7u << 22); /* AMX */
	assert_null(leaf(&c, 0xa, 0));	 /* performance counters */
	assert_null(leaf(&c, 0x1d, 0));	 /* AMX tiles */
	assert_int_equal(leaf(&c, 0xd, 0)->eax, 7);
	assert_int_equal(leaf(&c, 0xd, 0)->ecx, 832);
	e = leaf(&c, 0xb, 1);
	assert_int_equal(e->eax, 2); /* bits for three cores */
	assert_int_equal(e->ebx, 3);
	assert_int_equal(e->edx, 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(configure_is_parsed),
		cmocka_unit_test(restore_takes_its_descriptors),
		cmocka_unit_test(bad_requests_are_refused),
		cmocka_unit_test(refusal_keeps_the_id),
		cmocka_unit_test(descriptors_must_match_the_verb),
		cmocka_unit_test(serial_is_a_16550a),
		cmocka_unit_test(serial_interrupts_when_empty),
		cmocka_unit_test(ring_keeps_the_newest),
		cmocka_unit_test(bus_finds_whole_accesses_only),
		cmocka_unit_test(power_ports_act_on_their_values_only),
		cmocka_unit_test(cpuid_is_cut_to_the_baseline),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
