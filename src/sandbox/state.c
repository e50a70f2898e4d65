/* Tables only. A start goes from stopped to running at once: until the guest answers, it is not. */
#include "sandbox/state.h"

#include <string.h>

#define BIT(s) (1U << SANDBOX_##s)

static const unsigned followers[SANDBOX_STATES] = {
	[SANDBOX_CREATING] = BIT(RUNNING) | BIT(DELETED),
	[SANDBOX_RUNNING] =
		BIT(STOPPING) | BIT(STOPPED) | BIT(PAUSING) | BIT(FAILED) | BIT(DELETED),
	[SANDBOX_PAUSING] = BIT(PAUSED) | BIT(RUNNING) | BIT(FAILED) | BIT(DELETED),
	[SANDBOX_PAUSED] = BIT(RUNNING) | BIT(STOPPED) | BIT(FAILED) | BIT(DELETED),
	[SANDBOX_STOPPING] = BIT(STOPPED) | BIT(FAILED) | BIT(DELETED),
	[SANDBOX_STOPPED] = BIT(RUNNING) | BIT(DELETED),
	[SANDBOX_FAILED] = BIT(RUNNING) | BIT(STOPPED) | BIT(DELETED),
	[SANDBOX_DELETED] = 0,
};

bool state_may_follow(enum sandbox_state from, enum sandbox_state to)
{
	return followers[from] & (1U << to);
}

bool state_has_guest(enum sandbox_state s)
{
	return (1U << s) & (BIT(RUNNING) | BIT(PAUSING) | BIT(STOPPING));
}

const char *state_end_reason(const char *vmm_reason, const char *serial, bool oom_killed)
{
	if (oom_killed)
		return "out_of_memory";
	if (!vmm_reason)
		return "vmm_crashed";
	if (strcmp(vmm_reason, "poweroff") == 0)
		return "poweroff";
	if (strcmp(vmm_reason, "reset") == 0)
		return serial && strstr(serial, "Kernel panic") ? "panic" : "reboot";
	if (strcmp(vmm_reason, "triple_fault") == 0)
		return serial && strstr(serial, "Kernel panic") ? "panic" : "triple_fault";
	return "vmm_error";
}

enum sandbox_state state_after_end(const char *reason)
{
	return strcmp(reason, "poweroff") == 0 || strcmp(reason, "reboot") == 0 ? SANDBOX_STOPPED
										: SANDBOX_FAILED;
}
