/*
 * A record is written before anything of a VMM exists and once more when its pid is known, so
 * whatever a dying broker leaves has a record that says where to look. A pid alone does not name
 * a process; its start time does, as long as the machine is up, and run_dir dies with the machine.
 */
#include "broker/record.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"

#define RECORD_MAX 4096

static const struct json_field fields[] = {
	{ .name = "pid", .kind = JSON_KIND_INT, .required = true, .min = 0, .max = INT32_MAX },
	{ .name = "start", .kind = JSON_KIND_INT, .required = true, .min = 0, .max = INT64_MAX },
	{ .name = "uid", .kind = JSON_KIND_INT, .required = true, .min = 1, .max = INT32_MAX },
};

int record_write(const char *path, const struct record *r, struct err *e)
{
	char text[128];
	int n = snprintf(text, sizeof(text), "{\"pid\":%d,\"start\":%llu,\"uid\":%u}\n",
			 (int)r->pid, r->start, (unsigned)r->uid);

	return fd_write_file_atomic(path, text, (size_t)n, 0600, e);
}

int record_parse(const char *text, size_t n, struct record *out, struct err *e)
{
	_cleanup_json_ json_t *v = json_parse(text, n, e), *problems = json_array();

	if (!v)
		return -EINVAL;
	if (!problems || json_check(v, fields, ARRAY_SIZE(fields), problems))
		return err_set(e, "system", EINVAL, "the record of a VMM is damaged");
	out->pid = (pid_t)json_get_int(v, "pid", 0);
	out->start = (unsigned long long)json_get_int(v, "start", 0);
	out->uid = (uid_t)json_get_int(v, "uid", 0);
	return 0;
}

int record_read(const char *path, struct record *out, struct err *e)
{
	_cleanup_buf_ struct buf b = { 0 };
	int r = fd_read_file(path, &b, RECORD_MAX, e);

	if (r == 0)
		r = record_parse(b.data ? b.data : "", b.len, out, e);
	return r < 0 ? err_wrap(e, "%s", path) : 0;
}

int record_process_start(pid_t pid, unsigned long long *out)
{
	_cleanup_buf_ struct buf b = { 0 };
	char path[64], *p;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	if (fd_read_file(path, &b, RECORD_MAX, NULL) < 0 || !b.len)
		return -ESRCH;
	/* The name, field 2, may hold anything; the fields behind its last ')' are plain. */
	p = strrchr(b.data, ')');
	for (int field = 2; p && field < 22; field++)
		p = strchr(p + 1, ' ');
	if (!p || sscanf(p, " %llu", out) != 1)
		return -EPROTO;
	return 0;
}
