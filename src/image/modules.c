/*
 * modules.dep has a line for every module: "path: path path…", all dependencies, transitive ones
 * included, the deepest last. So one line read from its end is a load order, and the order for
 * several modules is the concatenation with repeats left out. Names are compared as file names
 * without ".ko" and any ".xz", ".zst" or ".gz", with '-' read as '_'.
 */
#include "image/modules.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/proc.h"
#include "image/cpio.h"
#include "image/tree.h"

#define MODULE_MAX (64UL << 20)
#define TABLE_MAX (8UL << 20)

/* Whether the module at path (len bytes) is called name. */
static bool path_is(const char *path, size_t len, const char *name)
{
	const char *base = memrchr(path, '/', len);
	size_t n = strlen(name);

	base = base ? base + 1 : path;
	len -= (size_t)(base - path);
	if (len < n + 3 || memcmp(base + n, ".ko", 3) != 0)
		return false;
	for (size_t i = 0; i < n; i++) {
		char a = base[i] == '-' ? '_' : base[i];
		char b = name[i] == '-' ? '_' : name[i];

		if (a != b)
			return false;
	}
	return true;
}

/* The line of text whose first word (ended by end) is the path of module name, or NULL. */
static const char *find_line(const char *text, const char *name, char end)
{
	for (const char *p = text; *p;) {
		size_t line = strcspn(p, "\n");
		const char *stop = memchr(p, end, line);

		if (path_is(p, stop ? (size_t)(stop - p) : line, name))
			return p;
		p += line;
		p += *p == '\n';
	}
	return NULL;
}

static bool has_line(const struct buf *order, const char *path, size_t len)
{
	const char *p = order->len ? order->data : "";

	while (*p) {
		size_t line = strcspn(p, "\n");

		if (line == len && memcmp(p, path, len) == 0)
			return true;
		p += line + 1;
	}
	return false;
}

static int add_path(struct buf *order, const char *path, size_t len)
{
	if (len == 0 || has_line(order, path, len))
		return 0;
	if (buf_add(order, path, len) < 0)
		return -ENOMEM;
	return buf_add(order, "\n", 1);
}

/* Adds the words of "path: dep dep…" from the last to the first. */
static int add_reversed(struct buf *order, const char *line)
{
	const char *end = line + strcspn(line, "\n");
	int ret = 0;

	while (end > line && ret == 0) {
		const char *start = end;

		while (start > line && start[-1] != ' ')
			start--;
		ret = add_path(order, start,
			       (size_t)(end - start) - (end > start && end[-1] == ':'));
		end = start;
		while (end > line && end[-1] == ' ')
			end--;
	}
	return ret;
}

int modules_order(const char *dep, const char *builtin, const char *const *want, size_t n,
		  struct buf *order, struct err *e)
{
	for (size_t i = 0; i < n; i++) {
		bool optional = want[i][0] == '?';
		const char *name = want[i] + optional;
		const char *line = find_line(dep, name, ':');

		if (line && add_reversed(order, line) < 0)
			return err_errno(e, ENOMEM, "order the modules");
		if (!line && !optional && !find_line(builtin, name, '\n'))
			return err_set(e, "no_module", ENOENT,
				       "the kernel has no module %s, neither loadable nor built in",
				       name);
	}
	return 0;
}

/* Reads a module, unpacking what distributions pack. */
static int read_module(const char *path, struct buf *out, struct err *e)
{
	static const char *const tools[][2] = { { ".xz", "xz" },
						{ ".zst", "zstd" },
						{ ".gz", "gzip" } };
	const char *dot = strrchr(path, '.');

	for (size_t i = 0; dot && i < ARRAY_SIZE(tools); i++) {
		const char *argv[] = { tools[i][1], "-dcq", path, NULL };
		struct proc_spec s = { .argv = argv, .out = out, .out_max = MODULE_MAX };

		if (strcmp(dot, tools[i][0]) == 0)
			return proc_run(&s, e);
	}
	return fd_read_file(path, out, MODULE_MAX, e);
}

/* Adds the folders of path that the archive does not have yet. */
static int add_parents(struct buf *cpio, struct buf *seen, const char *path)
{
	char dir[PATH_MAX];

	for (const char *p = strchr(path, '/'); p; p = strchr(p + 1, '/')) {
		size_t len = (size_t)(p - path);
		int ret;

		if (len >= sizeof(dir) || has_line(seen, path, len))
			continue;
		memcpy(dir, path, len);
		dir[len] = '\0';
		ret = cpio_add_dir(cpio, dir);
		if (ret < 0 || (ret = add_path(seen, path, len)) < 0)
			return ret;
	}
	return 0;
}

static int pack_one(const char *dir, const char *release, const char *rel, struct buf *cpio,
		    struct buf *seen, struct buf *list, struct err *e)
{
	_cleanup_buf_ struct buf ko = { 0 };
	char from[PATH_MAX], to[PATH_MAX];
	const char *ext = strstr(rel, ".ko");
	int ret;

	path_printf(from, "%s/%s", dir, rel);
	path_printf(to, "lib/modules/%s/%.*s.ko", release,
		    ext ? (int)(ext - rel) : (int)strlen(rel), rel);
	ret = read_module(from, &ko, e);
	if (ret < 0)
		return ret;
	ret = add_parents(cpio, seen, to);
	if (ret == 0)
		ret = cpio_add_file(cpio, to, 0644, ko.data, ko.len);
	if (ret == 0)
		ret = buf_printf(list, "%s\n", to);
	return ret < 0 ? err_errno(e, -ret, "pack %s", rel) : 0;
}

static int read_table(const char *dir, const char *name, struct buf *out, struct err *e)
{
	char path[PATH_MAX];

	path_printf(path, "%s/%s", dir, name);
	return fd_read_file(path, out, TABLE_MAX, e);
}

int modules_pack(const char *dir, const char *release, const char *const *want, size_t n,
		 struct buf *cpio, struct err *e)
{
	_cleanup_buf_ struct buf dep = { 0 }, builtin = { 0 }, order = { 0 }, seen = { 0 };
	_cleanup_buf_ struct buf list = { 0 };
	_cleanup_free_ char *lines = NULL;
	int ret;

	ret = read_table(dir, "modules.dep", &dep, e);
	if (ret == 0)
		ret = read_table(dir, "modules.builtin", &builtin, e);
	if (ret == 0)
		ret = modules_order(dep.len ? dep.data : "", builtin.len ? builtin.data : "", want,
				    n, &order, e);
	if (ret < 0)
		return ret;
	lines = buf_steal(&order);
	if (!lines)
		return err_errno(e, ENOMEM, "order the modules");
	for (char *p = lines; *p; p += strlen(p) + 1) {
		p[strcspn(p, "\n")] = '\0'; /* every line has one */
		ret = pack_one(dir, release, p, cpio, &seen, &list, e);
		if (ret < 0)
			return ret;
	}
	ret = cpio_add_file(cpio, "modules.order", 0644, list.data, list.len);
	if (ret == 0)
		ret = cpio_end(cpio);
	return ret < 0 ? err_errno(e, -ret, "make the initramfs") : 0;
}
