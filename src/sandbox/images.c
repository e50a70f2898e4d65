/*
 * An image is valid when each file has the size and digest of its manifest. Hashing a disk takes
 * seconds, so what was verified is remembered beside it (VERIFIED_NAME: identity and digest of
 * each file) and hashed again only when size, time of change or inode differ. An import hashes
 * while it copies into a folder with a leading dot, which is renamed into place when all of it is
 * right; a crash leaves such a folder, and the next import of that image removes it.
 *
 * An image that is replaced is renamed aside first: sandboxes made of it have copies of their
 * own, and a create that has it open goes on with the old files.
 *
 * One thread at a time works on an image of a name, so that creates of one image wait for its
 * import while those of others go on.
 */
#include "sandbox/images.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/log.h"
#include "sandbox/disk.h"
#include "sandbox/image_file.h"

#define VERIFIED_NAME "verified.json"

/* An image that a thread works on; lives on that thread's stack. */
struct busy {
	struct busy *next;
	const char *name;
};

struct images {
	pthread_mutex_t lock;
	pthread_cond_t freed;
	struct busy *busy;
	char dir[PATH_MAX];
	const char *const *import_dirs;
	size_t import_dirs_n;
};

int images_new(const char *state_dir, const char *const *import_dirs, size_t n, struct images **out,
	       struct err *e)
{
	struct images *im = calloc(1, sizeof(*im));

	if (!im)
		return err_errno(e, ENOMEM, "images");
	if (snprintf(im->dir, sizeof(im->dir), "%s/images", state_dir) >= (int)sizeof(im->dir)) {
		free(im);
		return err_errno(e, ENAMETOOLONG, "state folder");
	}
	im->import_dirs = import_dirs;
	im->import_dirs_n = n;
	pthread_mutex_init(&im->lock, NULL);
	pthread_cond_init(&im->freed, NULL);
	*out = im;
	return 0;
}

void images_free(struct images *im)
{
	if (!im)
		return;
	pthread_cond_destroy(&im->freed);
	pthread_mutex_destroy(&im->lock);
	free(im);
}

static const struct busy *find_busy(const struct images *im, const char *name)
{
	const struct busy *b = im->busy;

	while (b && strcmp(b->name, name) != 0)
		b = b->next;
	return b;
}

static void take(struct images *im, struct busy *b, const char *name)
{
	b->name = name;
	pthread_mutex_lock(&im->lock);
	while (find_busy(im, name))
		pthread_cond_wait(&im->freed, &im->lock);
	b->next = im->busy;
	im->busy = b;
	pthread_mutex_unlock(&im->lock);
}

static void give_back(struct images *im, struct busy *b)
{
	struct busy **p = &im->busy;

	pthread_mutex_lock(&im->lock);
	while (*p != b)
		p = &(*p)->next;
	*p = b->next;
	pthread_cond_broadcast(&im->freed);
	pthread_mutex_unlock(&im->lock);
}

static int path_of(char out[PATH_MAX], const char *dir, const char *name, const char *file,
		   struct err *e)
{
	int n = snprintf(out, PATH_MAX, "%s/%s%s%s", dir, name, file ? "/" : "", file ? file : "");

	return n >= PATH_MAX ? err_errno(e, ENAMETOOLONG, "image %s", name) : 0;
}

/* -ENOENT (with words) when there is no manifest. */
static int read_manifest(const char *dir, const char *name, struct manifest *out, struct err *e)
{
	_cleanup_buf_ struct buf b = { 0 };
	char path[PATH_MAX];
	int r = path_of(path, dir, name, MANIFEST_NAME, e);

	if (r == 0)
		r = fd_read_file(path, &b, MANIFEST_BYTES_MAX, e);
	if (r == 0)
		r = manifest_parse(b.data ? b.data : "", b.len, out, e);
	if (r == 0 && strcmp(out->name, name) != 0)
		r = err_set(e, "image_corrupt", EINVAL, "the manifest names itself \"%s\"",
			    out->name);
	return r < 0 ? err_wrap(e, "image %s", name) : 0;
}

static void corrupt_fix(const struct images *im, struct err *e)
{
	(void)im;
	if (e && e->code && strcmp(e->code, "image_corrupt") == 0)
		err_fix(e, "Build or import the image again: `cloche image build` or "
			   "`cloche image import`.");
}

/* ---- import ---- */

static bool same_files(const struct manifest *a, const struct manifest *b)
{
	for (int p = 0; p < MANIFEST_PARTS; p++)
		if (strcmp(a->files[p].sha256, b->files[p].sha256) != 0)
			return false;
	return strcmp(a->cmdline, b->cmdline) == 0;
}

static int import_parts(const struct manifest *m, const char *from, const char *to, struct err *e)
{
	struct image_identity ids[MANIFEST_PARTS] = { 0 };
	char path[PATH_MAX];
	int r = 0;

	for (int p = 0; p < MANIFEST_PARTS && r == 0; p++)
		if (m->files[p].name[0])
			r = image_file_import(&m->files[p], from, to, &ids[p], e);
	if (r == 0)
		r = path_of(path, to, VERIFIED_NAME, NULL, e);
	return r < 0 ? r : image_verified_write(path, m, ids, e);
}

