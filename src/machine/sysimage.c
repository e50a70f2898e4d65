/*
 * The stages are those of a guest image, with two differences: the initramfs holds busybox and our
 * init script beside the modules, and the release is the host's, because the payload's programs are
 * linked against the host's libraries.
 */
#include "machine/sysimage.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "image/aptsrc.h"
#include "image/build.h"
#include "image/bzimage.h"
#include "image/cpio.h"
#include "image/modules.h"
#include "image/recipe.h"
#include "image/rootfs.h"
#include "image/tree.h"

#define FORMAT "cloche machine system 1"
#define RECIPE "machine"
#define FILE_MAX (16UL << 20)

static const char *const early_modules[] = { "virtio_pci",    "virtio_blk", "?crc32c_generic",
					     "?crc32c_intel", "ext4",	    "overlay",
					     "virtio_rng",    "virtio_net" };

static int add_file(struct sha256 *sum, const char *path, struct err *e)
{
	_cleanup_buf_ struct buf text = { 0 };
	int ret = fd_read_file(path, &text, FILE_MAX, e);

	if (ret < 0)
		return ret;
	sha256_add(sum, path + strlen(path) - strlen(strrchr(path, '/')),
		   strlen(strrchr(path, '/')));
	sha256_add(sum, &text.len, sizeof(text.len));
	if (text.len)
		sha256_add(sum, text.data, text.len);
	return 0;
}

/* Adds every file under dir, in the order of names. */
static int add_tree(struct sha256 *sum, const char *dir, int depth, struct err *e)
{
	struct dirent **found;
	int n = depth > 8 ? -1 : scandir(dir, &found, NULL, alphasort), ret = 0;

	if (n < 0)
		return err_errno(e, errno, "read %s", dir);
	for (int i = 0; i < n; i++) {
		char path[PATH_MAX];
		struct stat st;

		path_printf(path, "%s/%s", dir, found[i]->d_name);
		if (ret == 0 && found[i]->d_name[0] != '.' && lstat(path, &st) == 0)
			ret = S_ISDIR(st.st_mode) ? add_tree(sum, path, depth + 1, e)
						  : add_file(sum, path, e);
		free(found[i]);
	}
	free(found);
	return ret;
}

int sysimage_digest(const char *recipes_dir, const char *release, const char *sources,
		    char hex[SHA256_HEX_LEN], struct err *e)
{
	static const char *const parts[] = { RECIPE, "hooks" };
	struct sha256 sum;
	int ret = 0;

	sha256_init(&sum);
	sha256_add(&sum, FORMAT, sizeof(FORMAT));
	sha256_add(&sum, release, strlen(release) + 1);
	sha256_add(&sum, sources, strlen(sources) + 1);
	for (size_t i = 0; i < ARRAY_SIZE(parts) && ret == 0; i++) {
		char path[PATH_MAX];

		path_printf(path, "%s/%s", recipes_dir, parts[i]);
		ret = add_tree(&sum, path, 0, e);
	}
	sha256_end_hex(&sum, hex);
	return ret;
}

struct job {
	const struct sysimage_spec *s;
	struct recipe recipe;
	char *release; /* the host's code name */
	struct buf sources;
	char dir[PATH_MAX]; /* recipes */
	char digest[SHA256_HEX_LEN];
	char work[PATH_MAX], out[PATH_MAX], root[PATH_MAX];
	char kernel[128];
};

static void job_free(struct job *j)
{
	static const char *const root[] = { "root", NULL };

	if (j->work[0]) {
		rootfs_remove(j->work, root, NULL);
		tree_remove(j->work);
	}
	if (j->out[0])
		tree_remove(j->out);
	recipe_free(&j->recipe);
	free(j->release);
	buf_free(&j->sources);
}

static int host_release(char **release, struct err *e)
{
	_cleanup_buf_ struct buf text = { 0 };
	_cleanup_free_ char *id = NULL;
	int ret = fd_read_file("/etc/os-release", &text, 1 << 16, e);

	if (ret < 0)
		return ret;
	id = aptsrc_os_release(text.data ? text.data : "", "ID");
	*release = aptsrc_os_release(text.data ? text.data : "", "VERSION_CODENAME");
	if (id && *release && strcmp(id, "debian") == 0)
		return 0;
	err_set(e, "unsupported_host", ENOTSUP, "machine mode needs Debian on the host, this is %s",
		id ? id : "something else");
	err_fix(e, "Run Cloche on Debian 12 or 13, or where /dev/kvm is usable.");
	return -ENOTSUP;
}

/* Everything that decides the digest. */
static int load(struct job *j, struct err *e)
{
	int ret = 0;

	if (j->s->recipes_dir)
		path_printf(j->dir, "%s", j->s->recipes_dir);
	else
		ret = recipe_find_dir(j->dir, e);
	if (ret == 0)
		ret = host_release(&j->release, e);
	if (ret == 0)
		ret = recipe_load(j->dir, RECIPE, &j->recipe, e);
	if (ret < 0)
		return ret;
	j->recipe.release = j->release;
	ret = image_sources(&j->recipe, j->s->mirror, j->s->security_mirror, &j->sources, e);
	return ret < 0 ? ret : sysimage_digest(j->dir, j->release, j->sources.data, j->digest, e);
}

static bool up_to_date(const struct job *j)
{
	_cleanup_buf_ struct buf text = { 0 };
	char path[PATH_MAX];

	path_printf(path, "%s/system/digest", j->s->state_dir);
	return fd_read_file(path, &text, 256, NULL) == 0 && text.len == SHA256_HEX_LEN - 1 &&
	       memcmp(text.data, j->digest, text.len) == 0;
}

