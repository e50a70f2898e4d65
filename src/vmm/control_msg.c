/* A table of verbs, each with the fields it takes; everything else is refused by name. */
#include "vmm/control_msg.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"

#define PORT_MAX 0xfffffffeLL /* the last one means "any" */
#define CID_MIN 3
#define SERIAL_BYTES_MIN 256
#define SERIAL_BYTES_MAX (16 << 20)
#define TIMEOUT_MS_DEFAULT 10000
#define TIMEOUT_MS_MAX 600000
#define VERB_FIELD                                                 \
	{                                                          \
		"verb", JSON_KIND_STRING, true, false, 1, 32, NULL \
	}
#define ID_FIELD                                                             \
	{                                                                    \
		"id", JSON_KIND_INT, false, true, INT64_MIN, INT64_MAX, NULL \
	}

static const struct json_field plain_fields[] = { VERB_FIELD, ID_FIELD };

static const struct json_field configure_fields[] = {
	VERB_FIELD,
	ID_FIELD,
	{ "vcpus", JSON_KIND_INT, true, false, 1, VMM_VCPUS_MAX, NULL },
	{ "memoryMiB", JSON_KIND_INT, true, false, VMM_MEMORY_MIN_MIB, VMM_MEMORY_MAX_MIB, NULL },
	{ "cmdline", JSON_KIND_STRING, true, false, 0, MACHINE_CMDLINE_MAX, NULL },
	{ "cid", JSON_KIND_INT, true, false, CID_MIN, PORT_MAX, NULL },
	{ "disks", JSON_KIND_ARRAY, true, false, 0, INT64_MAX, NULL },
	{ "initrds", JSON_KIND_INT, true, false, 0, VMM_INITRDS_MAX, NULL },
	{ "serialBytes", JSON_KIND_INT, false, true, SERIAL_BYTES_MIN, SERIAL_BYTES_MAX, NULL },
};

static const struct json_field disk_fields[] = {
	{ "readOnly", JSON_KIND_BOOL, true, false, 0, 0, NULL },
};

static const struct json_field connect_fields[] = {
	VERB_FIELD,
	ID_FIELD,
	{ "port", JSON_KIND_INT, true, false, 1, PORT_MAX, NULL },
	{ "timeoutMs", JSON_KIND_INT, false, true, 1, TIMEOUT_MS_MAX, NULL },
};

static int parse_configure(const json_t *obj, struct control_request *out, struct err *e);
static int parse_connect(const json_t *obj, struct control_request *out, struct err *e);

static const struct {
	const char *name;
	const struct json_field *fields;
	size_t nfields;
	int (*parse)(const json_t *obj, struct control_request *out, struct err *e);
} verbs[] = {
	[CONTROL_CONFIGURE] = { "configure", configure_fields, ARRAY_SIZE(configure_fields),
				parse_configure },
	[CONTROL_START] = { "start", plain_fields, ARRAY_SIZE(plain_fields), NULL },
	[CONTROL_CONNECT] = { "connect", connect_fields, ARRAY_SIZE(connect_fields),
			      parse_connect },
	[CONTROL_SERIAL] = { "serial", plain_fields, ARRAY_SIZE(plain_fields), NULL },
	[CONTROL_STATS] = { "stats", plain_fields, ARRAY_SIZE(plain_fields), NULL },
	[CONTROL_WAIT] = { "wait", plain_fields, ARRAY_SIZE(plain_fields), NULL },
	[CONTROL_STOP] = { "stop", plain_fields, ARRAY_SIZE(plain_fields), NULL },
};

static int check_fields(const json_t *obj, const struct json_field *fields, size_t n, struct err *e)
{
	_cleanup_json_ json_t *problems = json_array();
	const json_t *first;

	if (!problems)
		return err_errno(e, ENOMEM, "check a request");
	if (json_check(obj, fields, n, problems) == 0)
		return 0;
	first = json_array_get(problems, 0);
	return err_set(e, "bad_request", EINVAL, "%s: %s", json_get_str(first, "field", "request"),
		       json_get_str(first, "problem", "not valid"));
}

