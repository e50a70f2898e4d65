/*
 * File operations. Each runs in a forked helper that has become the user, owns the stream and uses
 * blocking calls: a slow disk stalls only its own operation, and every path is resolved by the
 * kernel with the user's rights, so no check of ours can be raced or fooled by links.
 */
#ifndef CLOCHE_AGENT_FILE_H
#define CLOCHE_AGENT_FILE_H

#include <jansson.h>
#include <stdbool.h>
#include <sys/types.h>

#include "agent/request.h"
#include "base/buf.h"
#include "base/err.h"
#include "proto/frame.h"

struct agent;
struct stream;

/* Forks the helper for a file.* or sync request; answers the error itself when it cannot. */
void file_start(struct agent *a, struct stream *s, enum agent_op op, const json_t *request);

/* ---- inside the helper ---- */

/* The stream, blocking. Send errors end the process: nobody is there to be told. */
struct file_io {
	int fd;
	struct buf in;
	size_t in_at;
	uid_t name_uid; /* user_name() and group_name() of the last entry, for listings */
	gid_t name_gid;
	char user[64], group[64];
};

void file_send(struct file_io *io, enum frame_type type, const void *p, size_t n);
void file_send_json(struct file_io *io, enum frame_type type, json_t *o); /* releases o */
/* The next frame, valid until the next call. Negative at the end of the stream. */
int file_receive(struct file_io *io, struct frame *f);

/* {path, type, size, …} of name in dir (AT_FDCWD and a path do as well), links not followed. path
 * is what it is called. NULL with e. */
json_t *file_stat_json(struct file_io *io, int dir, const char *name, const char *path,
		       struct err *e);

/* The operations. 0, or negative with e, which is then sent. */
int file_read(struct file_io *io, const json_t *request, struct err *e);
int file_write(struct file_io *io, const json_t *request, struct err *e);
int file_list(struct file_io *io, const json_t *request, struct err *e);
int file_stat(struct file_io *io, const json_t *request, struct err *e);
int file_mkdir(struct file_io *io, const json_t *request, struct err *e);
int file_move(struct file_io *io, const json_t *request, struct err *e);
int file_remove(struct file_io *io, const json_t *request, struct err *e);

/* mkdir -p of a path's folders; with `all` of the path itself as well. */
int file_make_parents(const char *path, bool all, mode_t mode, struct err *e);

#endif
