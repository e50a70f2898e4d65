/*
 * The programs are copied into a scratch folder beside the disk, and mke2fs fills a file system
 * from it. Inside the machine it is mounted at /opt/cloche, so the folders are libexec and bin.
 */
#include "machine/payload.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/proc.h"
#include "image/tree.h"
#include "machine/paths.h"

#define SLACK_MIB 4

static const struct {
	const char *name, *folder;
	mode_t mode;
	bool required;
} parts[] = {
	{ "cloched", "libexec", 0755, true },	     { "cloche-vmm", "libexec", 0755, true },
	{ "agent.cpio", "libexec", 0644, true },     { "cloche-agent", "libexec", 0755, false },
	{ "cloche-egress", "libexec", 0755, false }, { "cloche", "bin", 0755, false },
};

/* Copies one program; adds its size to *bytes. */
static int add_part(const char *dir, size_t i, uint64_t *bytes, struct err *e)
{
	char from[PATH_MAX], to[PATH_MAX];
	struct stat st;
	int ret = paths_find(parts[i].name, from, e);

	if (ret < 0)
		return parts[i].required ? ret : 0;
	path_printf(to, "%s/%s", dir, parts[i].folder);
	mkdir(to, 0755);
	path_printf(to, "%s/%s/%s", dir, parts[i].folder, parts[i].name);
	ret = tree_copy_file(from, to, e);
	if (ret < 0)
		return ret;
	if (chmod(to, parts[i].mode) < 0 || stat(to, &st) < 0)
		return err_errno(e, errno, "copy %s", to);
	*bytes += (uint64_t)st.st_size;
	return 0;
}

int payload_make(const char *path, struct err *e)
{
	char parent[PATH_MAX], dir[PATH_MAX], made[PATH_MAX], size[32];
	const char *argv[] = { "mke2fs",
			       "-q",
			       "-F",
			       "-t",
			       "ext4",
			       "-O",
			       "^has_journal",
			       "-m",
			       "0",
			       "-E",
			       "root_owner=0:0",
			       "-L",
			       "cloche-payload",
			       "-d",
			       dir,
			       made,
			       size,
			       NULL };
	uint64_t bytes = 0;
	int ret;

	path_printf(parent, "%s", path);
	if (strrchr(parent, '/'))
		*strrchr(parent, '/') = '\0';
	ret = tree_scratch(parent, "payload", dir, e);
	if (ret < 0)
		return ret;
	if (chmod(dir, 0755) < 0)
		ret = err_errno(e, errno, "chmod %s", dir);
	for (size_t i = 0; i < ARRAY_SIZE(parts) && ret == 0; i++)
		ret = add_part(dir, i, &bytes, e);
	path_printf(made, "%s.new", path);
	snprintf(size, sizeof(size), "%lluM",
		 (unsigned long long)(bytes / (1 << 20) * 11 / 10 + SLACK_MIB));
	unlink(made);
	if (ret == 0)
		ret = proc_run(&(struct proc_spec){ .argv = argv }, e);
	if (ret == 0 && rename(made, path) < 0)
		ret = err_errno(e, errno, "move %s", made);
	tree_remove(dir);
	unlink(made);
	return ret;
}

void payload_id(char hex[SHA256_HEX_LEN])
{
	struct sha256 sum;

	hex[0] = '\0';
	sha256_init(&sum);
	for (size_t i = 0; i < ARRAY_SIZE(parts); i++) {
		char path[PATH_MAX];
		struct stat st;
		int64_t v[3] = { 0 };

		if (paths_find(parts[i].name, path, NULL) == 0 && stat(path, &st) == 0) {
			v[0] = st.st_size;
			v[1] = st.st_mtim.tv_sec;
			v[2] = st.st_mtim.tv_nsec;
		} else if (parts[i].required) {
			return;
		}
		sha256_add(&sum, v, sizeof(v));
	}
	sha256_end_hex(&sum, hex);
}