static int parse_configure(const json_t *obj, struct control_request *out, struct err *e)
{
	const json_t *disks = json_object_get(obj, "disks");
	struct machine_config *c = &out->config;
	size_t i;
	json_t *disk;

	if (json_array_size(disks) > VMM_DISKS_MAX)
		return err_set(e, "too_many_disks", E2BIG, "%zu disks, at most %d",
			       json_array_size(disks), VMM_DISKS_MAX);
	c->vcpus = (unsigned)json_get_int(obj, "vcpus", 0);
	c->memory_mib = (unsigned)json_get_int(obj, "memoryMiB", 0);
	c->cid = (uint32_t)json_get_int(obj, "cid", 0);
	c->initrds = (unsigned)json_get_int(obj, "initrds", 0);
	c->serial_bytes = (uint32_t)json_get_int(obj, "serialBytes", MACHINE_SERIAL_BYTES);
	snprintf(c->cmdline, sizeof(c->cmdline), "%s", json_get_str(obj, "cmdline", ""));
	c->disks = (unsigned)json_array_size(disks);
	json_array_foreach (disks, i, disk) {
		int r = check_fields(disk, disk_fields, ARRAY_SIZE(disk_fields), e);

		if (r < 0)
			return err_wrap(e, "disks[%zu]", i);
		c->read_only[i] = json_get_bool(disk, "readOnly", false);
	}
	return 0;
}

static int parse_connect(const json_t *obj, struct control_request *out, struct err *e)
{
	(void)e;
	out->port = (uint32_t)json_get_int(obj, "port", 0);
	out->timeout_ms = (unsigned)json_get_int(obj, "timeoutMs", TIMEOUT_MS_DEFAULT);
	return 0;
}

static int find_verb(const char *name, enum control_verb *out, struct err *e)
{
	for (size_t i = 0; i < ARRAY_SIZE(verbs); i++)
		if (strcmp(name, verbs[i].name) == 0) {
			*out = (enum control_verb)i;
			return 0;
		}
	return err_set(e, "bad_request", EINVAL, "verb: unknown");
}

int control_parse(const char *text, size_t len, struct control_request *out, struct err *e)
{
	_cleanup_json_ json_t *obj = json_parse(text, len, e);
	int r;

	memset(out, 0, sizeof(*out));
	machine_config_init(&out->config);
	if (!obj) {
		if (e)
			e->code = "bad_request";
		return -EINVAL;
	}
	if (!json_is_object(obj))
		return err_set(e, "bad_request", EINVAL, "a request is an object");
	if (json_is_integer(json_object_get(obj, "id"))) {
		out->has_id = true;
		out->id = json_get_int(obj, "id", 0);
	}
	r = find_verb(json_get_str(obj, "verb", ""), &out->verb, e);
	if (r < 0)
		return r;
	r = check_fields(obj, verbs[out->verb].fields, verbs[out->verb].nfields, e);
	if (r == 0 && verbs[out->verb].parse)
		r = verbs[out->verb].parse(obj, out, e);
	return r;
}

int control_take_fds(struct control_request *r, const int *fds, size_t n, struct err *e)
{
	struct machine_config *c = &r->config;
	size_t want = 0;

	if (r->verb == CONTROL_CONFIGURE)
		want = 2 + (size_t)c->initrds + c->disks;
	else if (r->verb == CONTROL_CONNECT)
		want = 1;
	if (n != want)
		return err_set(e, "bad_request", EINVAL, "%s takes %zu descriptors, %zu came",
			       verbs[r->verb].name, want, n);
	if (r->verb != CONTROL_CONFIGURE)
		return 0;
	c->kvm_fd = *fds++;
	c->kernel_fd = *fds++;
	for (unsigned i = 0; i < c->initrds; i++)
		c->initrd_fds[i] = *fds++;
	for (unsigned i = 0; i < c->disks; i++)
		c->disk_fds[i] = *fds++;
	return 0;
}
