/*
 * No index: the manifests are the truth. An image is renamed away before it is deleted, so that
 * nobody can load a half-deleted one.
 */
#include "image/store.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "image/tree.h"

static int check_name(const char *name, struct err *e)
{
	if (image_name_valid(name))
		return 0;
	err_set(e, "bad_image_name", EINVAL, "\"%s\" is not an image name", name);
	err_fix(e, "Use 1 to 63 of a-z 0-9 . _ - beginning with a letter or digit.");
	return -EINVAL;
}

int image_load(const char *images, const char *name, struct image_manifest *m, struct err *e)
{
	char dir[PATH_MAX];

	if (check_name(name, e) < 0)
		return -EINVAL;
	path_printf(dir, "%s/%s", images, name);
	return manifest_load(dir, m, e);
}

static int visible(const struct dirent *d)
{
	return image_name_valid(d->d_name);
}

int image_list(const char *images, int (*fn)(void *ctx, const struct image_manifest *m), void *ctx,
	       struct err *e)
{
	struct dirent **found;
	struct image_manifest m;
	int n = scandir(images, &found, visible, alphasort), count = 0;

	if (n < 0)
		return errno == ENOENT ? 0 : err_errno(e, errno, "read %s", images);
	for (int i = 0; i < n; i++) {
		if (count >= 0 && image_load(images, found[i]->d_name, &m, NULL) == 0) {
			int ret = fn(ctx, &m);

			count = ret < 0 ? ret : count + 1;
		}
		free(found[i]);
	}
	free(found);
	return count;
}

static int copy_parts(const char *from, const char *to, const struct image_manifest *m,
		      struct err *e)
{
	for (int i = 0; i < IMAGE_PARTS; i++) {
		char a[PATH_MAX], b[PATH_MAX];
		int ret;

		path_printf(a, "%s/%s", from, m->files[i].name);
		path_printf(b, "%s/%s", to, m->files[i].name);
		ret = tree_copy_file(a, b, e);
		if (ret < 0)
			return ret;
	}
	return 0;
}

int image_import(const char *from, const char *images, const char *name, struct err *e)
{
	struct image_manifest m;
	char scratch[PATH_MAX], target[PATH_MAX];
	int ret = manifest_load(from, &m, e);

	if (ret < 0)
		return ret;
	if (!name)
		name = m.name;
	if (check_name(name, e) < 0)
		return -EINVAL;
	ret = tree_scratch(images, "import", scratch, e);
	if (ret < 0)
		return ret;
	ret = copy_parts(from, scratch, &m, e);
	if (ret == 0)
		ret = manifest_verify(scratch, &m, e);
	if (ret == 0) {
		if (name != m.name)
			snprintf(m.name, sizeof(m.name), "%s", name);
		ret = manifest_save(scratch, &m, e);
	}
	path_printf(target, "%s/%s", images, name);
	if (ret == 0)
		ret = tree_commit(scratch, target, e);
	if (ret < 0)
		tree_remove(scratch);
	return ret;
}

int image_remove(const char *images, const char *name, struct err *e)
{
	struct image_manifest m;
	char dir[PATH_MAX], gone[PATH_MAX], inside[PATH_MAX];
	int ret = image_load(images, name, &m, e);

	if (ret < 0 && ret != -EINVAL)
		return ret;
	if (check_name(name, e) < 0)
		return -EINVAL;
	ret = tree_scratch(images, "gone", gone, e);
	if (ret < 0)
		return ret;
	path_printf(dir, "%s/%s", images, name);
	path_printf(inside, "%s/%s", gone, name);
	if (rename(dir, inside) < 0)
		ret = err_errno(e, errno, "remove %s", dir);
	tree_remove(gone);
	return ret;
}
