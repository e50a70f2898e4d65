/*
 * Tables are laid one after the other into a buffer that mirrors guest memory from `base` on:
 * RSDP, then DSDT, FADT, MADT and XSDT, each after the ones it points to (the RSDP's pointer is
 * filled in last). Offsets are those of the ACPI 6.4 specification; the FADT is written by offset
 * because nearly all of its 276 bytes are zero on a hardware-reduced machine.
 *
 * Powering off is a write to the sleep control register, rebooting one to the reset register;
 * both are ports of power.c.
 */
#include "vmm/boot/acpi.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "vmm/boot/aml.h"
#include "vmm/layout.h"
#include "vmm/power.h"

#define OEM_ID "CLOCHE"
#define OEM_TABLE_ID "CLOCHEVM"
#define RSDP_LENGTH 36
#define HEADER_LENGTH 36
#define FADT_LENGTH 276
#define GAS_IO 1
#define GAS_BYTE_ACCESS 1

struct acpi_header {
	char signature[4];
	uint32_t length;
	uint8_t revision;
	uint8_t checksum;
	char oem_id[6];
	char oem_table_id[8];
	uint32_t oem_revision;
	char creator_id[4];
	uint32_t creator_revision;
} __attribute__((packed));

_Static_assert(sizeof(struct acpi_header) == HEADER_LENGTH, "ACPI header layout");

struct acpi_gas {
	uint8_t space, bit_width, bit_offset, access;
	uint64_t address;
} __attribute__((packed));

struct acpi_rsdp {
	char signature[8];
	uint8_t checksum; /* of the first 20 bytes */
	char oem_id[6];
	uint8_t revision;
	uint32_t rsdt;
	uint32_t length;
	uint64_t xsdt;
	uint8_t extended_checksum;
	uint8_t reserved[3];
} __attribute__((packed));

_Static_assert(sizeof(struct acpi_rsdp) == RSDP_LENGTH, "RSDP layout");

struct madt_fixed {
	struct acpi_header h;
	uint32_t lapic_address;
	uint32_t flags;
} __attribute__((packed));

struct madt_lapic {
	uint8_t type, length, processor_uid, apic_id;
	uint32_t flags;
} __attribute__((packed));

struct madt_ioapic {
	uint8_t type, length, id, reserved;
	uint32_t address, gsi_base;
} __attribute__((packed));

enum { /* FADT: offsets of the fields that are not zero */
       FADT_DSDT = 40,
       FADT_BOOT_ARCH = 109,
       FADT_FLAGS = 112,
       FADT_RESET_REG = 116,
       FADT_RESET_VALUE = 128,
       FADT_MINOR = 131,
       FADT_X_DSDT = 140,
       FADT_SLEEP_CONTROL = 244,
       FADT_SLEEP_STATUS = 256,
       FADT_HYPERVISOR = 268,
};

enum {
	FADT_F_WBINVD = 1 << 0,
	FADT_F_C1 = 1 << 2,
	FADT_F_PWR_BUTTON = 1 << 4, /* no fixed power button */
	FADT_F_SLP_BUTTON = 1 << 5,
	FADT_F_RESET_REG_SUP = 1 << 10,
	FADT_F_HW_REDUCED = 1 << 20,
	FADT_B_NO_VGA = 1 << 2,
	FADT_B_NO_ASPM = 1 << 4,
	FADT_B_NO_CMOS_RTC = 1 << 5,
	MADT_LAPIC_ENABLED = 1 << 0,
};

static uint8_t checksum(const void *p, size_t n)
{
	const uint8_t *b = p;
	uint8_t sum = 0;

	while (n--)
		sum = (uint8_t)(sum + *b++);
	return (uint8_t)-sum;
}

static void header_fill(struct acpi_header *h, const char sig[4], size_t length, uint8_t revision)
{
	memcpy(h->signature, sig, sizeof(h->signature));
	h->length = (uint32_t)length;
	h->revision = revision;
	memcpy(h->oem_id, OEM_ID, sizeof(h->oem_id));
	memcpy(h->oem_table_id, OEM_TABLE_ID, sizeof(h->oem_table_id));
	h->oem_revision = 1;
	memcpy(h->creator_id, "CLCH", sizeof(h->creator_id));
	h->creator_revision = 1;
}