static int make_root(const struct job *j, struct err *e)
{
	char sources[PATH_MAX], log[PATH_MAX];
	struct rootfs_spec spec = { .recipe = &j->recipe,
				    .sources = sources,
				    .root = j->root,
				    .log_path = log,
				    .on_step = j->s->on_step,
				    .ctx = j->s->ctx };
	int ret;

	path_printf(log, "%s/system-build.log", j->s->state_dir);
	path_printf(sources, "%s/cloche.sources", j->work);
	unlink(log);
	ret = fd_write_file_atomic(sources, j->sources.data, j->sources.len, 0644, e);
	return ret < 0 ? ret : rootfs_make(&spec, e);
}

static int add_to_cpio(struct buf *cpio, const char *name, const char *from, struct err *e)
{
	_cleanup_buf_ struct buf text = { 0 };
	int ret = fd_read_file(from, &text, FILE_MAX, e);

	if (ret < 0)
		return ret;
	ret = cpio_add_file(cpio, name, 0755, text.data, text.len);
	return ret < 0 ? err_errno(e, -ret, "pack %s", name) : 0;
}

static int make_initrd(const struct job *j, struct err *e)
{
	_cleanup_buf_ struct buf cpio = { 0 };
	char path[PATH_MAX];
	int ret;

	if (cpio_add_dir(&cpio, "bin") < 0)
		return err_errno(e, ENOMEM, "make the initramfs");
	path_printf(path, "%s/bin/busybox", j->root);
	ret = add_to_cpio(&cpio, "bin/busybox", path, e);
	path_printf(path, "%s/%s/init", j->dir, RECIPE);
	if (ret == 0)
		ret = add_to_cpio(&cpio, "init", path, e);
	path_printf(path, "%s/usr/lib/modules/%s", j->root, j->kernel);
	if (ret == 0)
		ret = modules_pack(path, j->kernel, early_modules, ARRAY_SIZE(early_modules), &cpio,
				   e);
	path_printf(path, "%s/initrd", j->out);
	return ret < 0 ? ret : fd_write_file_atomic(path, cpio.data, cpio.len, 0644, e);
}

static int make_kernel(struct job *j, struct err *e)
{
	_cleanup_buf_ struct buf packed = { 0 }, elf = { 0 };
	char path[PATH_MAX];
	int ret = rootfs_find_kernel(j->root, j->kernel, sizeof(j->kernel), e);

	path_printf(path, "%s/boot/vmlinuz-%s", j->root, j->kernel);
	if (ret == 0)
		ret = fd_read_file(path, &packed, BZIMAGE_KERNEL_MAX, e);
	if (ret == 0)
		ret = bzimage_extract((const uint8_t *)packed.data, packed.len, &elf, e);
	path_printf(path, "%s/vmlinux", j->out);
	return ret < 0 ? ret : fd_write_file_atomic(path, elf.data, elf.len, 0644, e);
}

static int make_disk(const struct job *j, struct err *e)
{
	static const char *const boot[] = { "boot", NULL };
	char made[PATH_MAX], final[PATH_MAX];
	int ret = rootfs_remove(j->root, boot, e);

	path_printf(made, "%s/system.raw", j->work);
	path_printf(final, "%s/system.raw", j->out);
	if (ret == 0)
		ret = rootfs_to_disk(j->root, made, "cloche-system", j->recipe.slack_mib, e);
	return ret < 0 ? ret : rootfs_move_disk(made, final, e);
}

static int build(struct job *j, struct err *e)
{
	const char *tmp = getenv("TMPDIR") ? getenv("TMPDIR") : "/var/tmp";
	char path[PATH_MAX];
	int ret = tree_scratch(geteuid() == 0 ? j->s->state_dir : tmp, "work", j->work, e);

	if (ret == 0)
		ret = tree_scratch(j->s->state_dir, "system", j->out, e);
	if (ret < 0)
		return ret;
	path_printf(j->root, "%s/root", j->work);
	ret = rootfs_check_space(j->work, j->recipe.need_mib, e);
	if (ret == 0)
		ret = make_root(j, e);
	if (ret == 0)
		ret = make_kernel(j, e);
	if (ret == 0)
		ret = make_initrd(j, e);
	if (ret == 0)
		ret = make_disk(j, e);
	path_printf(path, "%s/digest", j->out);
	if (ret == 0)
		ret = fd_write_file_atomic(path, j->digest, strlen(j->digest), 0644, e);
	path_printf(path, "%s/system", j->s->state_dir);
	if (ret == 0)
		ret = tree_commit(j->out, path, e);
	if (ret == 0)
		j->out[0] = '\0';
	return ret;
}

int sysimage_ensure(const struct sysimage_spec *s, bool *built, struct err *e)
{
	_cleanup_(job_free) struct job j = { .s = s };
	int ret = tree_mkdirs(s->state_dir, e);

	if (built)
		*built = false;
	if (ret == 0)
		ret = load(&j, e);
	if (ret < 0 || up_to_date(&j))
		return ret;
	s->on_step(s->ctx, "making the machine's system image (once, a few minutes)");
	ret = rootfs_check_tools(e);
	if (ret == 0)
		ret = build(&j, e);
	if (ret == 0 && built)
		*built = true;
	return ret < 0 ? err_wrap(e, "the machine's system image") : 0;
}
