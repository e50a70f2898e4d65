/* Picks the test that the command line names, runs it and powers off. */
#include "payload.h"

const struct start_info *boot_info;

static const struct {
	const char *name;
	void (*run)(void);
} tests[] = {
	{ "boot", test_boot },	  { "vcpus", test_vcpus },    { "memory", test_memory },
	{ "io", test_io },	  { "irq", test_irq },	      { "blk", test_blk },
	{ "rng", test_rng },	  { "vsock", test_vsock },    { "garbage", test_garbage },
	{ "reset", power_reset }, { "triple", triple_fault }, { "spin", test_spin },
	{ "state", test_state },
};

void payload_main(const struct start_info *si);
void payload_ap(void);

void payload_main(const struct start_info *si)
{
	const char *name = (const char *)si->cmdline;

	boot_info = si;
	for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++)
		if (text_equal(name, tests[i].name)) {
			tests[i].run();
			put_text("done\n");
			power_off();
		}
	put_text("FAILED: no such test: ");
	put_text(name);
	put_text("\n");
	power_off();
}

void payload_ap(void)
{
	if (text_equal((const char *)boot_info->cmdline, "state"))
		ap_count();
	ap_work();
}
