/*
 * The guest's physical address space, one place for every fixed address.
 *
 *	0x0000_0000  RAM (low slot), with holes for the boot data below 1 MiB
 *	0xc000_0000  end of the low slot; 1 GiB of MMIO
 *	0xd000_0000  virtio-mmio windows, one page each
 *	0xfec0_0000  IOAPIC, 0xfee0_0000 local APICs (both in the kernel)
 *	0x1_0000_0000  RAM (high slot) when the guest has more than 3 GiB
 */
#ifndef CLOCHE_VMM_LAYOUT_H
#define CLOCHE_VMM_LAYOUT_H

#define LAYOUT_MIB (1ULL << 20)

/* Boot data below 1 MiB. The guest reads it once; it owns the memory afterwards. */
#define LAYOUT_START_INFO 0x6000ULL
#define LAYOUT_MODULES 0x6100ULL
#define LAYOUT_MEMMAP 0x7000ULL
#define LAYOUT_CMDLINE 0x20000ULL
#define LAYOUT_CMDLINE_MAX 2047 /* Linux cuts a longer one silently */
#define LAYOUT_LOW_RAM_END 0x9fc00ULL
#define LAYOUT_ACPI 0xe0000ULL
#define LAYOUT_ACPI_END 0x100000ULL
#define LAYOUT_KERNEL_MIN 0x100000ULL

#define LAYOUT_HOLE_START 0xc0000000ULL
#define LAYOUT_HOLE_END 0x100000000ULL

#define LAYOUT_VIRTIO_BASE 0xd0000000ULL
#define LAYOUT_VIRTIO_SIZE 0x1000ULL
#define LAYOUT_VIRTIO_GSI 5 /* device n interrupts on GSI 5 + n */
#define LAYOUT_VIRTIO_MAX 16

#define LAYOUT_IOAPIC 0xfec00000ULL
#define LAYOUT_LAPIC 0xfee00000ULL
#define LAYOUT_GSIS 24

/* KVM keeps a task state segment (three pages) and an identity map page of its own. */
#define LAYOUT_KVM_IDENTITY 0xfffbc000ULL
#define LAYOUT_KVM_TSS 0xfffbd000ULL

/* Port I/O. */
#define LAYOUT_SERIAL_PORT 0x3f8
#define LAYOUT_SERIAL_GSI 4
#define LAYOUT_POWER_PORT 0x600 /* see power.h */

#endif
