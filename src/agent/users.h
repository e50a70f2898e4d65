/* Users and groups of the guest, read from its /etc/passwd and /etc/group each time. */
#ifndef CLOCHE_AGENT_USERS_H
#define CLOCHE_AGENT_USERS_H

#include <sys/types.h>

struct err;

#define USER_GROUPS_MAX 64

struct user {
	uid_t uid;
	gid_t gid;
	gid_t groups[USER_GROUPS_MAX];
	size_t n_groups;
	char *name, *home, *shell;
};

/*
 * Finds a user by name or decimal uid; NULL means "agent", or "root" where there is no agent. A
 * uid without an entry, and root in a guest without a passwd file, are made up. Release with
 * user_free(). Fails with user_not_found.
 */
int user_find(const char *name, struct user *u, struct err *e);
void user_free(struct user *u);

/* Makes the calling process that user for good: groups, gid, uid. 0 or negative errno. */
int user_become(const struct user *u);

/* The name of a uid or gid: from the files, or its number. */
void user_name(uid_t uid, char *out, size_t n);
void group_name(gid_t gid, char *out, size_t n);

#endif
