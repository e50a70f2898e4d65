/*
 * Stages, each of which leaves its result in one of two scratch folders: `work` (root folder,
 * archives; deleted) and `out` (the image's files; renamed into place at the end). As root both lie
 * beside the images, where the space is. A normal user's home cannot be entered by the namespace's
 * root, so there `work` lies in TMPDIR or /var/tmp and the disk is copied once.
 */
#include "image/build.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/proc.h"
#include "image/aptsrc.h"
#include "image/bzimage.h"
#include "image/cpio.h"
#include "image/modules.h"
#include "image/npm.h"
#include "image/recipe.h"
#include "image/rootfs.h"
#include "image/tree.h"

struct job {
	const struct image_build *b;
	const char *name;
	struct recipe recipe;
	char work[PATH_MAX], out[PATH_MAX], root[PATH_MAX], log[PATH_MAX];
	struct image_manifest *m;
};

/* What the guest loads before its root is mounted. Some kernels have part of it built in. */
static const char *const early_modules[] = {
	"virtio_mmio", "virtio_blk",	 "virtio_rng",	    "vmw_vsock_virtio_transport",
	"virtio_net",  "virtio_balloon", "?crc32c_generic", "?crc32c_intel",
	"ext4",	       "overlay",
};

static void step(const struct job *j, const char *text)
{
	j->b->on_step(j->b->ctx, text);
}

int image_sources(const struct recipe *r, const char *mirror, const char *security_mirror,
		  struct buf *out, struct err *e)
{
	_cleanup_buf_ struct buf text = { 0 };
	_cleanup_free_ char *id = NULL, *codename = NULL;
	int ret;

	if (mirror)
		return aptsrc_mirror(mirror, security_mirror, r->release, r->components, out, e);
	ret = fd_read_file("/etc/os-release", &text, 1 << 16, e);
	if (ret < 0)
		return ret;
	id = aptsrc_os_release(text.len ? text.data : "", "ID");
	codename = aptsrc_os_release(text.len ? text.data : "", "VERSION_CODENAME");
	if (!id || !codename || strcmp(id, r->distribution) != 0) {
		err_set(e, "no_mirror", ENOENT, "this host runs %s, so it has no sources for %s",
			id ? id : "an unknown system", r->distribution);
		err_fix(e, "Name an archive of %s with --mirror URL.", r->distribution);
		return -ENOENT;
	}
	return aptsrc_host("/etc/apt", codename, r->release, r->components, out, e);
}

/* Programs from npm go into a tar archive, the one form that mmdebstrap takes in every mode. */
static int make_overlay(const struct job *j, char tar[PATH_MAX], struct err *e)
{
	_cleanup_buf_ struct buf registry = { 0 };
	char tree[PATH_MAX];
	const char *argv[] = { "tar", "--owner=0", "--group=0", "-cf", tar, "-C", tree, ".", NULL };
	int ret = npm_registry(j->b->npm_registry, &registry, e);

	if (ret < 0)
		return ret;
	path_printf(tar, "%s/overlay.tar", j->work);
	path_printf(tree, "%s/overlay", j->work);
	if (mkdir(tree, 0755) < 0)
		return err_errno(e, errno, "make %s", tree);
	ret = npm_install(j->recipe.npm, registry.data, tree, j->work, j->b->on_step, j->b->ctx, e);
	return ret < 0 ? ret : proc_run(&(struct proc_spec){ .argv = argv }, e);
}

static int make_root(struct job *j, struct err *e)
{
	_cleanup_buf_ struct buf sources = { 0 };
	char sources_path[PATH_MAX], overlay[PATH_MAX];
	bool npm = json_array_size(j->recipe.npm) > 0;
	struct rootfs_spec s = { .recipe = &j->recipe,
				 .sources = sources_path,
				 .root = j->root,
				 .overlay = npm ? overlay : NULL,
				 .log_path = j->log,
				 .on_step = j->b->on_step,
				 .ctx = j->b->ctx };
	int ret = image_sources(&j->recipe, j->b->mirror, j->b->security_mirror, &sources, e);

	path_printf(sources_path, "%s/cloche.sources", j->work);
	if (ret == 0)
		ret = fd_write_file_atomic(sources_path, sources.data, sources.len, 0644, e);
	if (ret == 0 && npm)
		ret = make_overlay(j, overlay, e);
	return ret < 0 ? ret : rootfs_make(&s, e);
}

static int make_kernel(const struct job *j, struct err *e)
{
	_cleanup_buf_ struct buf packed = { 0 }, elf = { 0 };
	char path[PATH_MAX];
	int ret;

	path_printf(path, "%s/boot/vmlinuz-%s", j->root, j->m->kernel_version);
	ret = fd_read_file(path, &packed, BZIMAGE_KERNEL_MAX, e);
	if (ret == 0)
		ret = bzimage_extract((const uint8_t *)packed.data, packed.len, &elf, e);
	path_printf(path, "%s/vmlinux", j->out);
	return ret < 0 ? ret : fd_write_file_atomic(path, elf.data, elf.len, 0644, e);
}

static int make_initrd(const struct job *j, struct err *e)
{
	_cleanup_buf_ struct buf cpio = { 0 };
	char path[PATH_MAX];
	int ret;

	path_printf(path, "%s/usr/lib/modules/%s", j->root, j->m->kernel_version);
	ret = modules_pack(path, j->m->kernel_version, early_modules, ARRAY_SIZE(early_modules),
			   &cpio, e);
	path_printf(path, "%s/initrd", j->out);
	return ret < 0 ? ret : fd_write_file_atomic(path, cpio.data, cpio.len, 0644, e);
}

