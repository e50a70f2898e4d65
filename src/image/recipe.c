/*
 * Recipes are read strictly: a field that is unknown or of the wrong kind is an error with the
 * field's name, because a misspelt "packages" would otherwise give an empty image.
 */
#include "image/recipe.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "image/tree.h"

#define RECIPE_MAX (256UL << 10)

static const struct json_field fields[] = {
	{ "schema", JSON_KIND_INT, true, false, 1, 1, NULL },
	{ "name", JSON_KIND_STRING, true, false, 1, 64, NULL },
	{ "description", JSON_KIND_STRING, false, false, 0, 500, NULL },
	{ "distribution", JSON_KIND_STRING, true, false, 1, 32, NULL },
	{ "release", JSON_KIND_STRING, true, false, 1, 32, NULL },
	{ "components", JSON_KIND_STRING, true, false, 1, 100, NULL },
	{ "kernelPackage", JSON_KIND_STRING, false, false, 1, 100, NULL },
	{ "packages", JSON_KIND_STRINGS, true, false, 1, 500, NULL },
	{ "hooks", JSON_KIND_STRINGS, true, false, 0, 20, NULL },
	{ "npm", JSON_KIND_ARRAY, false, false, 0, 20, NULL },
	{ "slackMiB", JSON_KIND_INT, true, false, 16, 16384, NULL },
	{ "needMiB", JSON_KIND_INT, true, false, 64, 65536, NULL },
};

/* A name that becomes part of a path or an argument: nothing but [a-z0-9._+:-], no leading '.'/'-'.
 */
static int check_word(const char *what, const char *s, struct err *e)
{
	static const char ok[] = "abcdefghijklmnopqrstuvwxyz0123456789._+:-";

	if (*s && s[strspn(s, ok)] == '\0' && *s != '.' && *s != '-')
		return 0;
	return err_set(e, "bad_recipe", EINVAL, "%s \"%s\" has characters that are not allowed",
		       what, s);
}

static int check_words(const char *what, const json_t *array, struct err *e)
{
	const json_t *v;
	size_t i;

	json_array_foreach (array, i, v)
		if (check_word(what, json_string_value(v), e) < 0)
			return -EINVAL;
	return 0;
}

static int check_doc(const json_t *doc, struct err *e)
{
	_cleanup_json_ json_t *problems = json_array();
	const json_t *first;

	if (!problems)
		return err_errno(e, ENOMEM, "check the recipe");
	if (json_check(doc, fields, ARRAY_SIZE(fields), problems) == 0)
		return 0;
	first = json_array_get(problems, 0);
	return err_set(e, "bad_recipe", EINVAL, "field \"%s\": %s",
		       json_get_str(first, "field", "?"), json_get_str(first, "problem", "wrong"));
}

/* Appends the names of the recipes in dir to list. */
static void list_recipes(const char *dir, struct buf *list)
{
	_cleanup_closedir_ DIR *d = opendir(dir);
	char path[PATH_MAX];

	for (struct dirent *f; d && (f = readdir(d));) {
		path_printf(path, "%s/%s/recipe.json", dir, f->d_name);
		/* That of the machine is none for guests. */
		if (f->d_name[0] != '.' && strcmp(f->d_name, "machine") != 0 &&
		    access(path, R_OK) == 0)
			buf_printf(list, "%s%s", list->len ? ", " : "", f->d_name);
	}
}

static int load(const char *dir, const char *name, struct recipe *r, struct err *e)
{
	_cleanup_buf_ struct buf text = { 0 }, known = { 0 };
	char path[PATH_MAX];
	int ret;

	if (check_word("recipe", name, e) == 0)
		path_printf(path, "%s/%s/recipe.json", dir, name);
	if (check_word("recipe", name, NULL) < 0 || access(path, F_OK) < 0) {
		list_recipes(dir, &known);
		err_set(e, "unknown_recipe", ENOENT, "there is no recipe \"%s\"", name);
		err_fix(e, "Choose one of: %s.", known.len ? known.data : "(none found)");
		return -ENOENT;
	}
	ret = fd_read_file(path, &text, RECIPE_MAX, e);
	if (ret < 0)
		return ret;
	r->doc = json_parse(text.data ? text.data : "", text.len, e);
	if (!r->doc || check_doc(r->doc, e) < 0)
		return err_wrap(e, "%s", path);
	return 0;
}

int recipe_load(const char *dir, const char *name, struct recipe *r, struct err *e)
{
	int ret;

	memset(r, 0, sizeof(*r));
	snprintf(r->dir, sizeof(r->dir), "%s", dir);
	ret = load(dir, name, r, e);
	if (ret == 0) {
		r->name = json_get_str(r->doc, "name", "");
		r->distribution = json_get_str(r->doc, "distribution", "");
		r->release = json_get_str(r->doc, "release", "");
		r->components = json_get_str(r->doc, "components", "");
		r->kernel_package = json_get_str(r->doc, "kernelPackage", NULL);
		r->packages = json_object_get(r->doc, "packages");
		r->hooks = json_object_get(r->doc, "hooks");
		r->npm = json_object_get(r->doc, "npm");
		r->slack_mib = (uint32_t)json_get_int(r->doc, "slackMiB", 0);
		r->need_mib = (uint32_t)json_get_int(r->doc, "needMiB", 0);
		ret = check_word("release", r->release, e);
	}
	if (ret == 0)
		ret = check_words("package", r->packages, e);
	if (ret == 0)
		ret = check_words("hook", r->hooks, e);
	if (ret < 0)
		recipe_free(r);
	return ret;
}

void recipe_free(struct recipe *r)
{
	json_decref(r->doc);
	r->doc = NULL;
}

static int is_recipe_dir(const char *dir)
{
	char path[PATH_MAX];

	path_printf(path, "%s/hooks", dir);
	return access(path, R_OK) == 0;
}

int recipe_find_dir(char dir[PATH_MAX], struct err *e)
{
	/* Installed: BIN/../share. Built: BUILD/src/cli/cloche, beside the sources' images. */
	static const char *const beside[] = { "../share/cloche/images", "../../../images",
					      "../../../../images" };
	const char *env = getenv("CLOCHE_RECIPES");
	char exe[PATH_MAX], path[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);

	if (env && is_recipe_dir(env) && realpath(env, dir))
		return 0;
	exe[n > 0 ? n : 0] = '\0';
	if (strrchr(exe, '/'))
		*strrchr(exe, '/') = '\0';
	for (size_t i = 0; i < ARRAY_SIZE(beside); i++) {
		path_printf(path, "%s/%s", exe, beside[i]);
		if (is_recipe_dir(path) && realpath(path, dir))
			return 0;
	}
	err_set(e, "no_recipes", ENOENT, "the image recipes were not found beside %s", exe);
	err_fix(e, "Set CLOCHE_RECIPES to the folder that holds them.");
	return -ENOENT;
}
