/* The parts of a running system that no file system holds. Each failure is said and passed over:
 * a sandbox with one setting less is better than none. */
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <net/if.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "agent/boot.h"
#include "agent/cmdline.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/log.h"
#include "proto/agent.h"

#define EXT4_RESIZE_FS _IOW('f', 16, uint64_t) /* EXT4_IOC_RESIZE_FS; no header has it */

static const struct {
	const char *type, *where;
	unsigned long flags;
	const char *opts;
} mounts[] = {
	{ "tmpfs", "/run", MS_NOSUID | MS_NODEV, "mode=0755,size=20%" },
	{ "devpts", "/dev/pts", MS_NOSUID | MS_NOEXEC, "gid=5,mode=620,ptmxmode=666" },
	{ "tmpfs", "/dev/shm", MS_NOSUID | MS_NODEV, "mode=1777" },
	{ "cgroup2", "/sys/fs/cgroup", MS_NOSUID | MS_NODEV | MS_NOEXEC,
	  "nsdelegate,favordynmods" },
};

static const char *const sysctls[][2] = {
	{ "kernel/dmesg_restrict", "1" },
	{ "kernel/pid_max", "65536" },
	{ "fs/protected_symlinks", "1" },
	{ "fs/protected_hardlinks", "1" },
	{ "fs/protected_fifos", "1" },
	{ "fs/protected_regular", "2" },
	{ "fs/inotify/max_user_watches", "524288" },
	{ "fs/inotify/max_user_instances", "1024" },
	{ "vm/max_map_count", "262144" },
	{ "net/ipv4/ping_group_range", "0 2147483647" },
	{ "net/ipv4/ip_unprivileged_port_start", "0" },
};

static void set_sysctl(const char *name, const char *value)
{
	char path[128] = "/proc/sys/";
	_cleanup_close_ int fd = -1;
	int r;

	strncat(path, name, sizeof(path) - strlen(path) - 1);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	r = fd < 0 ? -errno : fd_write_full(fd, value, strlen(value));
	if (r < 0 && r != -ENOENT) /* a kernel without the feature */
		log_warn("sysctl %s: %s", name, strerror(-r));
}

static void loopback_up(void)
{
	_cleanup_close_ int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct ifreq ifr = { .ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING };

	if (fd < 0 || ioctl(fd, SIOCSIFFLAGS, &ifr) < 0)
		log_warn("loopback: %s", strerror(errno));
}

static void make_links(void)
{
	static const char *const links[][2] = { { "/proc/self/fd", "/dev/fd" },
						{ "/proc/self/fd/0", "/dev/stdin" },
						{ "/proc/self/fd/1", "/dev/stdout" },
						{ "/proc/self/fd/2", "/dev/stderr" } };

	for (size_t i = 0; i < ARRAY_SIZE(links); i++)
		if (symlink(links[i][0], links[i][1]) < 0 && errno != EEXIST)
			log_warn("link %s: %s", links[i][1], strerror(errno));
}

void boot_system(void)
{
	char name[64];

	umask(022);
	for (size_t i = 0; i < ARRAY_SIZE(mounts); i++) {
		const char *where = mounts[i].where;

		if (mkdir(where, 0755) < 0 && errno != EEXIST)
			log_warn("make %s: %s", where, strerror(errno));
		if (mount(mounts[i].type, where, mounts[i].type, mounts[i].flags, mounts[i].opts) <
			    0 &&
		    mount(mounts[i].type, where, mounts[i].type, mounts[i].flags, NULL) < 0)
			log_warn("mount %s: %s", where, strerror(errno));
	}
	make_links();
	loopback_up();
	for (size_t i = 0; i < ARRAY_SIZE(sysctls); i++)
		set_sysctl(sysctls[i][0], sysctls[i][1]);
	if (cmdline_word(AGENT_HOSTNAME_PARAM, name, sizeof(name)) &&
	    sethostname(name, strlen(name)) < 0)
		log_warn("host name: %s", strerror(errno));
}

/* The blocks the disk has for the file system at /, 0 when it need not grow. */
static uint64_t blocks_wanted(int root)
{
	_cleanup_close_ int dev = -1;
	char device[128];
	struct statfs fs;
	uint64_t bytes;

	if (!cmdline_word(AGENT_ROOT_PARAM, device, sizeof(device)) || fstatfs(root, &fs) < 0)
		return 0;
	dev = open(device, O_RDONLY | O_CLOEXEC);
	if (dev < 0 || ioctl(dev, BLKGETSIZE64, &bytes) < 0)
		return 0;
	/* f_blocks leaves out the file system's own blocks: within 1/32 it has grown before. */
	if (bytes / (uint64_t)fs.f_bsize < fs.f_blocks + fs.f_blocks / 32)
		return 0;
	return bytes / (uint64_t)fs.f_bsize;
}

void boot_grow_root(void)
{
	_cleanup_close_ int root = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	uint64_t blocks = root < 0 ? 0 : blocks_wanted(root);
	pid_t pid;

	if (!blocks)
		return;
	pid = fork();
	if (pid < 0)
		log_warn("grow the root file system: %s", strerror(errno));
	if (pid != 0)
		return;
	if (ioctl(root, EXT4_RESIZE_FS, &blocks) < 0)
		log_warn("grow the root file system: %s", strerror(errno));
	_exit(0);
}