static int make_disk(const struct job *j, struct err *e)
{
	static const char *const boot[] = { "boot", NULL };
	char made[PATH_MAX], final[PATH_MAX];
	int ret = rootfs_remove(j->root, boot, e);

	path_printf(made, "%s/disk.raw", j->work);
	path_printf(final, "%s/disk.raw", j->out);
	if (ret == 0)
		ret = rootfs_to_disk(j->root, made, "cloche", j->recipe.slack_mib, e);
	return ret < 0 ? ret : rootfs_move_disk(made, final, e);
}

static int make_manifest(const struct job *j, struct err *e)
{
	struct image_manifest *m = j->m;
	int ret;

	snprintf(m->name, sizeof(m->name), "%s", j->name);
	snprintf(m->recipe, sizeof(m->recipe), "%s", j->recipe.name);
	snprintf(m->distribution, sizeof(m->distribution), "%s", j->recipe.distribution);
	snprintf(m->release, sizeof(m->release), "%s", j->recipe.release);
	snprintf(m->files[IMAGE_DISK].name, sizeof(m->files[0].name), "disk.raw");
	snprintf(m->files[IMAGE_KERNEL].name, sizeof(m->files[0].name), "vmlinux");
	snprintf(m->files[IMAGE_INITRD].name, sizeof(m->files[0].name), "initrd");
	clock_rfc3339(clock_wall_ms(), m->created_at);
	ret = manifest_measure(j->out, m, e);
	return ret < 0 ? ret : manifest_save(j->out, m, e);
}

static int run_stages(struct job *j, struct err *e)
{
	int ret = make_root(j, e);

	if (ret == 0)
		ret = rootfs_find_kernel(j->root, j->m->kernel_version,
					 sizeof(j->m->kernel_version), e);
	if (ret < 0)
		return ret;
	step(j, "unpacking the kernel");
	ret = make_kernel(j, e);
	if (ret == 0)
		ret = make_initrd(j, e);
	if (ret < 0)
		return ret;
	step(j, "making the disk");
	ret = make_disk(j, e);
	if (ret < 0)
		return ret;
	step(j, "computing digests");
	return make_manifest(j, e);
}

/* The tags name the image: a build sweeps what an earlier one of the same image left, no other's.
 */
static int prepare(struct job *j, struct err *e)
{
	const char *tmp = getenv("TMPDIR") ? getenv("TMPDIR") : "/var/tmp";
	const char *top = geteuid() == 0 ? j->b->images_dir : tmp;
	char work[IMAGE_NAME_MAX + 8], out[IMAGE_NAME_MAX + 8];
	int ret;

	snprintf(work, sizeof(work), "work-%s", j->name);
	snprintf(out, sizeof(out), "build-%s", j->name);
	tree_sweep(j->b->images_dir, work);
	tree_sweep(j->b->images_dir, out);
	ret = tree_scratch(top, work, j->work, e);
	if (ret < 0)
		return ret;
	path_printf(j->root, "%s/root", j->work);
	ret = tree_scratch(j->b->images_dir, out, j->out, e);
	return ret < 0 ? ret : rootfs_check_space(j->work, j->recipe.need_mib, e);
}

/* Lock held: builds, then puts the image in place or cleans up. */
static int build_locked(struct job *j, struct err *e)
{
	static const char *const everything[] = { "root", NULL };
	char target[PATH_MAX];
	int ret = prepare(j, e);

	if (ret == 0)
		ret = run_stages(j, e);
	path_printf(target, "%s/%s", j->b->images_dir, j->name);
	if (ret == 0)
		ret = tree_commit(j->out, target, e);
	if (ret < 0 && j->out[0])
		tree_remove(j->out);
	if (j->work[0]) {
		rootfs_remove(j->work, everything, NULL);
		tree_remove(j->work);
	}
	if (ret == 0)
		unlink(j->log);
	return ret;
}

int image_build(const struct image_build *b, struct image_manifest *m, struct err *e)
{
	struct job j = { .b = b, .m = m };
	_cleanup_close_ int lock = -1;
	char dir[PATH_MAX];
	int ret;

	memset(m, 0, sizeof(*m));
	ret = b->recipes_dir ? 0 : recipe_find_dir(dir, e);
	if (ret == 0)
		ret = recipe_load(b->recipes_dir ? b->recipes_dir : dir, b->recipe, &j.recipe, e);
	if (ret < 0)
		return ret;
	j.name = b->name ? b->name : j.recipe.name;
	ret = rootfs_check_tools(e);
	if (ret == 0 && !image_name_valid(j.name))
		ret = err_set(e, "bad_image_name", EINVAL, "\"%s\" is not an image name", j.name);
	if (ret == 0 && (!j.recipe.kernel_package || strcmp(j.recipe.release, "host") == 0))
		ret = err_set(e, "bad_recipe", EINVAL, "recipe %s is none for a guest", b->recipe);
	if (ret == 0)
		ret = tree_mkdirs(b->images_dir, e);
	path_printf(j.log, "%s/.build-%s.log", b->images_dir, j.name);
	path_printf(dir, "%s/.build-%s.lock", b->images_dir, j.name);
	if (ret == 0)
		ret = lock = tree_lock(dir, "this image", e);
	if (ret >= 0) {
		unlink(j.log);
		ret = build_locked(&j, e);
	}
	recipe_free(&j.recipe);
	return ret < 0 ? ret : 0;
}
