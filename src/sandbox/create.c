/*
 * Creating and starting. A create writes its row as "creating" first, so that a daemon that dies
 * half-way finds what to roll back; only a guest whose agent has answered makes it "running".
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "sandbox/disk.h"
#include "sandbox/images.h"
#include "sandbox/manager.h"

/* ---- what was asked for ---- */

static int in_range(const char *field, int64_t v, int64_t min, int64_t max, struct err *e)
{
	if (v >= min && v <= max)
		return 0;
	return err_set(e, "value_out_of_range", EINVAL, "%s is %lld; must be %lld to %lld", field,
		       (long long)v, (long long)min, (long long)max);
}

static void fill_defaults(const struct sandbox_manager *m, struct store_sandbox *row)
{
	if (!row->image[0])
		snprintf(row->image, sizeof(row->image), "%s", SANDBOX_IMAGE_DEFAULT);
	if (!row->vcpus)
		row->vcpus = m->config.default_vcpus;
	if (!row->memory_mib)
		row->memory_mib = m->config.default_memory_mib;
}

static int check(const struct sandbox_manager *m, struct store_sandbox *row,
		 const struct image *image, struct err *e)
{
	int64_t least = (int64_t)((image->manifest.files[MANIFEST_DISK].bytes + 1048575) >> 20);
	int r;

	if (!row->disk_mib)
		row->disk_mib =
			least > m->config.default_disk_mib ? least : m->config.default_disk_mib;
	if (row->on_lease_end == LEASE_END_PAUSE) {
		r = err_set(
			e, "not_available", ENOSYS,
			"onLeaseEnd \"pause\" needs memory snapshots, which this version lacks");
		err_fix(e, "Use \"stop\", which keeps the disk, or \"delete\".");
		return r;
	}
	r = in_range("vcpus", row->vcpus, 1, SANDBOX_VCPUS_MAX, e);
	if (r == 0)
		r = in_range("memoryMiB", row->memory_mib, SANDBOX_MEMORY_MIN_MIB,
			     SANDBOX_MEMORY_MAX_MIB, e);
	return r < 0 ? r : in_range("diskMiB", row->disk_mib, least, SANDBOX_DISK_MAX_MIB, e);
}

static int copy_text(char **p, struct err *e)
{
	if (!*p)
		return 0;
	*p = strdup(*p);
	return *p ? 0 : err_errno(e, ENOMEM, "sandbox");
}

/* A row of its own memory from what the caller filled in. */
static int copy_row(const struct sandbox_manager *m, const struct store_sandbox *asked,
		    struct store_sandbox *out, struct err *e)
{
	struct store_sandbox row = *asked;
	char **texts[] = { &row.env_json, &row.network_json, &row.metadata_json,
			   &row.secrets_json };
	int r = 0;

	if (!row.id[0])
		id_new("sbx", row.id);
	snprintf(row.host, sizeof(row.host), "%s", m->config.host);
	row.state = SANDBOX_CREATING;
	row.created_ms = clock_wall_ms();
	row.started_ms = row.lease_ends_ms = 0;
	row.stop_reason[0] = row.last_snapshot[0] = row.parent[0] = '\0';
	row.last_snapshot_ms = 0;
	row.last_snapshot_quiesced = false;
	row.generation = 1;
	row.vmm_pid = 0;
	row.vmm_start = 0;
	row.uid_slot = -1; /* the broker gives user ids */
	for (size_t i = 0; i < ARRAY_SIZE(texts); i++)
		if (r == 0)
			r = copy_text(texts[i], e);
		else
			*texts[i] = NULL;
	if (r < 0)
		store_sandbox_free(&row);
	else
		*out = row;
	return r;
}

/* ---- its disk ---- */

static int make_disk(struct sandbox_manager *m, const struct sandbox *s, const struct image *image,
		     struct err *e)
{
	char dir[PATH_MAX], disk[PATH_MAX];
	uint64_t takes;
	int r = disk_allocated(image->fds[MANIFEST_DISK], &takes, e);

	if (r == 0)
		r = admit_disk(m, takes, e);
	if (r == 0)
		r = manager_path(m, s->row.id, NULL, dir, sizeof(dir), e);
	if (r == 0)
		r = manager_path(m, s->row.id, "disk.raw", disk, sizeof(disk), e);
	if (r < 0)
		return r;
	if (mkdir(dir, 0700) < 0)
		return err_errno(e, errno, "make folder %s", dir);
	return disk_copy(image->fds[MANIFEST_DISK], disk, (uint64_t)s->row.disk_mib << 20, e);
}

/* ---- running ---- */

static int go_running(struct sandbox_manager *m, struct sandbox *s, int wait_fd, const char *actor,
		      struct err *e)
{
	struct store_sandbox next = s->row;
	int r;

