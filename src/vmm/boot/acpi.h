/*
 * The guest's ACPI tables: RSDP, XSDT, FADT (hardware-reduced), MADT and a DSDT that names the
 * serial port and every virtio-mmio window (_HID "LNRO0005").
 */
#ifndef CLOCHE_VMM_BOOT_ACPI_H
#define CLOCHE_VMM_BOOT_ACPI_H

#include <stdint.h>

struct buf;
struct err;

struct acpi_machine {
	unsigned vcpus;	 /* 1..254; APIC ids 0..vcpus-1 */
	unsigned virtio; /* windows in use, at the addresses of layout.h */
};

/*
 * Appends the tables to out, to be placed at guest address base (a multiple of 16), the RSDP
 * first. Fails with -EFBIG when they pass max bytes.
 */
int acpi_build(const struct acpi_machine *m, uint64_t base, uint64_t max, struct buf *out,
	       struct err *e);

#endif