/* Sets the checksum of the table at offset `at` of out. */
static void table_seal(struct buf *out, size_t at)
{
	struct acpi_header *h = (struct acpi_header *)(out->data + at);

	h->checksum = 0;
	h->checksum = checksum(h, h->length);
}

/* Pads out to 16 bytes; every table starts there. */
static int table_align(struct buf *out)
{
	static const char zero[16];

	return buf_add(out, zero, -out->len & 15);
}

static void dsdt_serial(struct aml *a)
{
	aml_device_open(a, "COM1");
	aml_name_eisa_id(a, "_HID", "PNP0501");
	aml_name_integer(a, "_UID", 0);
	aml_resources_open(a);
	aml_resource_io(a, LAYOUT_SERIAL_PORT, 8);
	aml_resource_interrupt(a, LAYOUT_SERIAL_GSI);
	aml_resources_close(a);
	aml_close(a);
}

static void dsdt_virtio(struct aml *a, unsigned n)
{
	char name[5];

	snprintf(name, sizeof(name), "VR%02X", n & 0xff);
	aml_device_open(a, name);
	aml_name_string(a, "_HID", "LNRO0005");
	aml_name_integer(a, "_UID", n);
	aml_name_integer(a, "_CCA", 1);
	aml_resources_open(a);
	aml_resource_memory32(a, (uint32_t)(LAYOUT_VIRTIO_BASE + n * LAYOUT_VIRTIO_SIZE),
			      (uint32_t)LAYOUT_VIRTIO_SIZE);
	aml_resource_interrupt(a, LAYOUT_VIRTIO_GSI + n);
	aml_resources_close(a);
	aml_close(a);
}

static int dsdt_build(const struct acpi_machine *m, struct buf *out)
{
	static const uint8_t s5[] = { POWER_SLEEP_TYPE_S5, 0, 0, 0 };
	struct acpi_header h = { 0 };
	struct aml a = { 0 };
	int r;

	aml_scope_open(&a, "\\_SB");
	dsdt_serial(&a);
	for (unsigned i = 0; i < m->virtio; i++)
		dsdt_virtio(&a, i);
	aml_close(&a);
	aml_name_package(&a, "_S5", s5, sizeof(s5));
	r = aml_finish(&a);
	if (r == 0) {
		header_fill(&h, "DSDT", sizeof(h) + a.out.len, 2);
		r = buf_add(out, &h, sizeof(h));
	}
	if (r == 0)
		r = buf_add(out, a.out.data, a.out.len);
	aml_free(&a);
	return r;
}

static void put32(uint8_t *table, unsigned at, uint32_t v)
{
	memcpy(table + at, &v, sizeof(v));
}

static void put_gas(uint8_t *table, unsigned at, uint16_t port)
{
	struct acpi_gas g = { GAS_IO, 8, 0, GAS_BYTE_ACCESS, port };

	memcpy(table + at, &g, sizeof(g));
}

static int fadt_build(uint64_t dsdt, struct buf *out)
{
	uint8_t t[FADT_LENGTH] = { 0 };
	struct acpi_header h = { 0 };
	uint16_t boot = FADT_B_NO_VGA | FADT_B_NO_ASPM | FADT_B_NO_CMOS_RTC;

	header_fill(&h, "FACP", sizeof(t), 6);
	memcpy(t, &h, sizeof(h));
	put32(t, FADT_DSDT, (uint32_t)dsdt);
	memcpy(t + FADT_BOOT_ARCH, &boot, sizeof(boot));
	put32(t, FADT_FLAGS,
	      FADT_F_WBINVD | FADT_F_C1 | FADT_F_PWR_BUTTON | FADT_F_SLP_BUTTON |
		      FADT_F_RESET_REG_SUP | FADT_F_HW_REDUCED);
	put_gas(t, FADT_RESET_REG, POWER_RESET_PORT);
	t[FADT_RESET_VALUE] = POWER_RESET_VALUE;
	t[FADT_MINOR] = 4;
	memcpy(t + FADT_X_DSDT, &dsdt, sizeof(dsdt));
	put_gas(t, FADT_SLEEP_CONTROL, POWER_SLEEP_CONTROL_PORT);
	put_gas(t, FADT_SLEEP_STATUS, POWER_SLEEP_STATUS_PORT);
	memcpy(t + FADT_HYPERVISOR, "CLOCHEVM", 8);
	return buf_add(out, t, sizeof(t));
}

