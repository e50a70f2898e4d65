/* Listing, looking at, starting and ending sandboxes. */
#include <errno.h>
#include <string.h>

#include "api/check.h"
#include "api/handlers.h"
#include "api/page.h"
#include "api/request.h"
#include "sandbox/sandbox.h"

/* ---- list ---- */

static size_t metadata_matches(const json_t *metadata, struct store_match *out, size_t max)
{
	const char *key;
	json_t *v;
	size_t n = 0;

	json_object_foreach ((json_t *)(uintptr_t)metadata, key, v)
		if (n < max)
			out[n++] = (struct store_match){ key, json_string_value(v) };
	return n;
}

int sandboxes_get(struct request *r, struct err *e)
{
	struct store_match matches[URI_PARAMS_MAX];
	const char *state = json_get_str(r->query, "state", NULL);
	size_t limit = (size_t)json_get_int(r->query, "limit", PAGE_DEFAULT), n = 0;
	struct store_sandbox_filter f = {
		.states = state ? 1U << sandbox_state_parse(state) : 0,
		.limit = limit + 1,
		.metadata = matches,
		.n_metadata = metadata_matches(json_object_get(r->query, "metadata"), matches,
					       ARRAY_SIZE(matches)),
	};
	struct store_sandbox *rows = NULL;
	struct page page = { 0 };
	int rc = page_cursor(r, &f.before_seq, e);

	if (rc == 0)
		rc = store_sandbox_list(r->api->store, &f, &rows, &n, e);
	for (size_t i = 0; rc == 0 && i < n && i < limit; i++)
		rc = page_add(&page, sandbox_json(r, &rows[i], e), rows[i].seq);
	store_sandboxes_free(rows, n);
	return page_answer(r, &page, rc, n > limit, e);
}

/* ---- one ---- */

static int answer_row(struct request *r, const char *id, struct err *e)
{
	struct store_sandbox row = { 0 };
	json_t *v;
	int rc = store_sandbox_get(r->api->store, id, &row, e);

	if (rc)
		return rc;
	v = sandbox_json(r, &row, e);
	store_sandbox_free(&row);
	return v ? request_json(r, 200, v, e) : -EIO;
}

int sandbox_one_get(struct request *r, struct err *e)
{
	return answer_row(r, r->param[0], e);
}

/* The id that the path's id or name stands for. */
static int resolve(struct request *r, char id[ID_LEN], struct err *e)
{
	struct store_sandbox row = { 0 };
	int rc = sandbox_row(r, &row, e);

	if (rc)
		return rc;
	memcpy(id, row.id, ID_LEN);
	store_sandbox_free(&row);
	return 0;
}

int sandbox_one_delete(struct request *r, struct err *e)
{
	char id[ID_LEN];
	int rc = resolve(r, id, e);

	if (rc == 0)
		rc = sandbox_delete(r->api->sandboxes, id, r->key.id, e);
	return rc ? rc : answer_row(r, id, e);
}

int sandbox_start_post(struct request *r, struct err *e)
{
	char id[ID_LEN];
	int rc = resolve(r, id, e);

	if (rc == 0)
		rc = sandbox_start(r->api->sandboxes, id, r->key.id, &r->details, e);
	return rc ? rc : answer_row(r, id, e);
}

int sandbox_stop_post(struct request *r, struct err *e)
{
	char id[ID_LEN];
	int rc = resolve(r, id, e);

	if (rc == 0)
		rc = sandbox_stop(r->api->sandboxes, id, r->key.id, "request", 0, e);
	return rc ? rc : answer_row(r, id, e);
}

int sandbox_renew_check(struct request *r, struct err *e)
{
	(void)e;
	check_lease(r, "timeoutSeconds");
	return 0;
}

/* Known fault 45: the answer is read after the change, so it shows the new end. */
int sandbox_renew_post(struct request *r, struct err *e)
{
	char id[ID_LEN];
	int rc = resolve(r, id, e);

	if (rc == 0)
		rc = sandbox_renew(r->api->sandboxes, id, r->key.id,
				   json_get_int(r->body, "timeoutSeconds", 0), e);
	return rc ? rc : answer_row(r, id, e);
}

int sandbox_console_get(struct request *r, struct err *e)
{
	_cleanup_free_ char *text = NULL;
	char id[ID_LEN];
	int rc = resolve(r, id, e);

	if (rc == 0)
		rc = sandbox_serial(r->api->sandboxes, id, &text, e);
	return rc ? rc : request_json(r, 200, json_pack("{s:s}", "text", text), e);
}

int not_available_yet(struct request *r, struct err *e)
{
	char id[ID_LEN];
	int rc = resolve(r, id, e);

	if (rc)
		return rc;
	rc = err_set(e, "not_available", ENOSYS, "this version does not offer %s",
		     strrchr(r->route->pattern, '/') + 1);
	err_fix(e, "Use stop and start, which keep the disk, until a later version offers it.");
	return rc;
}
