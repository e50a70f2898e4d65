#include "api/page.h"

#include <errno.h>
#include <stdio.h>

#include "api/request.h"
#include "base/str.h"

int page_cursor(struct request *r, int64_t *seq, struct err *e)
{
	const char *cursor = json_get_str(r->query, "cursor", NULL);

	if (!cursor || str_to_int(cursor, 1, INT64_MAX, seq) == 0)
		return 0;
	request_problem(r, "cursor", "is not a cursor that a list gave");
	return request_check_problems(r, e);
}

int page_add(struct page *p, json_t *v, int64_t seq)
{
	if (!p->data)
		p->data = json_array();
	if (!v || json_array_append_new(p->data, v))
		return -ENOMEM;
	p->last = seq;
	return 0;
}

int page_answer(struct request *r, struct page *p, int rc, bool more, struct err *e)
{
	json_t *next = json_null();
	char cursor[24];

	if (rc) {
		json_decref(p->data);
		return rc;
	}
	if (more) {
		snprintf(cursor, sizeof(cursor), "%lld", (long long)p->last);
		next = json_string(cursor);
	}
	return request_json(r, 200,
			    json_pack("{s:o,s:o}", "data", p->data ? p->data : json_array(),
				      "nextCursor", next),
			    e);
}