	next.state = SANDBOX_RUNNING;
	next.started_ms = clock_wall_ms();
	next.lease_ends_ms = lease_end_from_now(next.timeout_s);
	next.stop_reason[0] = '\0';
	pthread_mutex_lock(&m->lock);
	s->live = true;
	s->lease_warned = false;
	pthread_mutex_unlock(&m->lock);
	r = watch_add(m, s, wait_fd, e);
	if (r == 0)
		r = change_row(m, s, &next, (struct change){ "sandbox.started", actor, NULL },
			       false, e);
	if (r < 0) {
		guest_end(m, s, NULL); /* the watch finds it not live and lets it be */
		return r;
	}
	meter_begin(s);
	s->meter.started_ms = next.started_ms;
	watch_leases(m);
	return 0;
}

static int start(struct sandbox_manager *m, struct sandbox *s, const char *actor, json_t **details,
		 struct err *e)
{
	int wait_fd = -1, r = admit_begin(m, &s->row, e);

	if (r < 0)
		return r;
	r = boot_guest(m, s, &wait_fd, details, e);
	if (r == 0)
		r = go_running(m, s, wait_fd, actor, e);
	admit_done(m, &s->row);
	return r;
}

/* Nothing of it is left but its row. */
static void roll_back(struct sandbox_manager *m, struct sandbox *s, const char *actor,
		      const struct err *why)
{
	char dir[PATH_MAX];
	struct err e;

	if (manager_path(m, s->row.id, NULL, dir, sizeof(dir), &e) < 0 ||
	    disk_remove_dir(dir, &e) < 0)
		log_err(LOG_ERROR, &e, "roll back a create");
	change_state(
		m, s, SANDBOX_DELETED, "create_failed",
		(struct change){ "sandbox.create_failed", actor,
				 json_pack("{s:s,s:s}", "code", why->code, "message", why->msg) },
		true, &e);
	manager_remove(m, s);
}

static int insert(struct sandbox_manager *m, struct store_sandbox *row, const char *actor,
		  struct err *e)
{
	struct store_event ev = { .type = "sandbox.created" };

	snprintf(ev.actor, sizeof(ev.actor), "%s", actor);
	memcpy(ev.sandbox, row->id, ID_LEN);
	return store_sandbox_insert(m->config.store, row, &ev, e);
}

static int create(struct sandbox_manager *m, const struct store_sandbox *row,
		  const struct image *image, const char *actor, char id[ID_LEN], json_t **details,
		  struct err *e)
{
	struct store_sandbox copy = { 0 };
	struct sandbox *s;
	int r = copy_row(m, row, &copy, e);

	if (r == 0)
		r = insert(m, &copy, actor, e);
	s = r < 0 ? NULL : manager_add(m, &copy, e);
	if (!s) {
		store_sandbox_free(&copy);
		return r < 0 ? r : -ENOMEM;
	}
	memcpy(id, s->row.id, ID_LEN);
	r = make_disk(m, s, image, e);
	if (r == 0)
		r = start(m, s, actor, details, e);
	if (r < 0)
		roll_back(m, s, actor, e);
	manager_unlock(m, s);
	return r < 0 ? r : 0;
}

/* The row as stored, into the caller's, whose texts are released. */
static int read_back(struct sandbox_manager *m, const char *id, struct store_sandbox *row,
		     struct err *e)
{
	struct store_sandbox fresh;
	int r = store_sandbox_get(m->config.store, id, &fresh, e);

	if (r < 0)
		return r;
	store_sandbox_free(row);
	*row = fresh;
	return 0;
}

int sandbox_create(struct sandbox_manager *m, struct store_sandbox *row, const char *actor,
		   json_t **details, struct err *e)
{
	_cleanup_(image_close) struct image image = IMAGE_NONE;
	struct err why = { 0 };
	char id[ID_LEN];
	int r;

	if (details)
		*details = NULL;
	fill_defaults(m, row);
	r = images_open(m->images, row->image, &image, &why);
	if (r == 0)
		r = check(m, row, &image, &why);
	if (r == 0)
		r = create(m, row, &image, actor, id, details, &why);
	if (r == 0)
		r = read_back(m, id, row, &why);
	if (r < 0 && e)
		*e = why;
	return r;
}

int sandbox_start(struct sandbox_manager *m, const char *id, const char *actor, json_t **details,
		  struct err *e)
{
	struct sandbox *s = manager_lock(m, id, e);
	struct err why = { 0 };
	int r = 0;

	if (details)
		*details = NULL;
	if (!s)
		return -ENOENT;
	if (s->row.state == SANDBOX_STOPPED || s->row.state == SANDBOX_FAILED) {
		pthread_mutex_lock(&m->lock);
		s->row.generation++;
		pthread_mutex_unlock(&m->lock);
		r = start(m, s, actor, details, &why);
	} else if (s->row.state != SANDBOX_RUNNING) {
		r = err_set(&why, "sandbox_wrong_state", EBUSY,
			    "%s is %s; only a stopped one starts", id,
			    sandbox_state_name(s->row.state));
	}
	manager_unlock(m, s);
	if (r < 0 && e)
		*e = why;
	return r;
}
