/*
 * Everything is done by running programs with argument arrays. As a normal user a command is
 * prefixed with `mmdebstrap --unshare-helper`, which enters a namespace with the same id mapping
 * that mmdebstrap itself used. What mmdebstrap prints is kept in a log file; of it only its own
 * progress lines reach the caller, and of its complaints the first says best what went wrong.
 */
#include "image/rootfs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/proc.h"
#include "base/str.h"
#include "image/args.h"
#include "image/recipe.h"
#include "image/tree.h"

#define MAX_ARGS 48

struct watch {
	const struct rootfs_spec *spec;
	FILE *log;
	char complaint[300]; /* first line that tells of an error */
	bool full, network;
};

static const struct {
	const char *program, *package;
} tools[] = {
	{ "mmdebstrap", "mmdebstrap" }, { "mke2fs", "e2fsprogs" }, { "tar", "tar" },
	{ "depmod", "kmod" },		{ "du", "coreutils" },	   { "unshare", "util-linux" },
	{ "apt-get", "apt" },
};

/*
 * The system's folders come first in PATH: mmdebstrap and its helpers are Debian's and run for
 * every package, so they must not meet another interpreter, nor a PATH without sbin.
 */
static void widen_path(void)
{
	static const char system[] = "/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin";
	const char *path = getenv("PATH");
	_cleanup_buf_ struct buf b = { 0 };

	if (path && strncmp(path, system, sizeof(system) - 1) == 0)
		return;
	if (buf_printf(&b, "%s%s%s", system, path ? ":" : "", path ? path : "") == 0)
		setenv("PATH", b.data, 1);
}

static bool in_path(const char *program)
{
	_cleanup_free_ char *path = strdup(getenv("PATH") ? getenv("PATH") : "");
	char *save = NULL, file[PATH_MAX];

	for (char *d = path ? strtok_r(path, ":", &save) : NULL; d;
	     d = strtok_r(NULL, ":", &save)) {
		path_printf(file, "%s/%s", d, program);
		if (access(file, X_OK) == 0)
			return true;
	}
	return false;
}

int rootfs_check_tools(struct err *e)
{
	widen_path();
	for (size_t i = 0; i < ARRAY_SIZE(tools); i++) {
		if (in_path(tools[i].program))
			continue;
		err_set(e, "program_missing", ENOENT, "%s is not installed", tools[i].program);
		err_fix(e, "Install it: apt-get install %s", tools[i].package);
		return -ENOENT;
	}
	return 0;
}

/* Runs argv where the ids of a root folder mean what they say. */
static int run_inside(const char *const *argv, struct buf *out, struct err *e)
{
	const char *all[MAX_ARGS] = { "mmdebstrap", "--unshare-helper" };
	size_t n = geteuid() == 0 ? 0 : 2;

	for (size_t i = 0; argv[i] && n < MAX_ARGS - 1; i++)
		all[n++] = argv[i];
	all[n] = NULL;
	return proc_run(&(struct proc_spec){ .argv = all, .out = out }, e);
}

static bool has_any(const char *line, const char *const *words)
{
	for (; *words; words++)
		if (strstr(line, *words))
			return true;
	return false;
}

static void on_line(void *ctx, const char *line)
{
	static const char *const full[] = { "No space left on device", NULL };
	static const char *const network[] = { "Could not resolve", "Could not connect",
					       "Unable to connect", "Connection failed",
					       "Failed to fetch",   "does not have a Release file",
					       "Temporary failure", NULL };
	struct watch *w = ctx;

	if (w->log)
		fprintf(w->log, "%s\n", line);
	w->full |= has_any(line, full);
	w->network |= has_any(line, network);
	if (!w->complaint[0] && (strncmp(line, "E: ", 3) == 0 || strncmp(line, "Err:", 4) == 0))
		snprintf(w->complaint, sizeof(w->complaint), "%s", line);
	if (strncmp(line, "I: ", 3) == 0 && !strstr(line, "-hook ") && !strstr(line, "signal"))
		w->spec->on_step(w->spec->ctx, line + 3);
}

