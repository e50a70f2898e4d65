/* A table of verbs, each with the fields it takes; everything else is refused by name. */
#include "vmm/control_msg.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"

#define PORT_MAX 0xfffffffeLL /* the last one means "any" */
#define CID_MIN 3
#define SERIAL_BYTES_MIN 256
#define SERIAL_BYTES_MAX (16 << 20)
#define MAC_TEXT_LEN 17 /* "02:00:00:00:00:01" */
#define MTU_MIN 68
#define MTU_MAX 65535
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
	{ "net", JSON_KIND_OBJECT, false, true, 0, INT64_MAX, NULL },
	{ "serialBytes", JSON_KIND_INT, false, true, SERIAL_BYTES_MIN, SERIAL_BYTES_MAX, NULL },
};

/* The sizes of a saved machine are in its state. */
static const struct json_field restore_fields[] = {
	VERB_FIELD,
	ID_FIELD,
	{ "disks", JSON_KIND_ARRAY, true, false, 0, INT64_MAX, NULL },
	{ "net", JSON_KIND_OBJECT, false, true, 0, INT64_MAX, NULL },
	{ "serialBytes", JSON_KIND_INT, false, true, SERIAL_BYTES_MIN, SERIAL_BYTES_MAX, NULL },
};

static const struct json_field net_fields[] = {
	{ "mac", JSON_KIND_STRING, true, false, MAC_TEXT_LEN, MAC_TEXT_LEN, NULL },
	{ "mtu", JSON_KIND_INT, false, true, MTU_MIN, MTU_MAX, NULL },
};

