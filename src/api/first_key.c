/*
 * The first key. The file is written before anyone could have used the key; when it cannot be
 * written the key is revoked again, so that the next start makes another.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "api/api.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/log.h"
#include "store/store.h"

int api_first_key(struct store *s, const char *path, bool *made, struct err *e)
{
	char secret[STORE_KEY_LEN], line[STORE_KEY_LEN + 1];
	struct store_key key;
	struct err undo = { 0 };
	int64_t live;
	int r = store_key_count(s, &live, e);

	*made = false;
	if (r || live > 0)
		return r;
	r = store_key_create(s, "first", KEY_ADMIN, &key, secret, e);
	if (r)
		return r;
	snprintf(line, sizeof(line), "%s\n", secret);
	r = fd_write_file_atomic(path, line, strlen(line), 0600, e);
	explicit_bzero(secret, sizeof(secret));
	explicit_bzero(line, sizeof(line));
	if (r && store_key_revoke(s, key.id, &undo))
		log_err(LOG_ERROR, &undo, "revoke a key that could not be written");
	*made = r == 0;
	return r;
}