/* Replaces proc_run()'s words with what the tool complained about. */
static int explain(const struct watch *w, struct err *e)
{
	const char *what = w->complaint[0] ? w->complaint : e->msg;
	char msg[sizeof(w->complaint)];

	if (strcmp(e->code, "program_missing") == 0)
		return -ENOENT;
	snprintf(msg, sizeof(msg), "%.290s", what);
	if (w->full) {
		err_set(e, "disk_full", ENOSPC, "the disk is full: %s", msg);
		err_fix(e, "Free space, or choose a folder on another disk, and build again.");
	} else if (w->network) {
		err_set(e, "mirror_unreachable", EIO, "packages could not be fetched: %s", msg);
		err_fix(e, "Check the network and the host's apt sources, or give --mirror URL.");
	} else {
		err_set(e, "rootfs_failed", EIO, "mmdebstrap failed: %s", msg);
		err_fix(e, "All of its output is in %.200s.", w->spec->log_path);
	}
	return -e->errnum;
}

static int join(const json_t *array, struct buf *out)
{
	const json_t *v;
	size_t i;

	json_array_foreach (array, i, v)
		if (buf_printf(out, "%s%s", i ? "," : "", json_string_value(v)) < 0)
			return -ENOMEM;
	return 0;
}

static void fill_args(struct args *a, const struct rootfs_spec *s, const char *include)
{
	const json_t *hook;
	size_t i;

	/* It runs in a process group of its own, so a Ctrl-C reaches only us: it must end with us.
	 */
	args_pair(a, "setpriv", "--pdeathsig");
	args_pair(a, "TERM", "--");
	/* mmdebstrap mounts /proc, /sys and more inside the root. In a mount namespace of its own
	 * nothing of that is left on the host if it is killed. */
	if (geteuid() == 0) {
		args_pair(a, "unshare", "--mount");
		args_add(a, "--");
	}
	args_add(a, "mmdebstrap");
	args_add(a, geteuid() == 0 ? "--mode=root" : "--mode=unshare");
	args_add(a, "--variant=minbase");
	args_add(a, "--format=directory");
	args_add(a, include);
	/* Kept in the guest: packages installed there should be as lean. */
	args_add(a, "--aptopt=Acquire::Languages \"none\"");
	args_add(a, "--aptopt=Acquire::Retries \"3\"");
	args_add(a, "--aptopt=APT::Install-Recommends \"false\"");
	args_add(a, "--dpkgopt=force-unsafe-io");
	args_add(a, "--dpkgopt=path-exclude=/usr/share/man/*");
	args_add(a, "--dpkgopt=path-exclude=/usr/share/info/*");
	args_add(a, "--dpkgopt=path-exclude=/usr/share/locale/*");
	args_add(a, "--dpkgopt=path-include=/usr/share/locale/locale.alias");
	if (s->overlay)
		args_printf(a, "--customize-hook=tar-in \"%s\" /", s->overlay);
	json_array_foreach (s->recipe->hooks, i, hook) {
		args_printf(a, "--customize-hook=%s/hooks/%s", s->recipe->dir,
			    json_string_value(hook));
	}
	args_add(a, s->recipe->release);
	args_add(a, s->root);
	args_add(a, s->sources);
}

int rootfs_make(const struct rootfs_spec *s, struct err *e)
{
	_cleanup_fclose_ FILE *log = fopen(s->log_path, "ae");
	_cleanup_buf_ struct buf include = { 0 };
	struct watch w = { .spec = s, .log = log };
	_cleanup_args_ struct args a = { 0 };
	struct err local;
	int ret;

	if (!e)
		e = &local;
	ret = rootfs_check_tools(e);
	if (ret < 0)
		return ret;
	if (buf_str(&include, "--include=") < 0 || join(s->recipe->packages, &include) < 0)
		return err_errno(e, ENOMEM, "make the root folder");
	/* Hooks hear by their environment which kernel to follow. */
	if (s->recipe->kernel_package)
		setenv("CLOCHE_KERNEL", s->recipe->kernel_package, 1);
	fill_args(&a, s, include.data);
	if (a.failed)
		return err_errno(e, ENOMEM, "make the root folder");
	ret = proc_run(&(struct proc_spec){ .argv = a.argv, .on_line = on_line, .ctx = &w }, e);
	if (ret < 0)
		ret = explain(&w, e);
	return ret;
}

