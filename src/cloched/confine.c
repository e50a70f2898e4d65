/*
 * A list of what is denied, not of what is allowed: HTTP, SQLite, TLS and their libraries use a
 * wide and changing set of calls, and the child has neither a capability nor a way to a new
 * privilege. What is denied is what widens the kernel's surface for a process that was taken over.
 */
#include "cloched/confine.h"

#include <errno.h>
#include <seccomp.h>
#include <stddef.h>

#include "base/cleanup.h"
#include "base/err.h"

static const char *const denied[] = {
	"execve",
	"execveat",
	"ptrace",
	"process_vm_readv",
	"process_vm_writev",
	"mount",
	"umount2",
	"pivot_root",
	"chroot",
	"move_mount",
	"open_tree",
	"fsopen",
	"fsconfig",
	"fsmount",
	"mount_setattr",
	"setns",
	"unshare",
	"init_module",
	"finit_module",
	"delete_module",
	"kexec_load",
	"kexec_file_load",
	"bpf",
	"perf_event_open",
	"userfaultfd",
	"keyctl",
	"add_key",
	"request_key",
	"io_uring_setup",
	"io_uring_enter",
	"io_uring_register",
	"personality",
	"swapon",
	"swapoff",
	"reboot",
	"acct",
	"quotactl",
	"iopl",
	"ioperm",
	"open_by_handle_at",
	"name_to_handle_at",
	"settimeofday",
	"clock_settime",
	"adjtimex",
	"clock_adjtime",
	"vhangup",
	"lookup_dcookie",
	"syslog",
};

int confine(struct err *e)
{
	scmp_filter_ctx f = seccomp_init(SCMP_ACT_ALLOW);
	int r = 0;

	if (!f)
		return err_errno(e, ENOMEM, "seccomp");
	for (size_t i = 0; i < ARRAY_SIZE(denied) && r == 0; i++) {
		int nr = seccomp_syscall_resolve_name(denied[i]);

		/* A name this libseccomp does not know cannot be denied by it. */
		if (nr != __NR_SCMP_ERROR)
			r = seccomp_rule_add(f, SCMP_ACT_ERRNO(EPERM), nr, 0);
	}
	if (r == 0)
		r = seccomp_load(f);
	seccomp_release(f);
	return r < 0 ? err_errno(e, -r, "seccomp filter") : 0;
}