static int copy_manifest(const char *from, const char *to, struct err *e)
{
	_cleanup_buf_ struct buf b = { 0 };
	char path[PATH_MAX];
	int r = path_of(path, from, MANIFEST_NAME, NULL, e);

	if (r == 0)
		r = fd_read_file(path, &b, MANIFEST_BYTES_MAX, e);
	if (r == 0)
		r = path_of(path, to, MANIFEST_NAME, NULL, e);
	return r < 0 ? r : fd_write_file_atomic(path, b.data, b.len, 0644, e);
}

/* Puts tmp in the place of final; what was there goes to old and is removed. */
static int swap_in(const char *tmp, const char *final, const char *old, struct err *e)
{
	int r = disk_remove_dir(old, e);

	if (r < 0)
		return r;
	if (rename(final, old) < 0 && errno != ENOENT)
		return err_errno(e, errno, "move %s aside", final);
	if (rename(tmp, final) < 0)
		return err_errno(e, errno, "move %s into place", tmp);
	return disk_remove_dir(old, e);
}

static int import(const struct images *im, const char *import_dir, const struct manifest *m,
		  struct err *e)
{
	char from[PATH_MAX], tmp[PATH_MAX], old[PATH_MAX], final[PATH_MAX], hidden[160];
	int r = path_of(from, import_dir, m->name, NULL, e);

	if (r == 0)
		r = path_of(final, im->dir, m->name, NULL, e);
	snprintf(hidden, sizeof(hidden), ".new-%s", m->name);
	if (r == 0)
		r = path_of(tmp, im->dir, hidden, NULL, e);
	snprintf(hidden, sizeof(hidden), ".old-%s", m->name);
	if (r == 0)
		r = path_of(old, im->dir, hidden, NULL, e);
	if (r == 0)
		r = disk_remove_dir(tmp, e);
	if (r < 0)
		return r;
	if (mkdir(tmp, 0755) < 0)
		return err_errno(e, errno, "make folder %s", tmp);
	r = import_parts(m, from, tmp, e);
	if (r == 0)
		r = copy_manifest(from, tmp, e);
	if (r == 0)
		r = swap_in(tmp, final, old, e);
	if (r < 0)
		disk_remove_dir(tmp, NULL);
	return r;
}

/* Imports im's image `name` from one folder when it is there and new. */
static int import_if_new(const struct images *im, const char *import_dir, const char *name,
			 struct err *e)
{
	struct manifest theirs, ours;
	uint64_t began = clock_mono_ns();
	int r = read_manifest(import_dir, name, &theirs, e);

	if (r < 0)
		return r;
	if (read_manifest(im->dir, name, &ours, NULL) == 0 && same_files(&theirs, &ours))
		return 0;
	r = import(im, import_dir, &theirs, e);
	if (r < 0)
		return err_wrap(e, "import image %s from %s", name, import_dir);
	log_info("image %s imported from %s in %llu ms", name, import_dir,
		 (unsigned long long)((clock_mono_ns() - began) / NSEC_PER_MSEC));
	return 0;
}

static void rescan_one(struct images *im, const char *import_dir, const char *name)
{
	struct busy b;
	struct err e;
	int r;

	take(im, &b, name);
	r = import_if_new(im, import_dir, name, &e);
	give_back(im, &b);
	if (r < 0 && r != -ENOENT && r != -ENOTDIR)
		log_err(LOG_WARN, &e, "image left out");
}

static void rescan_dir(struct images *im, const char *import_dir)
{
	_cleanup_closedir_ DIR *d = opendir(import_dir);
	struct dirent *de;

	if (!d) {
		if (errno != ENOENT)
			log_warn("import folder %s: %m", import_dir);
		return;
	}
	while ((de = readdir(d)))
		if (manifest_name_valid(de->d_name))
			rescan_one(im, import_dir, de->d_name);
}

void images_rescan(struct images *im)
{
	for (size_t i = 0; i < im->import_dirs_n; i++)
		rescan_dir(im, im->import_dirs[i]);
}

/* ---- use ---- */

static int list_names(const struct images *im, struct buf *out, struct err *e)
{
	_cleanup_json_ json_t *list = NULL;
	json_t *item;
	size_t i;
	int r = images_list((struct images *)(uintptr_t)im, &list, e);

	if (r < 0)
		return r;
	json_array_foreach (list, i, item)
		if (buf_printf(out, "%s%s", i ? ", " : "", json_get_str(item, "name", "")) < 0)
			return err_errno(e, ENOMEM, "images");
	return 0;
}

