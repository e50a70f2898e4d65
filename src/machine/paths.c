/* Lookup tables over the place of /proc/self/exe. */
#include "machine/paths.h"

#include <errno.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "image/tree.h"

int paths_get(struct cloche_paths *p, struct err *e)
{
	const char *fixed = getenv("CLOCHE_HOME"), *xdg = getenv("XDG_DATA_HOME");
	const struct passwd *pw;

	if (fixed && *fixed == '/') {
		path_printf(p->home, "%s", fixed);
	} else if (geteuid() == 0) {
		path_printf(p->home, "/var/lib/cloche");
	} else if (xdg && *xdg == '/') {
		path_printf(p->home, "%s/cloche", xdg);
	} else {
		const char *home = getenv("HOME");

		pw = home && *home == '/' ? NULL : getpwuid(geteuid());
		path_printf(p->home, "%s/.local/share/cloche", pw ? pw->pw_dir : home ? home : "");
	}
	path_printf(p->images, "%s/import", p->home);
	path_printf(p->machine, "%s/machine", p->home);
	if (p->home[0] != '/' || !p->machine[0])
		return err_set(e, "no_home", ENOENT, "there is no home folder to keep state in");
	return 0;
}

/* Relative to the folder of the running program. */
static const char *const installed[] = { ".", "../libexec/cloche", "../sbin", "../lib/cloche" };

/* In a build folder programs lie in the folder of their sources. */
static const struct {
	const char *name, *place;
} built[] = {
	{ "cloche", "cli" },	     { "cloched", "cloched" },	{ "cloche-vmm", "vmm" },
	{ "cloche-agent", "agent" }, { "agent.cpio", "agent" }, { "cloche-egress", "egress" },
};

static int try_path(const char *path, char out[PATH_MAX])
{
	return access(path, R_OK) == 0 && realpath(path, out) ? 0 : -ENOENT;
}

int paths_find(const char *name, char out[PATH_MAX], struct err *e)
{
	const char *env = getenv("CLOCHE_LIBEXEC");
	char dir[PATH_MAX], path[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", dir, sizeof(dir) - 1);

	dir[n > 0 ? n : 0] = '\0';
	if (strrchr(dir, '/'))
		*strrchr(dir, '/') = '\0';
	path_printf(path, "%s/%s", env ? env : "", name);
	if (env && try_path(path, out) == 0)
		return 0;
	for (size_t i = 0; i < ARRAY_SIZE(built); i++) {
		path_printf(path, "%s/../%s/%s", dir, built[i].place, name);
		if (strcmp(built[i].name, name) == 0 && try_path(path, out) == 0)
			return 0;
	}
	for (size_t i = 0; i < ARRAY_SIZE(installed); i++) {
		path_printf(path, "%s/%s/%s", dir, installed[i], name);
		if (try_path(path, out) == 0)
			return 0;
	}
	err_set(e, "not_installed", ENOENT, "%s was not found beside this program", name);
	err_fix(e, "Run `make install`, or set CLOCHE_LIBEXEC to the folder that holds it.");
	return -ENOENT;
}
