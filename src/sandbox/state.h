/* Which state of a sandbox may follow which, and which events tell of it. */
#ifndef CLOCHE_SANDBOX_STATE_H
#define CLOCHE_SANDBOX_STATE_H

#include <stdbool.h>

#include "store/store.h"

bool state_may_follow(enum sandbox_state from, enum sandbox_state to);

/* Whether a sandbox in this state is meant to have a live guest. */
bool state_has_guest(enum sandbox_state s);

/*
 * Why a guest ended, as it is kept in stop_reason: by the VMM's word ("poweroff", "reset",
 * "triple_fault", "error", NULL when it said nothing), the last bytes of its serial console (may
 * be NULL) and whether the kernel killed the VMM for lack of memory. A string literal.
 */
const char *state_end_reason(const char *vmm_reason, const char *serial, bool oom_killed);

/* The state after an end that nobody asked for: stopped when the guest chose it, else failed. */
enum sandbox_state state_after_end(const char *reason);

#endif
