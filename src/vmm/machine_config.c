/* Ownership only; the values are checked where they come in. */
#include "vmm/machine_config.h"

#include <string.h>

#include "base/cleanup.h"

void machine_config_init(struct machine_config *c)
{
	memset(c, 0, sizeof(*c));
	c->serial_bytes = MACHINE_SERIAL_BYTES;
	c->kvm_fd = c->kernel_fd = c->tap_fd = -1;
	c->state_fd = c->memory_fd = -1;
	for (unsigned i = 0; i < VMM_INITRDS_MAX; i++)
		c->initrd_fds[i] = -1;
	for (unsigned i = 0; i < VMM_DISKS_MAX; i++)
		c->disk_fds[i] = -1;
}

void machine_config_close_boot(struct machine_config *c)
{
	close_fd(&c->kernel_fd);
	close_fd(&c->state_fd);
	close_fd(&c->memory_fd);
	for (unsigned i = 0; i < VMM_INITRDS_MAX; i++)
		close_fd(&c->initrd_fds[i]);
}

void machine_config_close(struct machine_config *c)
{
	close_fd(&c->kvm_fd);
	close_fd(&c->tap_fd);
	machine_config_close_boot(c);
	for (unsigned i = 0; i < VMM_DISKS_MAX; i++)
		close_fd(&c->disk_fds[i]);
}
