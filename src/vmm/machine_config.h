/* What a machine is made of: sizes, the command line, and the descriptors that came for it. */
#ifndef CLOCHE_VMM_MACHINE_CONFIG_H
#define CLOCHE_VMM_MACHINE_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/vmm.h"

#define MACHINE_CMDLINE_MAX 2047
#define MACHINE_SERIAL_BYTES 65536

struct machine_config {
	unsigned vcpus;
	unsigned memory_mib;
	uint32_t cid;
	uint32_t serial_bytes;
	char cmdline[MACHINE_CMDLINE_MAX + 1];
	unsigned disks, initrds;
	bool read_only[VMM_DISKS_MAX];
	bool has_net;
	uint8_t mac[6];
	uint16_t mtu; /* 0: not told */
	/* Descriptors, -1 where there is none. */
	int kvm_fd, kernel_fd, tap_fd;
	int state_fd, memory_fd; /* of a saved machine */
	int initrd_fds[VMM_INITRDS_MAX];
	int disk_fds[VMM_DISKS_MAX];
};

/* An empty configuration, without descriptors; and its end: closes those that are left. */
void machine_config_init(struct machine_config *c);
void machine_config_close(struct machine_config *c);

/* Closes what is needed to boot only. */
void machine_config_close_boot(struct machine_config *c);

#endif
