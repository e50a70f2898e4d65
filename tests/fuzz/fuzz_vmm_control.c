/* Messages of the control protocol, with some number of descriptors (never opened or closed). */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/fd.h"
#include "vmm/control_msg.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct control_request r;
	int fds[FD_PASS_MAX];
	size_t nfds;

	if (n == 0)
		return 0;
	nfds = data[0] % (FD_PASS_MAX + 1);
	for (size_t i = 0; i < nfds; i++)
		fds[i] = 1000 + (int)i;
	if (control_parse((const char *)data + 1, n - 1, &r, NULL) < 0)
		return 0;
	if (memchr(r.config.cmdline, '\0', sizeof(r.config.cmdline)) == NULL ||
	    r.config.disks > VMM_DISKS_MAX || r.config.initrds > VMM_INITRDS_MAX)
		abort();
	control_take_fds(&r, fds, nfds, NULL);
	return 0;
}
