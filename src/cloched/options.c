/*
 * The table names each option once: its type says how it is parsed, its offset where it goes. The
 * file is read after the command line was, into what the command line left unset.
 */
#include "cloched/options.h"

#include <errno.h>
#include <ini.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/str.h"

enum kind { TEXT, NUMBER, FLAG, LIST };

struct option_def {
	const char *name;
	enum kind kind;
	size_t at;
	size_t count_at; /* LIST */
	const char *absent;
	int64_t min, max;
	const char *what; /* NULL: not shown */
};

/* Builds that refuse it do not show it either. */
#if CLOCHED_MAY_UNJAIL
#define NO_JAIL_HELP "(development): VMMs stay root and see the host's files"
#else
#define NO_JAIL_HELP NULL
#endif

#define AT(field) offsetof(struct options, field)
#define OPTION_TEXT(name, field, absent, what)               \
	{                                                    \
		name, TEXT, AT(field), 0, absent, 0, 0, what \
	}
#define OPTION_NUMBER(name, field, absent, min, max, what)         \
	{                                                          \
		name, NUMBER, AT(field), 0, absent, min, max, what \
	}
#define OPTION_FLAG(name, field, what)                     \
	{                                                  \
		name, FLAG, AT(field), 0, NULL, 0, 0, what \
	}