int rootfs_remove(const char *root, const char *const *names, struct err *e)
{
	for (; *names; names++) {
		char path[PATH_MAX];
		const char *argv[] = { "rm", "-rf", "--one-file-system", path, NULL };
		int ret;

		path_printf(path, "%s/%s", root, *names);
		ret = run_inside(argv, NULL, e);
		if (ret < 0)
			return ret;
	}
	return 0;
}

/* Room for the content, ext4's own tables and its journal, and the slack asked for; whole MiB. */
static int disk_size_mib(const char *root, uint32_t slack_mib, int64_t *mib, struct err *e)
{
	const char *argv[] = { "du", "-s", "-x", "--block-size=1K", root, NULL };
	_cleanup_buf_ struct buf out = { 0 };
	int64_t kib;
	int ret = run_inside(argv, &out, e);

	if (ret < 0)
		return ret;
	if (out.len)
		out.data[strcspn(out.data, "\t ")] = '\0';
	if (!out.len || str_to_int(out.data, 0, INT64_MAX / 2048, &kib) < 0)
		return err_set(e, "rootfs_failed", EIO, "du gave no size for %s", root);
	*mib = kib * 106 / 100 / 1024 + 40 + slack_mib;
	return 0;
}

int rootfs_to_disk(const char *root, const char *path, const char *label, uint32_t slack_mib,
		   struct err *e)
{
	char size[32];
	const char *argv[] = { "mke2fs",
			       "-q",
			       "-F",
			       "-t",
			       "ext4",
			       "-b",
			       "4096",
			       "-m",
			       "0",
			       "-E",
			       "lazy_itable_init=1,root_owner=0:0",
			       "-L",
			       label,
			       "-d",
			       root,
			       path,
			       size,
			       NULL };
	_cleanup_close_ int fd = -1;
	int64_t mib;
	int ret = disk_size_mib(root, slack_mib, &mib, e);

	if (ret < 0)
		return ret;
	snprintf(size, sizeof(size), "%lldM", (long long)mib);
	/* Writable for the namespace's root; the folder's name cannot be guessed by others. */
	fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0 || (geteuid() != 0 && fchmod(fd, 0666) < 0))
		return err_errno(e, errno, "create %s", path);
	ret = run_inside(argv, NULL, e);
	if (ret == 0 && fchmod(fd, 0644) < 0)
		ret = err_errno(e, errno, "chmod %s", path);
	return ret;
}

int rootfs_move_disk(const char *from, const char *to, struct err *e)
{
	if (rename(from, to) == 0)
		return 0;
	return errno == EXDEV ? tree_copy_file(from, to, e) : err_errno(e, errno, "move %s", from);
}

int rootfs_check_space(const char *dir, uint32_t need_mib, struct err *e)
{
	struct statvfs v;
	uint64_t have;

	if (statvfs(dir, &v) < 0)
		return err_errno(e, errno, "statvfs %s", dir);
	have = (uint64_t)v.f_bavail * v.f_frsize >> 20;
	if (have >= need_mib)
		return 0;
	err_set(e, "disk_full", ENOSPC, "%s has %llu MiB free, the build needs %u", dir,
		(unsigned long long)have, need_mib);
	err_fix(e, "Free space, or choose a folder on another disk.");
	return -ENOSPC;
}

int rootfs_find_kernel(const char *root, char *release, size_t room, struct err *e)
{
	_cleanup_closedir_ DIR *d = NULL;
	char path[PATH_MAX];

	path_printf(path, "%s/boot", root);
	d = opendir(path);
	for (struct dirent *f; d && (f = readdir(d));)
		if (strncmp(f->d_name, "vmlinuz-", 8) == 0 && strlen(f->d_name + 8) < room) {
			snprintf(release, room, "%s", f->d_name + 8);
			return 0;
		}
	return err_set(e, "no_kernel", ENOENT, "the kernel package left no vmlinuz in boot");
}
