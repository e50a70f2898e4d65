/* Local APIC, IOAPIC, interrupt table. */
#include "payload.h"

#define LAPIC 0xfee00000ULL
#define LAPIC_ID 0x20
#define LAPIC_SPURIOUS 0xf0
#define LAPIC_ICR_LOW 0x300
#define LAPIC_ICR_HIGH 0x310
#define ICR_PENDING (1u << 12)
#define ICR_INIT 0x4500
#define ICR_STARTUP 0x4600
#define APIC_ENABLE 0x100
#define IOAPIC 0xfec00000ULL
#define IOAPIC_REDIRECTION 0x10
#define TRAMPOLINE 0x8000ULL
#define VECTOR 0x40
#define SPURIOUS_VECTOR 0xff
#define SEL_CODE64 0x18

extern const char trampoline[], trampoline_end[];
void irq_entry(void);

struct gate {
	uint16_t offset0, selector, type;
	uint16_t offset1;
	uint32_t offset2, zero;
};

uint32_t cpu_apic_id(void)
{
	return mmio_read(LAPIC + LAPIC_ID) >> 24;
}

static void send_ipi(uint32_t apic_id, uint32_t command)
{
	mmio_write(LAPIC + LAPIC_ICR_HIGH, apic_id << 24);
	mmio_write(LAPIC + LAPIC_ICR_LOW, command);
	while (mmio_read(LAPIC + LAPIC_ICR_LOW) & ICR_PENDING)
		relax();
}

void cpu_start(uint32_t apic_id)
{
	memcpy((void *)TRAMPOLINE, trampoline, (size_t)(trampoline_end - trampoline));
	send_ipi(apic_id, ICR_INIT);
	send_ipi(apic_id, ICR_STARTUP | (uint32_t)(TRAMPOLINE >> 12));
}

static void ioapic_write(uint32_t reg, uint32_t v)
{
	mmio_write(IOAPIC, reg);
	mmio_write(IOAPIC + 0x10, v);
}

void irq_enable(uint32_t gsi)
{
	static struct gate idt[256];
	static struct {
		uint16_t limit;
		uint64_t base;
	} __attribute__((packed)) idt_pointer;
	uint64_t entry = (uint64_t)irq_entry;

	idt[VECTOR] =
		(struct gate){ (uint16_t)entry,		SEL_CODE64, 0x8e00, (uint16_t)(entry >> 16),
			       (uint32_t)(entry >> 32), 0 };
	idt[SPURIOUS_VECTOR] = idt[VECTOR];
	idt_pointer.limit = sizeof(idt) - 1;
	idt_pointer.base = (uint64_t)idt;
	__asm__ volatile("lidt %0" : : "m"(idt_pointer));
	mmio_write(LAPIC + LAPIC_SPURIOUS, APIC_ENABLE | SPURIOUS_VECTOR);
	ioapic_write(IOAPIC_REDIRECTION + 2 * gsi + 1, cpu_apic_id() << 24);
	ioapic_write(IOAPIC_REDIRECTION + 2 * gsi, VECTOR); /* edge, active high, fixed */
	__asm__ volatile("sti");
}