static int not_found(const struct images *im, const char *name, struct err *e)
{
	_cleanup_buf_ struct buf names = { 0 };
	int r = list_names(im, &names, e);

	if (r < 0)
		return r;
	r = err_set(e, "image_not_found", ENOENT, "no image \"%.64s\" on this host; there %s: %s",
		    name, names.len ? "is" : "is none", names.len ? names.data : "-");
	err_fix(e, "Name one of those, or build it with `cloche image build`.");
	return r;
}

/* Finds the manifest, importing the image when it is not here. */
static int locate(struct images *im, const char *name, struct manifest *m, struct err *e)
{
	struct err why = { 0 };
	int r;

	if (!manifest_name_valid(name))
		return not_found(im, name, e);
	r = read_manifest(im->dir, name, m, e);
	if (r != -ENOENT && r != -ENOTDIR)
		return r;
	for (size_t i = 0; i < im->import_dirs_n; i++) {
		r = import_if_new(im, im->import_dirs[i], name, &why);
		if (r == 0)
			return read_manifest(im->dir, name, m, e);
		if (r != -ENOENT && r != -ENOTDIR) {
			if (e)
				*e = why;
			return r;
		}
	}
	return not_found(im, name, e);
}

static int open_parts(const char *dir, const struct manifest *m, struct image *out, struct err *e)
{
	char path[PATH_MAX];

	for (int p = 0; p < MANIFEST_PARTS; p++) {
		if (!m->files[p].name[0])
			continue;
		if (path_of(path, dir, m->files[p].name, NULL, e) < 0)
			return -ENAMETOOLONG;
		out->fds[p] = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
		if (out->fds[p] < 0)
			return err_set(e, "image_corrupt", errno, "open %s: %s", path,
				       strerror(errno));
	}
	return 0;
}

static int verify(const char *dir, const struct image *i, struct err *e)
{
	struct image_identity ids[MANIFEST_PARTS] = { 0 };
	char path[PATH_MAX];
	int r = path_of(path, dir, VERIFIED_NAME, NULL, e);

	for (int p = 0; p < MANIFEST_PARTS && r == 0; p++)
		if (i->fds[p] >= 0)
			r = image_identity_get(i->fds[p], &ids[p], e);
	if (r < 0 || image_verified_read(path, &i->manifest, ids))
		return r;
	for (int p = 0; p < MANIFEST_PARTS && r == 0; p++)
		if (i->fds[p] >= 0)
			r = image_file_verify(i->fds[p], &i->manifest.files[p], e);
	return r < 0 ? r : image_verified_write(path, &i->manifest, ids, e);
}

static int open_taken(struct images *im, const char *name, struct image *i, struct err *e)
{
	char dir[PATH_MAX];
	int r = locate(im, name, &i->manifest, e);

	if (r == 0)
		r = path_of(dir, im->dir, name, NULL, e);
	if (r == 0)
		r = open_parts(dir, &i->manifest, i, e);
	return r < 0 ? r : verify(dir, i, e);
}

int images_open(struct images *im, const char *name, struct image *out, struct err *e)
{
	struct image i = IMAGE_NONE;
	struct busy b;
	int r;

	take(im, &b, name);
	r = open_taken(im, name, &i, e);
	give_back(im, &b);
	if (r < 0) {
		image_close(&i);
		corrupt_fix(im, e);
		return r;
	}
	*out = i;
	return 0;
}

void image_close(struct image *i)
{
	for (int p = 0; p < MANIFEST_PARTS; p++)
		close_fd(&i->fds[p]);
}

static json_t *describe(const struct images *im, const char *name)
{
	char path[PATH_MAX], when[CLOCK_RFC3339_LEN];
	struct manifest m;
	struct stat st;

	if (read_manifest(im->dir, name, &m, NULL) < 0 ||
	    path_of(path, im->dir, name, MANIFEST_NAME, NULL) < 0 || stat(path, &st) < 0)
		return NULL;
	clock_rfc3339((int64_t)st.st_mtim.tv_sec * 1000 + st.st_mtim.tv_nsec / 1000000, when);
	return json_pack("{s:s,s:s,s:I,s:s}", "name", m.name, "kernelVersion", m.kernel_version,
			 "diskMiB", (json_int_t)((m.files[MANIFEST_DISK].bytes + 1048575) >> 20),
			 "importedAt", when);
}

int images_list(struct images *im, json_t **out, struct err *e)
{
	_cleanup_json_ json_t *list = json_array();
	struct dirent **names = NULL;
	int n = scandir(im->dir, &names, NULL, alphasort), r = 0;

	if (n < 0)
		return err_errno(e, errno, "list %s", im->dir);
	for (int i = 0; i < n; i++) {
		json_t *item = manifest_name_valid(names[i]->d_name)
				       ? describe(im, names[i]->d_name)
				       : NULL;

		if (item && json_array_append_new(list, item) < 0)
			r = err_errno(e, ENOMEM, "list images");
		free(names[i]);
	}
	free(names);
	if (r == 0)
		*out = steal_ptr(list);
	return r;
}
