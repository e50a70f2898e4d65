/*
 * File descriptor helpers. All descriptors made here are O_CLOEXEC. Errors are negative errno.
 */
#ifndef CLOCHE_BASE_FD_H
#define CLOCHE_BASE_FD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct err;
struct buf;

#define FD_PASS_MAX 16 /* most descriptors in one message */

/* Reads until n bytes or end of file; returns the bytes read. Retries EINTR. */
ssize_t fd_read_full(int fd, void *p, size_t n);

/* Writes all n bytes or fails. Retries EINTR; the descriptor must be blocking. */
int fd_write_full(int fd, const void *p, size_t n);

/* Appends the rest of fd to b; -EFBIG when more than max bytes come. */
int fd_read_all(int fd, struct buf *b, size_t max);

/* Reads a whole file, at most max bytes. */
int fd_read_file(const char *path, struct buf *b, size_t max, struct err *e);

/* Writes path atomically: temporary file beside it, fsync, rename, fsync of the folder. */
int fd_write_file_atomic(const char *path, const void *p, size_t n, mode_t mode, struct err *e);

int fd_set_nonblock(int fd, bool on);

/*
 * One message of a SOCK_SEQPACKET (or datagram) unix socket with descriptors. fd_send_msg sends
 * nfds <= FD_PASS_MAX descriptors, which stay the caller's. fd_recv_msg fills at most n bytes and
 * at most *nfds descriptors, sets *nfds to what came and returns the bytes (0: peer closed);
 * a message cut for size, or with more descriptors than asked for, is -EMSGSIZE and every
 * descriptor of it is closed.
 */
int fd_send_msg(int sock, const void *p, size_t n, const int *fds, size_t nfds);
ssize_t fd_recv_msg(int sock, void *p, size_t n, int *fds, size_t *nfds);

/* Descriptors this process has open right now, for leak checks; negative errno on failure. */
int fd_count_open(void);

#endif
