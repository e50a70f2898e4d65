/*
 * Each operation has its table of fields; a request is checked against it whole before anything
 * is read from it.
 */
#include "broker/msg.h"

#include <errno.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "proto/vmm.h"

#define FIELD_OP                                                                              \
	{                                                                                     \
		.name = "op", .kind = JSON_KIND_STRING, .required = true, .min = 1, .max = 32 \
	}
#define FIELD_ID                                                                    \
	{                                                                           \
		.name = "id", .kind = JSON_KIND_STRING, .required = true, .min = 1, \
		.max = ID_LEN - 1                                                   \
	}

static const struct json_field spawn_fields[] = {
	FIELD_OP,
	FIELD_ID,
	{ .name = "vcpus",
	  .kind = JSON_KIND_INT,
	  .required = true,
	  .min = 1,
	  .max = VMM_VCPUS_MAX },
	{ .name = "memoryMiB",
	  .kind = JSON_KIND_INT,
	  .required = true,
	  .min = VMM_MEMORY_MIN_MIB,
	  .max = VMM_MEMORY_MAX_MIB },
};
static const struct json_field id_fields[] = { FIELD_OP, FIELD_ID };
static const struct json_field list_fields[] = {
	FIELD_OP,
	{ .name = "after", .kind = JSON_KIND_STRING, .min = 1, .max = ID_LEN - 1 },
};
static const struct json_field op_fields[] = { FIELD_OP };

static const struct op {
	const char *name;
	const struct json_field *fields;
	size_t n;
} ops[] = {
	[BROKER_VMM_SPAWN] = { "vmm_spawn", spawn_fields, ARRAY_SIZE(spawn_fields) },
	[BROKER_VMM_OPEN] = { "vmm_open", id_fields, ARRAY_SIZE(id_fields) },
	[BROKER_VMM_KILL] = { "vmm_kill", id_fields, ARRAY_SIZE(id_fields) },
	[BROKER_VMM_REAP] = { "vmm_reap", id_fields, ARRAY_SIZE(id_fields) },
	[BROKER_VMM_LIST] = { "vmm_list", list_fields, ARRAY_SIZE(list_fields) },
	[BROKER_OPEN_KVM] = { "open_kvm", op_fields, ARRAY_SIZE(op_fields) },
};

const char *broker_op_name(enum broker_op op)
{
	return ops[op].name;
}

static int check_fields(const json_t *msg, const struct op *op, struct err *e)
{
	_cleanup_json_ json_t *problems = json_array();
	_cleanup_free_ char *text = NULL;

	if (!problems)
		return err_errno(e, ENOMEM, "broker request");
	if (json_check(msg, op->fields, op->n, problems) == 0)
		return 0;
	text = json_dumps(problems, JSON_COMPACT);
	return err_set(e, "bad_request", EINVAL, "%s: %s", op->name, text ? text : "bad fields");
}

/* An absent id is ""; one that is there must be a sandbox's. */
static int take_id(const json_t *msg, const char *field, struct broker_request *out, struct err *e)
{
	const char *id = json_get_str(msg, field, NULL);

	if (!id)
		return 0;
	if (!id_valid("sbx", id))
		return err_set(e, "bad_request", EINVAL, "%s is not the id of a sandbox", field);
	memcpy(out->id, id, ID_LEN);
	return 0;
}

int broker_msg_parse(const void *p, size_t n, struct broker_request *out, struct err *e)
{
	_cleanup_json_ json_t *msg = json_parse(p, n, e);
	struct broker_request req = { 0 };
	const char *name;
	size_t i;
	int r;

	if (!msg)
		return err_set(e, "bad_request", EINVAL, "the request is not JSON");
	name = json_get_str(msg, "op", "");
	for (i = 0; i < ARRAY_SIZE(ops); i++)
		if (strcmp(name, ops[i].name) == 0)
			break;
	if (i == ARRAY_SIZE(ops))
		return err_set(e, "bad_request", EINVAL, "unknown operation");
	req.op = (enum broker_op)i;
	r = check_fields(msg, &ops[i], e);
	if (r == 0)
		r = take_id(msg, req.op == BROKER_VMM_LIST ? "after" : "id", &req, e);
	if (r < 0)
		return r;
	req.vcpus = (unsigned)json_get_int(msg, "vcpus", 0);
	req.memory_mib = (unsigned)json_get_int(msg, "memoryMiB", 0);
	*out = req;
	return 0;
}