#define OPTION_LIST(name, field, what)                                                  \
	{                                                                               \
		name, LIST, AT(field), AT(field##_n), NULL, 0, OPTIONS_IMPORT_MAX, what \
	}

static const struct option_def defs[] = {
	OPTION_TEXT("state-dir", state_dir, "/var/lib/cloche", "DIR: store, images, disks"),
	OPTION_TEXT("run-dir", run_dir, "/run/cloche",
		    "DIR: sockets and records; must not survive a reboot"),
	OPTION_TEXT("listen", listen, "127.0.0.1:7070", "ADDRESS:PORT of the API"),
	OPTION_LIST("import-dir", import_dirs, "DIR with images to import; may be repeated"),
	OPTION_LIST("host-name", hosts, "NAME that a Host header may carry; may be repeated"),
	OPTION_TEXT("config", config, NULL, "FILE of `option = value` lines"),
	OPTION_TEXT("libexec-dir", libexec_dir, CLOCHED_LIBEXEC_DIR,
		    "DIR with cloche-vmm and agent.cpio"),
	OPTION_TEXT("host", host, "local", "this host's id in the store"),
	OPTION_NUMBER("api-uid", api_uid, "0", 0, 2000000000,
		      "user id of the API; 0: that of _cloche, or 64000"),
	OPTION_NUMBER("uid-first", uid_first, "64100", 1000, 2000000000,
		      "first of the user ids that sandboxes run as"),
	OPTION_NUMBER("uid-count", uid_count, "1000", 1, 65536, "how many, and so how many live"),
	OPTION_NUMBER("vcpus", vcpus, "2", 1, 32, "of a sandbox that does not say"),
	OPTION_NUMBER("memory-mib", memory_mib, "4096", 64, 65536, "the same"),
	OPTION_NUMBER("disk-mib", disk_mib, "10240", 16, 1048576, "the same"),
	OPTION_NUMBER("memory-reserve-mib", memory_reserve_mib, "512", 0, 1048576,
		      "of the host, not for guests"),
	OPTION_NUMBER("disk-reserve-mib", disk_reserve_mib, "512", 0, 1048576, "the same"),
	OPTION_NUMBER("memory-overhead-mib", memory_overhead_mib, "128", 16, 4096,
		      "a VMM's limit beyond its guest's memory"),
	OPTION_NUMBER("sandboxes-max", sandboxes_max, "1000", 1, 65536, "live at once"),
	OPTION_NUMBER("boot-timeout-seconds", boot_timeout_s, "60", 1, 3600, "for a guest's agent"),
	OPTION_TEXT("cgroup", cgroup, "cloche", "NAME of the control group"),
	OPTION_FLAG("debug", debug, "log more"),
	OPTION_FLAG("help", help, "this text"),
	OPTION_FLAG("version", version, "the version"),
	OPTION_TEXT("vmm", vmm, NULL, "FILE (development): another VMM program"),
	OPTION_TEXT("kvm", kvm, "/dev/kvm", "FILE (development): another KVM device"),
	OPTION_FLAG("no-jail", no_jail,
		    "(development builds): VMMs stay root and see the host's files"),
	OPTION_FLAG("api-child", api_child, NULL),
};

static int usage_error(struct err *e, const char *name, const char *problem)
{
	int r = err_set(e, "usage", EINVAL, "--%s %s", name, problem);

	err_fix(e, "See cloched --help.");
	return r;
}

static int unknown(const char *name, struct err *e)
{
	const char *names[ARRAY_SIZE(defs)], *near;
	size_t n = 0;
	int r;

	for (size_t i = 0; i < ARRAY_SIZE(defs); i++)
		if (defs[i].what)
			names[n++] = defs[i].name;
	near = str_nearest(name, names, n);
	r = err_set(e, "usage", EINVAL, "there is no option --%s", name);
	if (near)
		err_fix(e, "Did you mean --%s?", near);
	else
		err_fix(e, "See cloched --help.");
	return r;
}

static const struct option_def *find(const char *name)
{
	for (size_t i = 0; i < ARRAY_SIZE(defs); i++)
		if (strcmp(defs[i].name, name) == 0)
			return &defs[i];
	return NULL;
}

static int set_text(char **p, const char *value, struct err *e)
{
	free(*p);
	*p = strdup(value);
	return *p ? 0 : err_errno(e, ENOMEM, "options");
}

static int set(struct options *o, const struct option_def *d, const char *value, struct err *e)
{
	char *base = (char *)o;
	size_t *count = (size_t *)(void *)(base + d->count_at);

	switch (d->kind) {
	case TEXT:
		if (!value[0])
			return usage_error(e, d->name, "needs a value");
		return set_text((char **)(void *)(base + d->at), value, e);
	case LIST:
		if (*count == (size_t)d->max)
			return usage_error(e, d->name, "is given too often");
		return set_text((char **)(void *)(base + d->at) + (*count)++, value, e);
	case NUMBER:
		if (str_to_int(value, d->min, d->max, (int64_t *)(void *)(base + d->at)) < 0) {
			char text[80];

			snprintf(text, sizeof(text), "needs a number from %lld to %lld",
				 (long long)d->min, (long long)d->max);
			return usage_error(e, d->name, text);
		}
		return 0;
	case FLAG:
		*(bool *)(base + d->at) = strcmp(value, "false") != 0;
		return 0;
	}
	return -EINVAL;
}

/* ---- the command line ---- */

/* "--name=value", "--name value"; a single dash is taken for two. */
static int take_arg(int argc, const char *const *argv, int *i, struct options *o, bool *given,
		    struct err *e)
{
	const char *arg = argv[*i], *eq, *value;
	const struct option_def *d;
	char name[64];
	size_t n;

	if (arg[0] != '-' || !arg[1]) {
		int r = err_set(e, "usage", EINVAL, "unexpected argument \"%s\"", arg);

		err_fix(e, "See cloched --help.");
		return r;
	}
	arg += arg[1] == '-' ? 2 : 1;
	eq = strchr(arg, '=');
	n = eq ? (size_t)(eq - arg) : strlen(arg);
	snprintf(name, sizeof(name), "%.*s", (int)(n < 63 ? n : 63), arg);
	d = find(name);
	if (!d)
		return unknown(name, e);
	if (d->kind == FLAG)
		value = eq ? eq + 1 : "true";
	else if (eq)
		value = eq + 1;
	else if (*i + 1 < argc)
		value = argv[++*i];
	else
		return usage_error(e, name, "needs a value");
	given[d - defs] = true;
	return set(o, d, value, e);
}

/* ---- the file ---- */

struct file_read {
	struct options *o;
	const bool *given;
	struct err *e;
	int ret;
};

static int take_line(void *ctx, const char *section, const char *name, const char *value)
{
	struct file_read *f = ctx;
	const struct option_def *d = find(name);

	if (section[0])
		f->ret = err_set(f->e, "usage", EINVAL, "[%s]: there are no sections", section);
	else if (!d || !d->what || strcmp(name, "config") == 0)
		f->ret = unknown(name, f->e);
	else if (!f->given[d - defs])
		f->ret = set(f->o, d, value, f->e);
	return f->ret == 0;
}

static int read_file(const char *path, struct options *o, const bool *given, struct err *e)
{
	struct file_read f = { o, given, e, 0 };
	int line = ini_parse(path, take_line, &f);

	if (f.ret < 0)
		return err_wrap(e, "%s, line %d", path, line);
	if (line < 0)
		return err_set(e, "usage", ENOENT, "%s cannot be read", path);
	if (line > 0)
		return err_set(e, "usage", EINVAL, "%s, line %d is not `option = value`", path,
			       line);
	return 0;
}

/* ---- both ---- */

static int split_listen(struct options *o, struct err *e)
{
	const char *colon = strrchr(o->listen, ':');
	char *address;
	size_t n;

	if (!colon || str_to_int(colon + 1, 0, 65535, &o->port) < 0)
		return usage_error(e, "listen", "needs ADDRESS:PORT");
	n = (size_t)(colon - o->listen);
	/* [::1]:7070 */
	if (n >= 2 && o->listen[0] == '[' && colon[-1] == ']')
		address = strndup(o->listen + 1, n - 2);
	else
		address = strndup(o->listen, n);
	if (!address)
		return err_errno(e, ENOMEM, "options");
	o->address = address;
	return n ? 0 : usage_error(e, "listen", "needs ADDRESS:PORT");
}

int options_parse(int argc, const char *const *argv, struct options *o, struct err *e)
{
	bool given[ARRAY_SIZE(defs)] = { false };
	int r = 0;

	memset(o, 0, sizeof(*o));
	for (size_t i = 0; i < ARRAY_SIZE(defs) && r == 0; i++)
		if (defs[i].absent)
			r = set(o, &defs[i], defs[i].absent, e);
	for (int i = 1; i < argc && r == 0; i++)
		r = take_arg(argc, argv, &i, o, given, e);
	if (r == 0 && o->config)
		r = read_file(o->config, o, given, e);
	return r < 0 ? r : split_listen(o, e);
}

void options_free(struct options *o)
{
	char *base = (char *)o;

	for (size_t i = 0; i < ARRAY_SIZE(defs); i++) {
		char **p = (char **)(void *)(base + defs[i].at);

		if (defs[i].kind == TEXT)
			free(*p);
		for (size_t k = 0; defs[i].kind == LIST && k < OPTIONS_IMPORT_MAX; k++)
			free(p[k]);
	}
	free(o->address);
	memset(o, 0, sizeof(*o));
}

void options_help(void)
{
	printf("cloched: the daemon of a Cloche host. Needs root; its API runs without.\n\n");
	for (size_t i = 0; i < ARRAY_SIZE(defs); i++) {
		const struct option_def *d = &defs[i];

		if (d->what)
			printf("  --%-22s %s%s%s%s\n", d->name, d->what, d->absent ? " (" : "",
			       d->absent ? d->absent : "", d->absent ? ")" : "");
	}
}
