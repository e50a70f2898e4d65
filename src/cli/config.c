/* The first source that names a URL also decides the key, so that a key never goes to a stranger:
 * CLOCHE_URL alone does not send the key of the configuration file to that URL. */
#include "cli/config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"

#define DEFAULT_URL "http://127.0.0.1:7070"
#define SYSTEM_FILE "/etc/cloche/config.json"
#define FILE_MAX (64u << 10)

void config_free(struct config *c)
{
	free(c->url);
	if (c->key)
		explicit_bzero(c->key, strlen(c->key));
	free(c->key);
	*c = (struct config){ 0 };
}

/* $XDG_CONFIG_HOME or $HOME/.config, with "/cloche". */
static int user_dir(struct buf *b, struct err *e)
{
	const char *xdg = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");

	if (xdg && *xdg)
		return buf_printf(b, "%s/cloche", xdg);
	if (home && *home)
		return buf_printf(b, "%s/.config/cloche", home);
	return err_set(e, "config", ENOENT, "HOME is not set");
}

static int file_load(const char *path, struct config *out, struct err *e)
{
	static const struct json_field fields[] = {
		{ "url", JSON_KIND_STRING, .required = true, .min = 1, .max = 2000 },
		{ "apiKey", JSON_KIND_STRING, .min = 1, .max = 200 },
	};
	_cleanup_json_ json_t *v = NULL, *problems = json_array();
	_cleanup_buf_ struct buf b = { 0 };
	const char *key;
	int ret = fd_read_file(path, &b, FILE_MAX, e);

	if (ret < 0)
		return ret;
	v = json_parse(b.data ? b.data : "", b.len, e);
	if (b.data)
		explicit_bzero(b.data, b.len);
	if (!v)
		return err_wrap(e, "%s", path);
	if (json_check(v, fields, ARRAY_SIZE(fields), problems))
		return err_set(e, "config", EINVAL, "%s: %s %s", path,
			       json_get_str(json_array_get(problems, 0), "field", ""),
			       json_get_str(json_array_get(problems, 0), "problem", ""));
	key = json_get_str(v, "apiKey", NULL);
	out->url = strdup(json_get_str(v, "url", ""));
	out->key = key ? strdup(key) : NULL;
	return out->url && (!key || out->key) ? 0 : err_errno(e, ENOMEM, "%s", path);
}

/* 1 when a file was read, 0 when there is none. */
static int files_load(struct config *out, struct err *e)
{
	_cleanup_buf_ struct buf path = { 0 };
	struct err dummy;
	int ret = -ENOENT;

	if (user_dir(&path, &dummy) == 0 && buf_str(&path, "/config.json") == 0)
		ret = file_load(path.data, out, e);
	if (ret == -ENOENT)
		ret = file_load(SYSTEM_FILE, out, e);
	return ret == -ENOENT ? 0 : ret < 0 ? ret : 1;
}

int config_load(const char *url_flag, struct config *out, struct err *e)
{
	const char *url = url_flag ? url_flag : getenv("CLOCHE_URL");
	const char *key = getenv("CLOCHE_API_KEY");
	int ret;

	*out = (struct config){ 0 };
	ret = files_load(out, e);
	if (ret < 0)
		return ret;
	if (url && *url && (!out->url || strcmp(url, out->url) != 0)) {
		config_free(out);
		out->url = strdup(url);
	}
	if (!out->url)
		out->url = strdup(DEFAULT_URL);
	if (key && *key) {
		free(out->key);
		out->key = strdup(key);
		if (!out->key)
			return err_errno(e, ENOMEM, "read the configuration");
	}
	return out->url ? 0 : err_errno(e, ENOMEM, "read the configuration");
}

/* mkdir -p of dir, 0700 for what is made. */
static int make_dirs(char *dir, struct err *e)
{
	for (char *p = dir + 1;; p++) {
		char was = *p;

		if (was && was != '/')
			continue;
		*p = '\0';
		if (mkdir(dir, 0700) < 0 && errno != EEXIST)
			return err_errno(e, errno, "make %s", dir);
		*p = was;
		if (!was)
			return 0;
	}
}

int config_save(const struct config *c, struct err *e)
{
	_cleanup_json_ json_t *v = json_pack("{s:s,s:s*}", "url", c->url, "apiKey", c->key);
	_cleanup_free_ char *text = v ? json_dumps(v, JSON_INDENT(2)) : NULL;
	_cleanup_buf_ struct buf path = { 0 };
	int ret = user_dir(&path, e);

	if (ret < 0)
		return ret;
	if (!text)
		return err_errno(e, ENOMEM, "write the configuration");
	ret = make_dirs(path.data, e);
	if (ret < 0)
		return ret;
	if (buf_str(&path, "/config.json") < 0)
		return err_errno(e, ENOMEM, "write the configuration");
	ret = fd_write_file_atomic(path.data, text, strlen(text), 0600, e);
	explicit_bzero(text, strlen(text));
	return ret;
}
