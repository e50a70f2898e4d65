/* Requests on the control socket of egress, without descriptors: checked before anything is done.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "base/err.h"
#include "base/json.h"
#include "base/loop.h"
#include "egress/egress.h"
#include "egress/verbs.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static struct egress eg;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	_cleanup_json_ json_t *q = json_parse((const char *)data, n, NULL);
	_cleanup_json_ json_t *a = NULL;
	struct tenant *t;
	struct err e;

	if (!eg.loop && (loop_new(&eg.loop, &e) < 0 || timers_new(eg.loop, &eg.timers, &e) < 0))
		abort();
	if (!eg.tenants) {
		int fds[SLOT_SOCKETS];

		for (int i = 0; i < SLOT_SOCKETS; i++)
			fds[i] = eventfd(0, EFD_CLOEXEC);
		if (tenant_new(&eg, "s", fds, &t, &e) < 0)
			abort();
	}
	if (!json_is_object(q))
		return 0;
	a = verbs_handle(&eg, q, NULL, 0);
	if (!a || !json_is_boolean(json_object_get(a, "ok")))
		abort();
	return 0;
}
