/* Console, memory functions, ACPI, power. A line goes out as one string instruction. */
#include "payload.h"

#define SERIAL 0x3f8
#define SLEEP_CONTROL 0x600
#define RESET 0x602
#define S5_ENABLE (5 << 2 | 1 << 5)

static size_t text_len(const char *s)
{
	size_t n = 0;

	while (s[n])
		n++;
	return n;
}

void put_text(const char *s)
{
	size_t n = text_len(s);

	__asm__ volatile("rep outsb" : "+S"(s), "+c"(n) : "d"(SERIAL) : "memory");
}

void put_number(uint64_t v)
{
	char text[21];
	size_t at = sizeof(text) - 1;

	text[at] = '\0';
	do {
		text[--at] = (char)('0' + v % 10);
		v /= 10;
	} while (v);
	put_text(text + at);
}

void check(bool ok, const char *what)
{
	put_text(ok ? "ok: " : "FAILED: ");
	put_text(what);
	put_text("\n");
}

void *memset(void *p, int c, size_t n)
{
	void *to = p;

	__asm__ volatile("rep stosb" : "+D"(to), "+c"(n) : "a"(c) : "memory");
	return p;
}

void *memcpy(void *p, const void *from, size_t n)
{
	void *to = p;

	__asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(n) : : "memory");
	return p;
}

int memcmp(const void *a, const void *b, size_t n)
{
	const uint8_t *x = a, *y = b;

	for (; n; n--, x++, y++)
		if (*x != *y)
			return *x - *y;
	return 0;
}

bool text_equal(const char *a, const char *b)
{
	size_t n = text_len(a);

	return n == text_len(b) && memcmp(a, b, n) == 0;
}

static bool sums_to_zero(const uint8_t *p, size_t n)
{
	uint8_t sum = 0;

	while (n--)
		sum = (uint8_t)(sum + *p++);
	return sum == 0;
}

static uint32_t table_length(const uint8_t *t)
{
	return *(const uint32_t *)(t + 4);
}

const uint8_t *acpi_find(const char *signature)
{
	const uint8_t *rsdp = (const uint8_t *)boot_info->rsdp, *xsdt;

	if (memcmp(rsdp, "RSD PTR ", 8) != 0 || !sums_to_zero(rsdp, 36))
		return NULL;
	xsdt = (const uint8_t *)*(const uint64_t *)(rsdp + 24);
	if (!sums_to_zero(xsdt, table_length(xsdt)))
		return NULL;
	for (uint32_t at = 36; at + 8 <= table_length(xsdt); at += 8) {
		const uint8_t *t = (const uint8_t *)*(const uint64_t *)(xsdt + at);

		if (memcmp(t, signature, 4) == 0 && sums_to_zero(t, table_length(t)))
			return t;
	}
	return NULL;
}

void power_off(void)
{
	for (;;)
		out8(SLEEP_CONTROL, S5_ENABLE);
}

void power_reset(void)
{
	out8(RESET, 1);
	for (;;)
		relax();
}

/* An undefined instruction with no interrupt table. */
void triple_fault(void)
{
	static const struct {
		uint16_t limit;
		uint64_t base;
	} __attribute__((packed)) none = { 0, 0 };

	__asm__ volatile("lidt %0; ud2" : : "m"(none));
}
