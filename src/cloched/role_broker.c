/*
 * The order matters: nothing is touched before the lock says that we are alone, and the api child
 * starts when everything it will ask for is ready.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/log.h"
#include "broker/dirs.h"
#include "broker/server.h"
#include "broker/supervise.h"
#include "broker/vmms.h"
#include "cloched/options.h"
#include "cloched/roles.h"

#define API_USER "_cloche"
#define API_UID_DEFAULT 64000
#define FILES_MAX 65536
#define PIDS_EXTRA 64
#define PIDS_EXTRA_UNJAILED 512 /* a development VMM may be a whole guest of processes */

/*
 * The user of the api child. A host whose /etc/passwd has _cloche uses it; on others a fixed
 * number does as well, because nothing looks the name up.
 */
static void api_user(const struct options *o, uid_t *uid, gid_t *gid)
{
	const struct passwd *pw = o->api_uid ? NULL : getpwnam(API_USER);

	*uid = pw ? pw->pw_uid : (uid_t)(o->api_uid ? o->api_uid : API_UID_DEFAULT);
	*gid = pw ? pw->pw_gid : (gid_t)*uid;
}

static int check_uids(const struct options *o, uid_t api, struct err *e)
{
	if (api >= o->uid_first && api < o->uid_first + o->uid_count)
		return err_set(e, "usage", EINVAL,
			       "user id %u of the API is among those of the sandboxes", api);
	return 0;
}

static int check_jail(const struct options *o, struct err *e)
{
	int r;

	if (!o->no_jail)
		return 0;
	if (!CLOCHED_MAY_UNJAIL) {
		r = err_set(e, "usage", EINVAL, "--no-jail is refused by this build");
		err_fix(e, "Build with -Ddev=true, or with sanitizers, for development.");
		return r;
	}
	log_warn("--no-jail: VMMs run as root and see this host's files. For development only.");
	return 0;
}

/* Dropping the word argv[0] and adding one that only we give. */
static char **child_argv(char **argv)
{
	size_t n = 0;
	char **out;

	while (argv[n])
		n++;
	out = calloc(n + 2, sizeof(*out));
	if (!out)
		return NULL;
	memcpy(out, argv, n * sizeof(*out));
	out[n] = (char *)(uintptr_t) "--api-child";
	return out;
}

/*
 * Each sandbox is a handful of descriptors here and in the api child, which inherits the limit;
 * VMMs get their own. In a container the hard limit may not be ours to raise: then it has to do.
 */
static int raise_file_limit(struct err *e)
{
	struct rlimit files = { FILES_MAX, FILES_MAX };

	if (setrlimit(RLIMIT_NOFILE, &files) == 0)
		return 0;
	if (getrlimit(RLIMIT_NOFILE, &files) < 0)
		return err_errno(e, errno, "read the file limit");
	files.rlim_cur = files.rlim_max;
	if (setrlimit(RLIMIT_NOFILE, &files) < 0)
		return err_errno(e, errno, "raise the file limit");
	log_warn("the host limits cloched to %llu open files: room for fewer sandboxes",
		 (unsigned long long)files.rlim_max);
	return 0;
}

static int serve(const struct options *o, const struct vmms_config *c, char **argv, struct err *e)
{
	_cleanup_close_ int exe = open("/proc/self/exe", O_PATH | O_CLOEXEC);
	_cleanup_free_ char **args = child_argv(argv);
	_cleanup_(vmms_close) struct vmms vmms = { .exe = -1 };
	struct broker_server server = { .vmms = &vmms, .kvm_path = o->kvm };
	const struct supervise_config sc = {
		.server = &server, .argv = args, .exe = exe, .uid = c->api_uid, .gid = c->api_gid
	};
	int r;

	if (exe < 0 || !args)
		return err_errno(e, exe < 0 ? errno : ENOMEM, "find our own program");
	r = vmms_open(&vmms, c, e);
	return r < 0 ? r : supervise_run(&sc, e);
}

static int run(const struct options *o, char **argv, struct err *e)
{
	_cleanup_close_ int lock = -1;
	_cleanup_(jail_close) struct jail jail = JAIL_NONE;
	char vmm_path[PATH_MAX];
	struct vmms_config c = {
		.run_dir = o->run_dir,
		.vmm_path = vmm_path,
		.uid_first = (uid_t)o->uid_first,
		.uid_count = (unsigned)o->uid_count,
		.memory_overhead_mib = (unsigned)o->memory_overhead_mib,
		.unjailed = o->no_jail,
		.pids_extra = o->no_jail ? PIDS_EXTRA_UNJAILED : PIDS_EXTRA,
	};
	int r = check_jail(o, e);

	if (geteuid() != 0) {
		r = err_set(e, "usage", EPERM, "cloched needs root");
		err_fix(e, "Run it as root; the part that talks to the network drops it.");
	}
	snprintf(vmm_path, sizeof(vmm_path), "%s%s", o->vmm ? o->vmm : o->libexec_dir,
		 o->vmm ? "" : "/cloche-vmm");
	api_user(o, &c.api_uid, &c.api_gid);
	if (r == 0)
		r = check_uids(o, c.api_uid, e);
	if (r == 0)
		r = raise_file_limit(e);
	if (r == 0)
		r = dirs_prepare(o->state_dir, o->run_dir, c.api_uid, c.api_gid, e);
	if (r == 0)
		r = dirs_lock(o->run_dir, &lock, e);
	if (r == 0)
		r = cgroup_init(&c.cgroup, "/proc/self/mountinfo", "", o->cgroup, e);
	if (r == 0)
		r = jail_open(&jail, !o->no_jail, e);
	if (r < 0)
		return r;
	c.jail = jail;
	return serve(o, &c, argv, e);
}

int role_broker(const struct options *o, char **argv)
{
	struct err e = { 0 };
	int r;

	log_init("cloched", o->debug ? LOG_DEBUG : LOG_INFO);
	r = run(o, argv, &e);
	if (r < 0) {
		log_err(LOG_ERROR, &e, "cloched cannot run");
		if (e.fix[0])
			fprintf(stderr, "%s\n", e.fix);
		return 1;
	}
	return r;
}
