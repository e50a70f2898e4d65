/* Reading a file in pieces, with the digest of what was sent at the end. */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/agent.h"
#include "agent/file.h"
#include "base/cleanup.h"
#include "base/json.h"
#include "base/sha256.h"

#define STEP (128u << 10)

/* O_NONBLOCK: opening a fifo must not wait for its writer. It does nothing for a regular file. */
static int open_regular(const char *path, struct err *e)
{
	_cleanup_close_ int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0)
		return agent_errno(e, errno, "read %s", path);
	if (S_ISDIR(st.st_mode))
		return agent_errno(e, EISDIR, "read %s", path);
	if (!S_ISREG(st.st_mode))
		return err_set(e, "not_a_file", EINVAL, "read %s: it is no regular file", path);
	return steal_fd(&fd);
}

static int send_bytes(struct file_io *io, int fd, const char *path, int64_t offset, int64_t length,
		      struct err *e)
{
	_cleanup_free_ uint8_t *piece = malloc(STEP);
	char hex[SHA256_HEX_LEN];
	struct sha256 sha;

	if (!piece)
		return agent_errno(e, ENOMEM, "read %s", path);
	sha256_init(&sha);
	while (length > 0) {
		size_t want = length < (int64_t)STEP ? (size_t)length : STEP;
		ssize_t n = pread(fd, piece, want, offset);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return agent_errno(e, errno, "read %s", path);
		if (n == 0)
			break;
		sha256_add(&sha, piece, (size_t)n);
		file_send(io, FRAME_DATA, piece, (size_t)n);
		offset += n;
		length -= n;
	}
	sha256_end_hex(&sha, hex);
	file_send_json(io, FRAME_DATA_EOF, json_pack("{s:s}", "sha256", hex));
	return 0;
}

int file_read(struct file_io *io, const json_t *request, struct err *e)
{
	const char *path = json_get_str(request, "path", "");
	int64_t offset = json_get_int(request, "offset", 0);
	int64_t length = json_get_int(request, "length", INT64_MAX);
	_cleanup_close_ int fd = open_regular(path, e);
	json_t *st;

	if (fd < 0)
		return fd;
	if (length > INT64_MAX - offset)
		length = INT64_MAX - offset;
	st = file_stat_json(io, fd, "", path, e);
	if (!st)
		return -EIO;
	file_send_json(io, FRAME_REPLY, st);
	return send_bytes(io, fd, path, offset, length, e);
}
