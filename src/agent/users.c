/* fgetpwent() and fgetgrent() only: a static program has no name service switch. */
#include "agent/users.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/str.h"

#define PASSWD "/etc/passwd"
#define GROUP "/etc/group"

static struct passwd *passwd_find(FILE *f, const char *name, int64_t uid)
{
	struct passwd *pw;

	while ((pw = fgetpwent(f)))
		if (name ? strcmp(pw->pw_name, name) == 0 : (int64_t)pw->pw_uid == uid)
			return pw;
	return NULL;
}

static void add_groups(struct user *u)
{
	_cleanup_fclose_ FILE *f = fopen(GROUP, "re");
	struct group *g;

	u->groups[u->n_groups++] = u->gid;
	while (f && (g = fgetgrent(f)))
		for (char **m = g->gr_mem; *m; m++)
			if (strcmp(*m, u->name) == 0 && g->gr_gid != u->gid &&
			    u->n_groups < USER_GROUPS_MAX)
				u->groups[u->n_groups++] = g->gr_gid;
}

static int fill(struct user *u, uid_t uid, gid_t gid, const char *name, const char *home,
		const char *shell, struct err *e)
{
	*u = (struct user){ .uid = uid,
			    .gid = gid,
			    .name = strdup(name),
			    .home = strdup(*home ? home : "/"),
			    .shell = strdup(*shell ? shell : "/bin/sh") };
	if (!u->name || !u->home || !u->shell) {
		user_free(u);
		return err_set(e, "out_of_memory", ENOMEM, "look up user %s", name);
	}
	add_groups(u);
	return 0;
}

int user_find(const char *name, struct user *u, struct err *e)
{
	_cleanup_fclose_ FILE *f = fopen(PASSWD, "re");
	const char *want = name ? name : "agent";
	struct passwd *pw = NULL;
	int64_t uid = -1;

	if (f)
		pw = passwd_find(f, want, 0);
	if (!pw && f && str_to_int(want, 0, UINT32_MAX - 1, &uid) == 0) {
		rewind(f);
		pw = passwd_find(f, NULL, uid);
	}
	if (!pw && f && !name) {
		want = "root";
		rewind(f);
		pw = passwd_find(f, want, 0);
	}
	if (pw)
		return fill(u, pw->pw_uid, pw->pw_gid, pw->pw_name, pw->pw_dir, pw->pw_shell, e);
	if (uid >= 0)
		return fill(u, (uid_t)uid, (gid_t)uid, want, "/", "/bin/sh", e);
	if (!name || strcmp(name, "root") == 0)
		return fill(u, 0, 0, "root", "/root", "/bin/sh", e);
	err_set(e, "user_not_found", ENOENT, "there is no user \"%.64s\" in the sandbox", name);
	err_fix(e, "Use a name from the sandbox's /etc/passwd, for example root.");
	return -ENOENT;
}

void user_free(struct user *u)
{
	free(u->name);
	free(u->home);
	free(u->shell);
	*u = (struct user){ 0 };
}

int user_become(const struct user *u)
{
	if (setgroups(u->n_groups, u->groups) < 0 || setresgid(u->gid, u->gid, u->gid) < 0 ||
	    setresuid(u->uid, u->uid, u->uid) < 0)
		return -errno;
	return 0;
}

void user_name(uid_t uid, char *out, size_t n)
{
	_cleanup_fclose_ FILE *f = fopen(PASSWD, "re");
	struct passwd *pw = f ? passwd_find(f, NULL, uid) : NULL;

	if (pw)
		snprintf(out, n, "%s", pw->pw_name);
	else
		snprintf(out, n, "%u", uid);
}

void group_name(gid_t gid, char *out, size_t n)
{
	_cleanup_fclose_ FILE *f = fopen(GROUP, "re");
	struct group *g;

	while (f && (g = fgetgrent(f)))
		if (g->gr_gid == gid) {
			snprintf(out, n, "%s", g->gr_name);
			return;
		}
	snprintf(out, n, "%u", gid);
}
