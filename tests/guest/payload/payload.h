/*
 * What the bare-metal test programs share: console, ports, memory, processors, interrupts. They
 * run in ring 0 in long mode with memory mapped one to one, and avoid what an interpreting KVM
 * cannot do (cmpxchg16b, xrstor, int3).
 */
#ifndef CLOCHE_TESTS_PAYLOAD_H
#define CLOCHE_TESTS_PAYLOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What the VMM left in memory; see the PVH boot ABI. */
struct start_info {
	uint32_t magic, version, flags, modules;
	uint64_t modlist, cmdline, rsdp, memmap;
	uint32_t memmap_entries, reserved;
};

struct memmap_entry {
	uint64_t addr, size;
	uint32_t type, reserved;
};

extern const struct start_info *boot_info;
extern volatile uint32_t irq_count; /* interrupts taken */

/* Console. Every test prints lines of "ok: …" or "FAILED: …". */
void put_text(const char *s);
void put_number(uint64_t v);
void check(bool ok, const char *what);

static inline void out8(uint16_t port, uint8_t v)
{
	__asm__ volatile("outb %0, %1" : : "a"(v), "Nd"(port));
}

static inline uint8_t in8(uint16_t port)
{
	uint8_t v;

	__asm__ volatile("inb %1, %0" : "=a"(v) : "Nd"(port));
	return v;
}

static inline uint16_t in16(uint16_t port)
{
	uint16_t v;

	__asm__ volatile("inw %1, %0" : "=a"(v) : "Nd"(port));
	return v;
}

static inline uint32_t in32(uint16_t port)
{
	uint32_t v;

	__asm__ volatile("inl %1, %0" : "=a"(v) : "Nd"(port));
	return v;
}

static inline uint32_t mmio_read(uint64_t addr)
{
	return *(volatile uint32_t *)addr;
}

static inline void mmio_write(uint64_t addr, uint32_t v)
{
	*(volatile uint32_t *)addr = v;
}

static inline void relax(void)
{
	__asm__ volatile("pause" : : : "memory");
}

static inline void barrier(void)
{
	__asm__ volatile("mfence" : : : "memory");
}

/* C library functions that the compiler may call for. */
void *memset(void *p, int c, size_t n);
void *memcpy(void *to, const void *from, size_t n);
int memcmp(const void *a, const void *b, size_t n);
bool text_equal(const char *a, const char *b);

/* An ACPI table by signature, its checksum verified; NULL when there is none. */
const uint8_t *acpi_find(const char *signature);

/* Starts the processor with this local APIC id; it calls ap_work(). */
void cpu_start(uint32_t apic_id);
uint32_t cpu_apic_id(void);

/* Routes a GSI to this processor and counts its interrupts in irq_count. */
void irq_enable(uint32_t gsi);

void power_off(void) __attribute__((noreturn));
void power_reset(void);
void triple_fault(void);

/* The tests, chosen by the command line. */
void test_boot(void);
void test_vcpus(void);
void test_memory(void);
void test_io(void);
void test_irq(void);
void test_spin(void);
void test_blk(void);
void test_rng(void);
void test_vsock(void);
void test_garbage(void);
void test_state(void);

/* What a started processor does: count itself up once, or count for ever. */
void ap_work(void);
void ap_count(void);

#endif
