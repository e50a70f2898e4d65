/* Boot data, processors, memory, ports and the serial port's interrupt. */
#include "payload.h"

#define START_INFO_MAGIC 0x336ec578
#define MIB (1ULL << 20)
#define GIB (1ULL << 30)
#define RAM 1
#define SERIAL 0x3f8
#define SERIAL_GSI 4
#define UNCLAIMED_PORT 0x1234
#define UNCLAIMED_ADDR 0xd8000000ULL
#define SPINS 20000000ULL

void test_boot(void)
{
	check(boot_info->magic == START_INFO_MAGIC, "start info has its magic");
	check(boot_info->version == 1, "start info is of version 1");
	check(acpi_find("FACP") != NULL, "ACPI names a FADT");
	check(acpi_find("APIC") != NULL, "ACPI names a MADT");
	put_text("modules ");
	put_number(boot_info->modules);
	put_text("\n");
	if (boot_info->modules) {
		const uint64_t *m = (const uint64_t *)boot_info->modlist;

		put_text("module bytes ");
		put_number(m[1]);
		put_text("\nmodule text ");
		put_text((const char *)m[0]);
		put_text("\n");
	}
}

static volatile uint32_t cpus_up, cpus_seen;

void ap_work(void)
{
	__atomic_fetch_or(&cpus_seen, 1u << cpu_apic_id(), __ATOMIC_SEQ_CST);
	__atomic_fetch_add(&cpus_up, 1, __ATOMIC_SEQ_CST);
}

/* Starts every processor of the MADT but this one, and waits for all. */
void test_vcpus(void)
{
	const uint8_t *madt = acpi_find("APIC");
	uint32_t started = 0, wanted = 1u << cpu_apic_id();

	if (!madt) {
		check(false, "ACPI names a MADT");
		return;
	}
	for (uint32_t at = 44; at + 2 <= *(const uint32_t *)(madt + 4); at += madt[at + 1]) {
		if (madt[at] != 0 || madt[at + 3] == cpu_apic_id())
			continue;
		wanted |= 1u << madt[at + 3];
		started++;
		cpu_start(madt[at + 3]);
	}
	for (uint64_t i = 0; i < SPINS && cpus_up != started; i++)
		relax();
	ap_work();
	put_text("cpus ");
	put_number(cpus_up);
	put_text("\n");
	check(cpus_up == started + 1, "every processor came up");
	check(cpus_seen == wanted, "every APIC id was seen once");
}

/* A value that depends on the address, so that an alias shows. */
static uint64_t pattern(uint64_t addr)
{
	return addr * 0x9e3779b97f4a7c15ULL ^ 0x5aa5c33c0ff0f00fULL;
}

static bool touchable(const struct memmap_entry *e)
{
	return e->type == RAM && e->addr >= MIB;
}

/* First and last word of RAM ranges and one in every 64 MiB; own image (first 2 MiB) left alone. */
static uint64_t sweep(bool write, uint64_t *words)
{
	const struct memmap_entry *map = (const struct memmap_entry *)boot_info->memmap;
	uint64_t bad = 0;

	for (uint32_t i = 0; i < boot_info->memmap_entries; i++) {
		uint64_t at = map[i].addr, end = map[i].addr + map[i].size;

		if (!touchable(&map[i]))
			continue;
		at = at < 4 * MIB ? 4 * MIB : at;
		for (uint64_t next; at < end; at = next) {
			volatile uint64_t *p = (volatile uint64_t *)at;

			if (write)
				*p = pattern(at);
			else if (*p != pattern(at))
				bad++;
			(*words)++;
			next = at + 64 * MIB;
			if (next >= end && at < end - 8)
				next = end - 8;
		}
	}
	return bad;
}

void test_memory(void)
{
	const struct memmap_entry *map = (const struct memmap_entry *)boot_info->memmap;
	uint64_t total = 0, words = 0, high = 0;

	for (uint32_t i = 0; i < boot_info->memmap_entries; i++) {
		if (map[i].type != RAM)
			continue;
		total += map[i].size;
		if (map[i].addr >= 4 * GIB)
			high += map[i].size;
	}
	put_text("ram KiB ");
	put_number(total >> 10);
	put_text(" above 4 GiB ");
	put_number(high >> 10);
	put_text("\n");
	sweep(true, &words);
	words = 0;
	check(sweep(false, &words) == 0, "every word holds what was written to it");
	put_text("words ");
	put_number(words);
	put_text("\n");
}

void test_io(void)
{
	check(in8(UNCLAIMED_PORT) == 0xff, "an unclaimed port reads as ones, 1 byte");
	check(in16(UNCLAIMED_PORT) == 0xffff, "an unclaimed port reads as ones, 2 bytes");
	check(in32(UNCLAIMED_PORT) == 0xffffffff, "an unclaimed port reads as ones, 4 bytes");
	check(in8(0x64) == 0xff && in8(0x71) == 0xff, "no keyboard controller, no clock chip");
	out8(SERIAL + 7, 0x5a);
	check(in8(SERIAL + 7) == 0x5a, "the serial port's scratch register keeps a byte");
	check(in8(SERIAL + 5) == 0x60, "the serial port's transmitter is empty");
	check(mmio_read(UNCLAIMED_ADDR) == 0xffffffff, "unclaimed memory reads as ones");
	mmio_write(UNCLAIMED_ADDR, 1);
	check(mmio_read(0xd0000000) == 0x74726976, "a virtio window has its magic");
}

/* The serial port interrupts when its transmitter is empty: at once. */
void test_irq(void)
{
	uint32_t before;

	irq_enable(SERIAL_GSI);
	out8(SERIAL + 4, 0x08); /* OUT2 */
	before = irq_count;
	out8(SERIAL + 1, 0x02);
	for (uint64_t i = 0; i < SPINS && irq_count == before; i++)
		relax();
	check(irq_count == before + 1, "enabling it raises the transmitter interrupt");
	check((in8(SERIAL + 2) & 0x0f) == 0x02, "the port names the cause");
	out8(SERIAL + 1, 0);
}

/* Runs until it is stopped from outside. */
void test_spin(void)
{
	for (;;)
		relax();
}
