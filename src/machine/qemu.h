/*
 * Which QEMU, in which way, with which arguments.
 */
#ifndef CLOCHE_MACHINE_QEMU_H
#define CLOCHE_MACHINE_QEMU_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "image/args.h"

struct err;

#define QEMU_PREFERRED                                                            \
	10 /* from this major version on, guests fork several times faster in TCG \
	    */

struct qemu {
	char path[PATH_MAX];
	int major, minor;
};

/* $CLOCHE_QEMU or qemu-system-x86_64 from PATH. "program_missing" names the package. */
int qemu_find(struct qemu *q, struct err *e);

/* Reads "QEMU emulator version 7.2.22 (Debian …)". */
int qemu_parse_version(const char *text, int *major, int *minor);

struct qemu_config {
	bool kvm; /* else software emulation */
	unsigned vcpus;
	unsigned memory_mib;
	unsigned tb_mib;    /* translation cache, software emulation only */
	uint16_t api_port;  /* on the host's loopback */
	const char *images; /* folder shared read-only */
};

/*
 * Appends the whole argument vector. File names in it are relative to the machine's state folder,
 * in which QEMU is to be started: "system/vmlinux", "payload.raw", "data.raw", "console.log",
 * "shell.sock", "control.sock".
 */
void qemu_args(struct args *a, const struct qemu *q, const struct qemu_config *c);

/* s with every comma doubled, which is how QEMU's options quote it; the caller frees it. */
char *qemu_quote(const char *s);

#endif
