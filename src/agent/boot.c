/*
 * Only what the next step needs is waited for: the disk's node, by the kernel's own event. Modules
 * come from the image's initramfs in the order its /modules.order says; one that is missing is
 * said and skipped, because it may be built into another kernel.
 */
#include "agent/boot.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent/cmdline.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/log.h"
#include "proto/agent.h"

#define MODULES_ORDER "/modules.order"
#define NEW_ROOT "/newroot"
#define DEVICE_WAIT_MS 10000
#define LIST_MAX (1u << 20)

static void mount_or_log(const char *type, const char *where, unsigned long flags, const char *opts)
{
	if (mkdir(where, 0755) < 0 && errno != EEXIST)
		log_warn("make %s: %s", where, strerror(errno));
	if (mount(type, where, type, flags, opts) < 0 && errno != EBUSY)
		log_warn("mount %s: %s", where, strerror(errno));
}

static void load_module(const char *path)
{
	_cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		log_warn("module %s: %s", path, strerror(errno));
	else if (syscall(SYS_finit_module, fd, "", 0) < 0 && errno != EEXIST)
		log_warn("module %s: %s", path, strerror(errno));
}

static void load_modules(void (*loaded)(void *ctx, const char *module), void *ctx)
{
	_cleanup_buf_ struct buf list = { 0 };
	char *at;

	if (fd_read_file(MODULES_ORDER, &list, LIST_MAX, NULL) < 0 || !list.data)
		return; /* a kernel with everything built in */
	for (at = list.data; *at;) {
		char *end = strchrnul(at, '\n');
		bool last = !*end;

		*end = '\0';
		if (*at) {
			load_module(at);
			loaded(ctx, at);
		}
		at = last ? end : end + 1;
	}
}

void boot_early(void (*loaded)(void *ctx, const char *module), void *ctx)
{
	mount_or_log("proc", "/proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
	mount_or_log("sysfs", "/sys", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
	mount_or_log("devtmpfs", "/dev", MS_NOSUID, "mode=0755");
	load_modules(loaded, ctx);
}

/* The kernel tells of each device on this socket, after its node is in devtmpfs. */
static int uevent_socket(void)
{
	struct sockaddr_nl sa = { .nl_family = AF_NETLINK, .nl_groups = 1 };
	int fd = socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_KOBJECT_UEVENT);

	if (fd >= 0 && bind(fd, (struct sockaddr *)&sa, sizeof(sa)) < 0) {
		int saved = errno;

		close(fd);
		errno = saved;
		fd = -1;
	}
	return fd;
}

static int wait_device(const char *path, struct err *e)
{
	_cleanup_close_ int fd = uevent_socket();
	uint64_t end = clock_mono_ns() + DEVICE_WAIT_MS * NSEC_PER_MSEC;
	char event[4096];

	if (fd < 0)
		return err_errno(e, errno, "listen for devices");
	while (access(path, F_OK) < 0) {
		struct pollfd p = { .fd = fd, .events = POLLIN };
		uint64_t now = clock_mono_ns();

		if (now >= end)
			return err_errno(e, ENODEV, "%s did not appear in %d s", path,
					 DEVICE_WAIT_MS / 1000);
		if (poll(&p, 1, (int)((end - now) / NSEC_PER_MSEC) + 1) > 0 &&
		    recv(fd, event, sizeof(event), 0) < 0 && errno != EINTR && errno != ENOBUFS)
			return err_errno(e, errno, "listen for devices");
	}
	return 0;
}

/* Frees the memory of the initramfs. Stays within its file system and follows nothing. */
static void delete_tree(int dirfd, dev_t dev)
{
	_cleanup_closedir_ DIR *d = fdopendir(dirfd);
	struct dirent *de;

	if (!d) {
		close(dirfd);
		return;
	}
	while ((de = readdir(d))) {
		struct stat st;

		if (strcmp(de->d_name, ".") == 0 || strcmp(de->d_name, "..") == 0 ||
		    fstatat(dirfd, de->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0 || st.st_dev != dev)
			continue;
		if (S_ISDIR(st.st_mode)) {
			int sub = openat(dirfd, de->d_name,
					 O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

			if (sub >= 0)
				delete_tree(sub, dev);
		}
		(void)unlinkat(dirfd, de->d_name, S_ISDIR(st.st_mode) ? AT_REMOVEDIR : 0);
	}
}

static int switch_root(struct err *e)
{
	static const char *const moved[] = { "dev", "proc", "sys" };
	int old = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct stat st;

	if (old < 0 || fstat(old, &st) < 0)
		return err_errno(e, errno, "open the initramfs");
	for (size_t i = 0; i < ARRAY_SIZE(moved); i++) {
		char from[16], to[32];

		snprintf(from, sizeof(from), "/%s", moved[i]);
		snprintf(to, sizeof(to), NEW_ROOT "/%s", moved[i]);
		if (mkdir(to, 0755) < 0 && errno != EEXIST)
			log_warn("make %s: %s", to, strerror(errno));
		if (mount(from, to, NULL, MS_MOVE, NULL) < 0) {
			close(old);
			return err_errno(e, errno, "move %s into the root", from);
		}
	}
	if (chdir(NEW_ROOT) < 0 || mount(".", "/", NULL, MS_MOVE, NULL) < 0 || chroot(".") < 0 ||
	    chdir("/") < 0) {
		close(old);
		return err_errno(e, errno, "switch to the root");
	}
	delete_tree(old, st.st_dev); /* closes it */
	return 0;
}

int boot_root(struct err *e)
{
	char device[128];
	int r;

	if (!cmdline_word(AGENT_ROOT_PARAM, device, sizeof(device)))
		return err_set(e, "system", EINVAL, "the kernel command line has no %s",
			       AGENT_ROOT_PARAM);
	r = wait_device(device, e);
	if (r < 0)
		return r;
	if (mkdir(NEW_ROOT, 0755) < 0 && errno != EEXIST)
		return err_errno(e, errno, "make %s", NEW_ROOT);
	if (mount(device, NEW_ROOT, "ext4", MS_NOATIME, "discard") < 0)
		return err_errno(e, errno, "mount %s", device);
	return switch_root(e);
}

void boot_fail(const struct err *e)
{
	log_err(LOG_ERROR, e, "this guest cannot start");
	sync();
	reboot(RB_POWER_OFF);
	_exit(1); /* not PID 1, or not allowed */
}
