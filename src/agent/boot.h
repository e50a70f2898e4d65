/*
 * The first moments of a guest: as /init of the initramfs load the modules, find the root disk and
 * make it the root, so that the agent runs on as PID 1 with nothing of the initramfs left.
 */
#ifndef CLOCHE_AGENT_BOOT_H
#define CLOCHE_AGENT_BOOT_H

struct err;

/*
 * Kernel file systems and modules: enough for vsock and the disk. Failures are logged. loaded is
 * called after each module, with its path, so that what it makes possible need not wait for others.
 */
void boot_early(void (*loaded)(void *ctx, const char *module), void *ctx);

/* Mounts the disk of cloche.root= and switches to it. */
int boot_root(struct err *e);

/* What a system has mounted and set: devpts, run, shm, cgroup2, loopback, sysctls. Logged. */
void boot_system(void);

/* Grows the root file system to its disk, in a child of its own. Logged. */
void boot_grow_root(void);

/* For a guest that cannot go on: says why on the console and turns it off. */
void boot_fail(const struct err *e) __attribute__((noreturn));

#endif
