/*
 * Only what we use is checked and taken, with json_check() on an object of those members, so that
 * a newer image builder may add others. A file name is a plain name: no slash, no leading dot.
 */
#include "sandbox/manifest.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/json.h"

static const struct json_field top_fields[] = {
	{ .name = "schema", .kind = JSON_KIND_INT, .required = true, .min = 1, .max = 1 },
	{ .name = "name", .kind = JSON_KIND_STRING, .required = true, .min = 1, .max = 63 },
	{ .name = "kernelVersion", .kind = JSON_KIND_STRING, .required = true, .max = 127 },
	{ .name = "cmdline",
	  .kind = JSON_KIND_STRING,
	  .required = true,
	  .max = MANIFEST_CMDLINE_MAX - 1 },
	{ .name = "files", .kind = JSON_KIND_OBJECT, .required = true, .min = 1, .max = 16 },
};
static const struct json_field file_fields[] = {
	{ .name = "name", .kind = JSON_KIND_STRING, .required = true, .min = 1, .max = 63 },
	{ .name = "bytes", .kind = JSON_KIND_INT, .required = true, .min = 1, .max = INT64_MAX },
	{ .name = "sha256", .kind = JSON_KIND_STRING, .required = true, .min = 64, .max = 64 },
};
static const char *const part_names[MANIFEST_PARTS] = {
	[MANIFEST_DISK] = "disk",
	[MANIFEST_KERNEL] = "kernel",
	[MANIFEST_INITRD] = "initrd",
};

const char *manifest_part_name(enum manifest_part p)
{
	return part_names[p];
}

static bool name_plain(const char *s)
{
	return s[0] != '.' && !strchr(s, '/');
}

bool manifest_name_valid(const char *name)
{
	static const char first[] = "abcdefghijklmnopqrstuvwxyz0123456789";
	static const char rest[] = "abcdefghijklmnopqrstuvwxyz0123456789._-";
	size_t n = strlen(name);

	return n > 0 && n <= 63 && strchr(first, name[0]) && strspn(name, rest) == n;
}

/* The members of obj that fields[n] name, as a new object. */
static json_t *known_members(const json_t *obj, const struct json_field *fields, size_t n)
{
	json_t *known = json_object();

	for (size_t i = 0; i < n; i++) {
		json_t *v = json_object_get(obj, fields[i].name);

		if (v)
			json_object_set(known, fields[i].name, v);
	}
	return known;
}

static int check(const json_t *obj, const struct json_field *fields, size_t n, const char *what,
		 struct err *e)
{
	_cleanup_json_ json_t *known = known_members(obj, fields, n), *problems = json_array();
	_cleanup_free_ char *text = NULL;

	if (!json_is_object(obj))
		return err_set(e, "image_corrupt", EINVAL, "%s is not an object", what);
	if (json_check(known, fields, n, problems) == 0)
		return 0;
	text = json_dumps(problems, JSON_COMPACT);
	return err_set(e, "image_corrupt", EINVAL, "%s: %s", what, text ? text : "bad fields");
}

static int take_file(const json_t *files, enum manifest_part p, struct manifest_file *out,
		     struct err *e)
{
	static const char hex[] = "0123456789abcdef";
	const json_t *f = json_object_get(files, part_names[p]);
	const char *name, *sha;
	int r;

	if (!f && p == MANIFEST_INITRD)
		return 0;
	if (!f)
		return err_set(e, "image_corrupt", EINVAL, "files has no %s", part_names[p]);
	r = check(f, file_fields, ARRAY_SIZE(file_fields), part_names[p], e);
	if (r < 0)
		return r;
	name = json_get_str(f, "name", "");
	sha = json_get_str(f, "sha256", "");
	if (!name_plain(name))
		return err_set(e, "image_corrupt", EINVAL, "%s: name must be a plain file name",
			       part_names[p]);
	if (strspn(sha, hex) != 64)
		return err_set(e, "image_corrupt", EINVAL,
			       "%s: sha256 must be 64 lower-case hexadecimal digits",
			       part_names[p]);
	snprintf(out->name, sizeof(out->name), "%s", name);
	snprintf(out->sha256, sizeof(out->sha256), "%s", sha);
	out->bytes = (uint64_t)json_get_int(f, "bytes", 0);
	return 0;
}

int manifest_parse(const char *text, size_t n, struct manifest *out, struct err *e)
{
	_cleanup_json_ json_t *v = json_parse(text, n, e);
	struct manifest m = { 0 };
	const json_t *files;
	int r;

	if (!v) {
		err_wrap(e, MANIFEST_NAME);
		if (e)
			e->code = "image_corrupt";
		return -EINVAL;
	}
	r = check(v, top_fields, ARRAY_SIZE(top_fields), MANIFEST_NAME, e);
	if (r < 0)
		return r;
	snprintf(m.name, sizeof(m.name), "%s", json_get_str(v, "name", ""));
	if (!manifest_name_valid(m.name))
		return err_set(e, "image_corrupt", EINVAL, "%s: \"%s\" is no name for an image",
			       MANIFEST_NAME, m.name);
	snprintf(m.kernel_version, sizeof(m.kernel_version), "%s",
		 json_get_str(v, "kernelVersion", ""));
	snprintf(m.cmdline, sizeof(m.cmdline), "%s", json_get_str(v, "cmdline", ""));
	files = json_object_get(v, "files");
	for (int p = 0; p < MANIFEST_PARTS && r == 0; p++)
		r = take_file(files, (enum manifest_part)p, &m.files[p], e);
	if (r == 0)
		*out = m;
	return r;
}
