/*
 * A distribution's root folder by mmdebstrap, and an ext4 disk made of it. Works as root, or as a
 * normal user with sub-ids (then the folder belongs to a user namespace, and every command that
 * touches it runs in there).
 */
#ifndef CLOCHE_IMAGE_ROOTFS_H
#define CLOCHE_IMAGE_ROOTFS_H

#include <stddef.h>
#include <stdint.h>

struct err;
struct recipe;

typedef void (*rootfs_step_fn)(void *ctx, const char *text);

struct rootfs_spec {
	const struct recipe *recipe;
	const char *sources;  /* file of deb822 stanzas */
	const char *root;     /* folder to make */
	const char *overlay;  /* tar archive unpacked over the root, or NULL */
	const char *log_path; /* everything the tools say is appended there */
	rootfs_step_fn on_step;
	void *ctx;
};

/*
 * Makes the root folder. Fails with "program_missing", "mirror_unreachable", "disk_full" or
 * "rootfs_failed"; the message holds the tool's own complaint and e->fix what to try.
 */
int rootfs_make(const struct rootfs_spec *s, struct err *e);

/* Removes names (NULL-terminated, relative) under root. */
int rootfs_remove(const char *root, const char *const *names, struct err *e);

/* Makes a sparse ext4 image at path with the content of root and slack_mib of free room. */
int rootfs_to_disk(const char *root, const char *path, const char *label, uint32_t slack_mib,
		   struct err *e);

/* Moves a disk to its place, by a sparse copy where that is on another file system. */
int rootfs_move_disk(const char *from, const char *to, struct err *e);

/* The release of the one kernel under root/boot; "no_kernel" when there is none. */
int rootfs_find_kernel(const char *root, char *release, size_t room, struct err *e);

/* "disk_full" when dir has less than need_mib of free space. */
int rootfs_check_space(const char *dir, uint32_t need_mib, struct err *e);

/* Checks that the programs needed are installed; the error names the package to install. */
int rootfs_check_tools(struct err *e);

#endif
