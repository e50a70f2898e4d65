/* Requests as the agent takes them: refused with words, or an object that holds what it says. */
#include <stdint.h>
#include <stdlib.h>

#include "agent/request.h"
#include "base/err.h"
#include "base/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct err e = { 0 };
	enum agent_op op = OP_COUNT;
	json_t *o = request_parse(data, n, &op, &e);
	const char *path;

	if (!o) {
		if (!e.code || !e.msg[0])
			abort();
		return 0;
	}
	path = json_get_str(o, "path", NULL);
	if (op >= OP_COUNT || (path && path[0] != '/'))
		abort();
	json_decref(o);
	return 0;
}
