/*
 * What cloched is told: a configuration file of `key = value` lines (inih), then the command line,
 * which wins. One table serves both: the key of --state-dir is state-dir.
 */
#ifndef CLOCHE_CLOCHED_OPTIONS_H
#define CLOCHE_CLOCHED_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct err;

#define OPTIONS_IMPORT_MAX 16

struct options {
	char *state_dir, *run_dir, *libexec_dir, *config, *host;
	char *listen;  /* ADDRESS:PORT, as given */
	char *address; /* taken from listen */
	int64_t port;
	char *import_dirs[OPTIONS_IMPORT_MAX];
	size_t import_dirs_n;
	char *hosts[OPTIONS_IMPORT_MAX]; /* names a Host header may carry */
	size_t hosts_n;
	int64_t api_uid, uid_first, uid_count;
	int64_t vcpus, memory_mib, disk_mib; /* defaults of a sandbox */
	int64_t memory_reserve_mib, disk_reserve_mib, memory_overhead_mib;
	int64_t sandboxes_max, boot_timeout_s;
	char *cgroup;
	char *vmm, *kvm; /* development: other paths */
	bool no_jail;	 /* development: a dynamically linked VMM can run */
	bool debug, help, version;
	bool api_child; /* started by the broker, not by people */
};

/*
 * Fills o from argv, and from the file that it names. "usage" with a message for a person; an
 * unknown option is refused with the nearest one in `fix`. The caller calls options_free() either
 * way.
 */
int options_parse(int argc, const char *const *argv, struct options *o, struct err *e);
void options_free(struct options *o);

/* The text of --help. */
void options_help(void);

#endif