static int madt_build(const struct acpi_machine *m, struct buf *out)
{
	struct madt_ioapic io = { 1, sizeof(io), 0, 0, LAYOUT_IOAPIC, 0 };
	struct madt_fixed f = { .lapic_address = (uint32_t)LAYOUT_LAPIC };
	int r;

	header_fill(&f.h, "APIC", sizeof(f) + m->vcpus * sizeof(struct madt_lapic) + sizeof(io), 5);
	r = buf_add(out, &f, sizeof(f));
	for (unsigned i = 0; r == 0 && i < m->vcpus; i++) {
		struct madt_lapic l = { 0, sizeof(l), (uint8_t)i, (uint8_t)i, MADT_LAPIC_ENABLED };

		r = buf_add(out, &l, sizeof(l));
	}
	return r < 0 ? r : buf_add(out, &io, sizeof(io));
}

static int xsdt_build(uint64_t fadt, uint64_t madt, struct buf *out)
{
	uint64_t entries[2] = { fadt, madt };
	struct acpi_header h = { 0 };
	int r;

	header_fill(&h, "XSDT", sizeof(h) + sizeof(entries), 1);
	r = buf_add(out, &h, sizeof(h));
	return r < 0 ? r : buf_add(out, entries, sizeof(entries));
}

static void rsdp_fill(struct buf *out, size_t at, uint64_t xsdt)
{
	struct acpi_rsdp r = { .revision = 2, .length = sizeof(r), .xsdt = xsdt };

	memcpy(r.signature, "RSD PTR ", sizeof(r.signature));
	memcpy(r.oem_id, OEM_ID, sizeof(r.oem_id));
	r.checksum = checksum(&r, 20);
	r.extended_checksum = checksum(&r, sizeof(r));
	memcpy(out->data + at, &r, sizeof(r));
}

/* Starts a table: aligns and gives the offset it will have. */
static int table_begin(struct buf *out, size_t *at)
{
	int r = table_align(out);

	*at = out->len;
	return r;
}

static int build_all(const struct acpi_machine *m, uint64_t base, struct buf *out)
{
	static const char room[RSDP_LENGTH];
	size_t start = out->len, dsdt, fadt, madt, xsdt;
	int r = buf_add(out, room, sizeof(room));

	if (r < 0 || (r = table_begin(out, &dsdt)) < 0 || (r = dsdt_build(m, out)) < 0)
		return r;
	table_seal(out, dsdt);
	r = table_begin(out, &fadt);
	if (r < 0 || (r = fadt_build(base + (dsdt - start), out)) < 0)
		return r;
	table_seal(out, fadt);
	if ((r = table_begin(out, &madt)) < 0 || (r = madt_build(m, out)) < 0)
		return r;
	table_seal(out, madt);
	r = table_begin(out, &xsdt);
	if (r < 0 || (r = xsdt_build(base + (fadt - start), base + (madt - start), out)) < 0)
		return r;
	table_seal(out, xsdt);
	rsdp_fill(out, start, base + (xsdt - start));
	return 0;
}

int acpi_build(const struct acpi_machine *m, uint64_t base, uint64_t max, struct buf *out,
	       struct err *e)
{
	size_t start = out->len;
	int r = build_all(m, base, out);

	if (r < 0)
		return err_errno(e, -r, "build the ACPI tables");
	if (out->len - start > max)
		return err_set(e, "bad_request", EFBIG, "ACPI tables of %zu bytes do not fit",
			       out->len - start);
	return 0;
}
