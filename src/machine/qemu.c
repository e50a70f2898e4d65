/*
 * A machine of as few devices as possible: no display, no USB, no firmware beyond what -M pc needs
 * to enter an ELF kernel. Under software emulation the CPU is `max`, which has SVM with nested
 * paging, so that KVM works inside. Kernel words that differ from Debian's defaults were each
 * measured to save start-up time under emulation; `mitigations=off` is given there only, where the
 * CPU does not speculate.
 */
#include "machine/qemu.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/proc.h"

#define WORDS "console=ttyS0 quiet panic=-1 reboot=t net.ifnames=0 random.trust_cpu=on"
#define WORDS_TCG \
	" mitigations=off tsc=reliable no_timer_check cryptomgr.notests nokaslr init_on_alloc=0"

int qemu_parse_version(const char *text, int *major, int *minor)
{
	const char *p = strstr(text, "version ");
	char *end;

	if (!p)
		return -EINVAL;
	*major = (int)strtol(p + 8, &end, 10);
	if (*end != '.' || *major <= 0)
		return -EINVAL;
	*minor = (int)strtol(end + 1, NULL, 10);
	return 0;
}

int qemu_find(struct qemu *q, struct err *e)
{
	const char *env = getenv("CLOCHE_QEMU");
	const char *argv[] = { env && *env ? env : "qemu-system-x86_64", "--version", NULL };
	_cleanup_buf_ struct buf out = { 0 };
	struct proc_spec s = { .argv = argv, .out = &out, .timeout_s = 30 };
	int ret = proc_run(&s, e);

	if (ret < 0) {
		err_fix(e, "Install it: apt-get install qemu-system-x86");
		return ret;
	}
	snprintf(q->path, sizeof(q->path), "%s", argv[0]);
	if (qemu_parse_version(out.data ? out.data : "", &q->major, &q->minor) < 0)
		return err_set(e, "program_failed", EIO, "%s does not tell its version", argv[0]);
	return 0;
}

char *qemu_quote(const char *s)
{
	struct buf b = { 0 };

	for (; *s; s++)
		if (buf_add(&b, *s == ',' ? ",," : s, *s == ',' ? 2 : 1) < 0) {
			buf_free(&b);
			return NULL;
		}
	return buf_steal(&b);
}

/*
 * A byte string move is emulated byte by byte: 64 KiB take 100 us, against 13 us in words of 8
 * bytes. Kernels and C libraries, also those of the sandboxes inside, choose bytes only where the
 * processor says that they are fast; ours says that they are not.
 */
#define CPU_TCG "max,-erms,-fsrm"

static void cpu_args(struct args *a, const struct qemu_config *c)
{
	args_add(a, "-accel");
	if (c->kvm)
		args_add(a, "kvm");
	else
		args_printf(a, "tcg,thread=multi,tb-size=%u", c->tb_mib);
	args_pair(a, "-cpu", c->kvm ? "host" : CPU_TCG);
	args_add(a, "-smp");
	args_printf(a, "%u", c->vcpus);
	args_add(a, "-m");
	args_printf(a, "%u", c->memory_mib);
	args_pair(a, "-kernel", "system/vmlinux");
	args_pair(a, "-initrd", "system/initrd");
	args_pair(a, "-append", c->kvm ? WORDS : WORDS WORDS_TCG);
}

static void device_args(struct args *a, const struct qemu_config *c)
{
	_cleanup_free_ char *images = qemu_quote(c->images);

	args_pair(a, "-drive", "file=system/system.raw,if=virtio,format=raw,readonly=on");
	args_pair(a, "-drive", "file=payload.raw,if=virtio,format=raw,readonly=on");
	args_pair(a, "-drive",
		  "file=data.raw,if=virtio,format=raw,discard=unmap,detect-zeroes=unmap");
	args_add(a, "-netdev");
	args_printf(a, "user,id=net0,hostfwd=tcp:127.0.0.1:%u-10.0.2.15:7070",
		    (unsigned)c->api_port);
	args_pair(a, "-device", "virtio-net-pci,netdev=net0,romfile=");
	args_add(a, "-fsdev");
	args_printf(a, "local,id=images,path=%s,security_model=none,readonly=on,multidevs=remap",
		    images ? images : "");
	args_pair(a, "-device", "virtio-9p-pci,fsdev=images,mount_tag=images");
	args_pair(a, "-device", "virtio-rng-pci");
	args_pair(a, "-serial", "file:console.log");
	args_pair(a, "-serial", "unix:shell.sock,server=on,wait=off");
	args_pair(a, "-serial", "unix:control.sock,server=on,wait=off");
	if (!images)
		a->failed = true;
}

void qemu_args(struct args *a, const struct qemu *q, const struct qemu_config *c)
{
	args_add(a, q->path);
	args_pair(a, "-name", "cloche-machine");
	args_pair(a, "-M", "pc");
	args_add(a, "-nodefaults");
	args_add(a, "-no-user-config");
	args_add(a, "-no-reboot");
	args_pair(a, "-display", "none");
	args_pair(a, "-monitor", "none");
	/* What a break-out of the emulator could do: no new programs, no gained privileges. */
	args_pair(a, "-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny");
	cpu_args(a, c);
	device_args(a, c);
}
