/*
 * The body of a create or exec: parsed and checked as a request would be. Nothing may crash, and
 * a body without problems has only fields of its table, in range.
 */
#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "api/check.h"
#include "api/handlers.h"
#include "api/request.h"
#include "api/shapes.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const uint8_t *data, size_t size, const struct shape *shape, route_fn more)
{
	const struct route route = { .method = "POST", .body = shape };
	struct request r = { .route = &route };
	struct err e = { 0 };

	r.problems = json_array();
	r.query = json_object();
	buf_add(&r.text, data, size);
	if (check_body(&r, &e) == 0 && more(&r, &e) == 0 && request_check_problems(&r, &e) == 0) {
		assert(json_is_object(r.body));
		assert(json_object_size(r.body) <= shape->n);
		if (shape == &shape_sandbox_create)
			assert(json_get_int(r.body, "vcpus", 1) >= 1 &&
			       json_get_int(r.body, "vcpus", 1) <= 32);
		else
			assert(!json_object_get(r.body, "argv") !=
			       !json_object_get(r.body, "command"));
	} else {
		assert(e.code && e.msg[0]);
	}
	json_decref(r.body);
	json_decref(r.query);
	json_decref(r.problems);
	json_decref(r.details);
	buf_free(&r.text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	check(data, size, &shape_sandbox_create, sandbox_post_check);
	check(data, size, &shape_exec, exec_check);
	return 0;
}
