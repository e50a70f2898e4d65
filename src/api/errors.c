/*
 * errors.def as a table. Lookup is linear: a few dozen entries, used only when something failed.
 */
#include "api/errors.h"

#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "base/log.h"

static const struct api_error catalogue[] = {
#define ERROR(code, status, retryable, message, fix) { #code, status, retryable, message, fix },
#include "api/errors.def"
};

const struct api_error *api_error_find(const char *code)
{
	for (size_t i = 0; code && i < ARRAY_SIZE(catalogue); i++)
		if (strcmp(catalogue[i].code, code) == 0)
			return &catalogue[i];
	return NULL;
}

const struct api_error *api_error_get(const char *code)
{
	const struct api_error *a = api_error_find(code);

	return a ? a : api_error_find("internal");
}

json_t *api_error_json(const struct err *e, json_t *details, const char *request_id)
{
	const struct api_error *known = api_error_find(e->code);
	const struct api_error *a = api_error_get(e->code);
	const char *message = known && e->msg[0] ? e->msg : a->message;
	const char *fix = known && e->fix[0] ? e->fix : a->fix;
	json_t *text;

	if (!known)
		log_event(LOG_ERROR, "error outside the catalogue", "code", e->code, "message",
			  e->msg, "requestId", request_id, NULL);
	/* A message may quote a client's bytes, cut anywhere. */
	text = json_string(message);
	if (!text)
		text = json_string(a->message);
	return json_pack("{s:{s:s,s:o,s:s,s:o,s:b,s:s}}", "error", "code", a->code, "message", text,
			 "fix", fix, "details", details ? json_incref(details) : json_object(),
			 "retryable", a->retryable, "requestId", request_id);
}
