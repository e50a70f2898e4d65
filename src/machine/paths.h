/*
 * Where Cloche keeps things on a host: /var/lib/cloche for root, ~/.local/share/cloche for others
 * (XDG_DATA_HOME is honoured), or $CLOCHE_HOME.
 */
#ifndef CLOCHE_MACHINE_PATHS_H
#define CLOCHE_MACHINE_PATHS_H

#include <limits.h>

struct err;

struct cloche_paths {
	char home[PATH_MAX];
	char images[PATH_MAX];	/* what `image build` makes and daemons import from */
	char machine[PATH_MAX]; /* machine mode's state */
};

int paths_get(struct cloche_paths *p, struct err *e);

/*
 * Finds an installed or built program or file of ours by its plain name ("cloched",
 * "agent.cpio"): in $CLOCHE_LIBEXEC, beside this program as installed, or in the build folder that
 * this program lies in. "not_installed" when it is nowhere.
 */
int paths_find(const char *name, char out[PATH_MAX], struct err *e);

#endif