static const struct json_field balloon_fields[] = {
	VERB_FIELD,
	ID_FIELD,
	{ "targetMiB", JSON_KIND_INT, true, false, 0, VMM_MEMORY_MAX_MIB, NULL },
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
static int parse_restore(const json_t *obj, struct control_request *out, struct err *e);
static int parse_connect(const json_t *obj, struct control_request *out, struct err *e);
static int parse_balloon(const json_t *obj, struct control_request *out, struct err *e);

static const struct {
	const char *name;
	const struct json_field *fields;
	size_t nfields;
	int (*parse)(const json_t *obj, struct control_request *out, struct err *e);
} verbs[] = {
	[CONTROL_CONFIGURE] = { "configure", configure_fields, ARRAY_SIZE(configure_fields),
				parse_configure },
	[CONTROL_START] = { "start", plain_fields, ARRAY_SIZE(plain_fields), NULL },
	[CONTROL_RESTORE] = { "restore", restore_fields, ARRAY_SIZE(restore_fields),
			      parse_restore },
	[CONTROL_PAUSE] = { "pause", plain_fields, ARRAY_SIZE(plain_fields), NULL },
	[CONTROL_RESUME] = { "resume", plain_fields, ARRAY_SIZE(plain_fields), NULL },
	[CONTROL_SAVE] = { "save", plain_fields, ARRAY_SIZE(plain_fields), NULL },
	[CONTROL_BALLOON] = { "balloon", balloon_fields, ARRAY_SIZE(balloon_fields),
			      parse_balloon },
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

/* "02:00:00:00:00:01": a unicast address. */
static int parse_mac(const char *text, uint8_t out[6], struct err *e)
{
	for (int i = 0; i < 6; i++) {
		const char *p = text + 3 * i;
		char digits[3] = { p[0], p[1], '\0' };

		if (!isxdigit((unsigned char)p[0]) || !isxdigit((unsigned char)p[1]) ||
		    p[2] != (i < 5 ? ':' : '\0'))
			return err_set(e, "bad_request", EINVAL, "net: mac: not a MAC address");
		out[i] = (uint8_t)strtoul(digits, NULL, 16);
	}
	if (out[0] & 1)
		return err_set(e, "bad_request", EINVAL, "net: mac: a group address");
	return 0;
}

static int parse_net(const json_t *obj, struct machine_config *c, struct err *e)
{
	const json_t *net = json_object_get(obj, "net");
	int r;

	if (!json_is_object(net))
		return 0;
	r = check_fields(net, net_fields, ARRAY_SIZE(net_fields), e);
	if (r < 0)
		return err_wrap(e, "net");
	c->has_net = true;
	c->mtu = (uint16_t)json_get_int(net, "mtu", 0);
	return parse_mac(json_get_str(net, "mac", ""), c->mac, e);
}

static int parse_disks(const json_t *obj, struct machine_config *c, struct err *e)
{
	const json_t *disks = json_object_get(obj, "disks");
	size_t i;
	json_t *disk;

	if (json_array_size(disks) > VMM_DISKS_MAX)
		return err_set(e, "too_many_disks", E2BIG, "%zu disks, at most %d",
			       json_array_size(disks), VMM_DISKS_MAX);
	c->disks = (unsigned)json_array_size(disks);
	json_array_foreach (disks, i, disk) {
		int r = check_fields(disk, disk_fields, ARRAY_SIZE(disk_fields), e);

		if (r < 0)
			return err_wrap(e, "disks[%zu]", i);
		c->read_only[i] = json_get_bool(disk, "readOnly", false);
	}
	return 0;
}

/* What restore has in common with configure: the resources, not the sizes. */
static int parse_restore(const json_t *obj, struct control_request *out, struct err *e)
{
	struct machine_config *c = &out->config;
	int r = parse_disks(obj, c, e);

	c->serial_bytes = (uint32_t)json_get_int(obj, "serialBytes", MACHINE_SERIAL_BYTES);
	return r < 0 ? r : parse_net(obj, c, e);
}

static int parse_configure(const json_t *obj, struct control_request *out, struct err *e)
{
	struct machine_config *c = &out->config;

	c->vcpus = (unsigned)json_get_int(obj, "vcpus", 0);
	c->memory_mib = (unsigned)json_get_int(obj, "memoryMiB", 0);
	c->cid = (uint32_t)json_get_int(obj, "cid", 0);
	c->initrds = (unsigned)json_get_int(obj, "initrds", 0);
	snprintf(c->cmdline, sizeof(c->cmdline), "%s", json_get_str(obj, "cmdline", ""));
	return parse_restore(obj, out, e);
}

static int parse_balloon(const json_t *obj, struct control_request *out, struct err *e)
{
	(void)e;
	out->balloon_bytes = (uint64_t)json_get_int(obj, "targetMiB", 0) << 20;
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

/* How many descriptors come with a request. */
static size_t fds_wanted(const struct control_request *r)
{
	const struct machine_config *c = &r->config;
	size_t devices = (size_t)c->disks + c->has_net;

	switch (r->verb) {
	case CONTROL_CONFIGURE:
		return 2 + c->initrds + devices;
	case CONTROL_RESTORE:
		return 3 + devices;
	case CONTROL_SAVE:
		return 2;
	case CONTROL_CONNECT:
		return 1;
	default:
		return 0;
	}
}

int control_take_fds(struct control_request *r, const int *fds, size_t n, struct err *e)
{
	struct machine_config *c = &r->config;

	if (n != fds_wanted(r))
		return err_set(e, "bad_request", EINVAL, "%s takes %zu descriptors, %zu came",
			       verbs[r->verb].name, fds_wanted(r), n);
	if (r->verb != CONTROL_CONFIGURE && r->verb != CONTROL_RESTORE)
		return 0;
	c->kvm_fd = *fds++;
	if (r->verb == CONTROL_CONFIGURE) {
		c->kernel_fd = *fds++;
	} else {
		c->state_fd = *fds++;
		c->memory_fd = *fds++;
	}
	for (unsigned i = 0; i < c->initrds; i++)
		c->initrd_fds[i] = *fds++;
	for (unsigned i = 0; i < c->disks; i++)
		c->disk_fds[i] = *fds++;
	if (c->has_net)
		c->tap_fd = *fds++;
	return 0;
}
