/*
 * Who this machine is. A machine started from a saved one wakes with its parent's clock, name and
 * random state: adopt replaces all three before any command may run.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/random.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "agent/agent.h"
#include "agent/hosts.h"
#include "base/base64.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/log.h"

#define ENTROPY_MIN 32
#define BOOT_ID "/proc/sys/kernel/random/boot_id"

/* Adds the host's bytes to the kernel's pool and makes every CPU's generator start anew from it. */
static int reseed(const struct buf *seed, struct err *e)
{
	_cleanup_close_ int fd = open("/dev/urandom", O_RDWR | O_CLOEXEC);
	size_t size = sizeof(struct rand_pool_info) + seed->len;
	_cleanup_free_ struct rand_pool_info *pool = calloc(1, size);

	if (fd < 0 || !pool)
		return agent_errno(e, fd < 0 ? errno : ENOMEM, "add entropy");
	pool->entropy_count = (int)seed->len * 8;
	pool->buf_size = (int)seed->len;
	memcpy(pool->buf, seed->data, seed->len);
	if (ioctl(fd, RNDADDENTROPY, pool) < 0 || ioctl(fd, RNDRESEEDCRNG) < 0)
		return agent_errno(e, errno, "add entropy");
	return 0;
}

static int set_clock(int64_t wall_ms, struct err *e)
{
	struct timespec t = { .tv_sec = (time_t)(wall_ms / 1000),
			      .tv_nsec = (long)(wall_ms % 1000) * 1000000L };

	if (clock_settime(CLOCK_REALTIME, &t) < 0)
		return agent_errno(e, errno, "set the clock");
	return 0;
}

static int write_generation(const struct agent *a, int64_t generation, struct err *e)
{
	char path[256], text[32];
	int n;

	if (mkdir(a->run_dir, 0755) < 0 && errno != EEXIST)
		return agent_errno(e, errno, "make %s", a->run_dir);
	snprintf(path, sizeof(path), "%s/generation", a->run_dir);
	n = snprintf(text, sizeof(text), "%lld\n", (long long)generation);
	return fd_write_file_atomic(path, text, (size_t)n, 0644, e);
}

static int set_name(const char *name, struct err *e)
{
	if (sethostname(name, strlen(name)) < 0)
		return agent_errno(e, errno, "set the host name");
	hosts_set_name(name);
	return 0;
}

static int check_name(const char *s, struct err *e)
{
	size_t n = strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-");

	if (s[n] || s[0] == '-')
		return err_set(e, "bad_request", EINVAL,
			       "hostname must be letters, digits and '-'");
	return 0;
}

static int check_env(const json_t *env, struct err *e)
{
	const char *key;
	json_t *item;

	json_object_foreach ((json_t *)(uintptr_t)env, key, item)
		if (!*key || strchr(key, '='))
			return err_set(e, "bad_request", EINVAL, "env has a name that is no name");
	return 0;
}

int adopt(struct agent *a, const json_t *request, struct err *e)
{
	const char *name = json_get_str(request, "hostname", ""),
		   *text = json_get_str(request, "entropy", "");
	int64_t generation = json_get_int(request, "generation", 0);
	json_t *env = json_object_get(request, "env");
	_cleanup_buf_ struct buf seed = { 0 };
	int r = check_name(name, e);

	if (r == 0)
		r = check_env(env, e);
	if (r < 0)
		return r;
	if (base64_decode(&seed, text, strlen(text)) < 0 || seed.len < ENTROPY_MIN)
		return err_set(e, "bad_request", EINVAL,
			       "entropy must be base64 of %d bytes or more", ENTROPY_MIN);
	if (a->machine)
		r = set_clock(json_get_int(request, "wallMs", 0), e);
	if (r < 0 || (a->adopted && a->generation == generation))
		return r;
	r = reseed(&seed, e);
	explicit_bzero(seed.data, seed.len);
	if (r == 0 && a->machine)
		r = set_name(name, e);
	if (r == 0)
		r = write_generation(a, generation, e);
	if (r < 0)
		return r;
	json_decref(a->env);
	a->env = json_is_object(env) ? json_incref(env) : NULL;
	a->generation = generation;
	a->adopted = true;
	return 0;
}

json_t *hello(struct agent *a)
{
	_cleanup_buf_ struct buf id = { 0 };
	struct timespec up = { 0 };
	struct utsname u = { 0 };

	uname(&u);
	clock_gettime(CLOCK_BOOTTIME, &up);
	if (fd_read_file(BOOT_ID, &id, 64, NULL) == 0 && id.len && id.data[id.len - 1] == '\n')
		id.data[id.len - 1] = '\0';
	return json_pack("{s:s,s:s,s:s,s:I,s:b,s:I,s:i}", "version", CLOCHE_VERSION, "kernel",
			 u.release, "bootId", id.data ? id.data : "", "uptimeMs",
			 (json_int_t)up.tv_sec * 1000 + up.tv_nsec / 1000000, "adopted", a->adopted,
			 "generation", (json_int_t)a->generation, "processes", (int)a->n_running);
}
