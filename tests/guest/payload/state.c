/*
 * Everything a processor and its machine remember, set up once and checked whenever the host
 * connects: across a pause, a save and a restore it must not change. A connection to port 1 checks,
 * one to port 2 checks and ends.
 */
#include "vsock.h"

#define LAPIC 0xfee00000ULL
#define LAPIC_TPR 0x80
#define LAPIC_TIMER 0x320
#define LAPIC_TIMER_COUNT 0x380
#define LAPIC_TIMER_DIVIDE 0x3e0
#define TIMER_PERIODIC 0x20000
#define TIMER_TICKS 20000000
#define DIVIDE_BY_1 0xb
#define IOAPIC 0xfec00000ULL
#define IOAPIC_ENTRY (0x10 + 2 * 20) /* pin 20, used by nothing */
#define IOAPIC_VALUE 0x10055U	     /* masked, vector 0x55 */
#define VECTOR 0x40
#define SERIAL_GSI 4
#define SERIAL_SCRATCH 0x3ff
#define MSR_STAR 0xc0000081
#define MSR_LSTAR 0xc0000082
#define MSR_FS_BASE 0xc0000100
#define MSR_KERNEL_GS_BASE 0xc0000102
#define CR4_OSFXSR 0x200
#define PAGES 64
#define MIB (1ULL << 20)
#define LOW_PAGES (16 * MIB)
#define HIGH_PAGES (4096 * MIB + 16 * MIB)
#define SPINS 2000000000ULL
#define PORT_END 2

static const struct {
	uint32_t index;
	uint64_t value;
} msrs[] = {
	{ MSR_STAR, 0x0023001000000000 },
	{ MSR_LSTAR, 0x00007f1234567000 },
	{ MSR_FS_BASE, 0x00007fabcdef0000 },
	{ MSR_KERNEL_GS_BASE, 0x00000fedcba98000 },
};

static const uint64_t xmm_value[2] = { 0x0123456789abcdef, 0xfedcba9876543210 };
static volatile uint64_t ap_counter;

static void write_msr(uint32_t index, uint64_t v)
{
	__asm__ volatile("wrmsr" : : "c"(index), "a"((uint32_t)v), "d"((uint32_t)(v >> 32)));
}

static uint64_t read_msr(uint32_t index)
{
	uint32_t low, high;

	__asm__ volatile("rdmsr" : "=a"(low), "=d"(high) : "c"(index));
	return low | (uint64_t)high << 32;
}

void ap_count(void)
{
	for (;;) {
		ap_counter++;
		relax();
	}
}

static bool has_high_memory(void)
{
	return boot_info->memmap_entries > 3;
}

static uint64_t page_value(uint64_t addr, uint64_t round)
{
	return (addr ^ round) * 0x9e3779b97f4a7c15ULL;
}

static void fill(uint64_t at, uint64_t round)
{
	for (unsigned i = 0; i < PAGES; i++, at += 4096)
		*(volatile uint64_t *)(at + 8 * (i % 500)) = page_value(at, round);
}

static bool filled(uint64_t at, uint64_t round)
{
	for (unsigned i = 0; i < PAGES; i++, at += 4096)
		if (*(volatile uint64_t *)(at + 8 * (i % 500)) != page_value(at, round))
			return false;
	return true;
}

static void set_up(void)
{
	uint64_t cr4, breakpoint = (uint64_t)&ap_counter;

	for (unsigned i = 0; i < sizeof(msrs) / sizeof(msrs[0]); i++)
		write_msr(msrs[i].index, msrs[i].value);
	__asm__ volatile("mov %%cr4, %0" : "=r"(cr4));
	__asm__ volatile("mov %0, %%cr4" : : "r"(cr4 | CR4_OSFXSR));
	__asm__ volatile("movdqu %0, %%xmm7" : : "m"(xmm_value));
	__asm__ volatile("mov %0, %%dr0" : : "r"(breakpoint));
	out8(SERIAL_SCRATCH, 0x77);
	mmio_write(IOAPIC, IOAPIC_ENTRY);
	mmio_write(IOAPIC + 0x10, IOAPIC_VALUE);
	irq_enable(SERIAL_GSI); /* the interrupt table; the timer shares its vector */
	mmio_write(LAPIC + LAPIC_TPR, 0x10);
	mmio_write(LAPIC + LAPIC_TIMER_DIVIDE, DIVIDE_BY_1);
	mmio_write(LAPIC + LAPIC_TIMER, TIMER_PERIODIC | VECTOR);
	mmio_write(LAPIC + LAPIC_TIMER_COUNT, TIMER_TICKS);
}

static bool goes_on(volatile uint64_t *counter)
{
	uint64_t before = *counter;

	for (uint64_t i = 0; i < SPINS && *counter == before; i++)
		relax();
	return *counter != before;
}

static bool timer_goes_on(void)
{
	uint32_t before = irq_count;

	for (uint64_t i = 0; i < SPINS && irq_count == before; i++)
		relax();
	return irq_count != before;
}

static void check_all(uint64_t round)
{
	uint64_t xmm[2], dr0;
	bool held = true;

	for (unsigned i = 0; i < sizeof(msrs) / sizeof(msrs[0]); i++)
		held = held && read_msr(msrs[i].index) == msrs[i].value;
	check(held, "MSRs held");
	__asm__ volatile("movdqu %%xmm7, %0" : "=m"(xmm));
	check(memcmp(xmm, xmm_value, sizeof(xmm)) == 0, "vector registers held");
	__asm__ volatile("mov %%dr0, %0" : "=r"(dr0));
	check(dr0 == (uint64_t)&ap_counter, "debug registers held");
	check(in8(SERIAL_SCRATCH) == 0x77, "the serial port held");
	mmio_write(IOAPIC, IOAPIC_ENTRY);
	check(mmio_read(IOAPIC + 0x10) == IOAPIC_VALUE, "the IOAPIC held");
	check(mmio_read(LAPIC + LAPIC_TPR) == 0x10, "the local APIC held");
	check(timer_goes_on(), "the timer goes on");
	check(goes_on(&ap_counter), "the other processor goes on");
	check(filled(LOW_PAGES, round), "low memory held");
	check(!has_high_memory() || filled(HIGH_PAGES, round), "high memory held");
}

static void refill(uint64_t round)
{
	fill(LOW_PAGES, round);
	if (has_high_memory())
		fill(HIGH_PAGES, round);
}

void test_state(void)
{
	uint64_t round = 1;
	uint32_t port = 0;

	cpu_start(1);
	set_up();
	refill(round);
	check(vsock_begin(), "it takes VERSION_1");
	for (;;) {
		enum vsock_news news = vsock_poll(&port);

		relax();
		if (news == VSOCK_OPENED) {
			check_all(round);
			refill(++round); /* so that the next save differs */
			put_text("checked\n");
		}
		if (news == VSOCK_CLOSED && port == PORT_END)
			return;
	}
}
