/* Audit events: appended, never changed; seq gives readers a cursor that misses nothing. */
#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "store/internal.h"

void store_event_free(struct store_event *ev)
{
	free(ev->data_json);
	memset(ev, 0, sizeof(*ev));
}

void store_events_free(struct store_event *evs, size_t n)
{
	for (size_t i = 0; i < n; i++)
		store_event_free(&evs[i]);
	free(evs);
}

int store_event_put(struct store *s, const struct store_event *ev, struct err *e)
{
	static const char sql[] = "INSERT INTO events (id, at_ms, type, actor, sandbox, data_json) "
				  "VALUES (?, ?, ?, ?, ?, ?)";
	_cleanup_stmt_ sqlite3_stmt *stmt = NULL;
	char id[ID_LEN];

	id_new("evt", id);
	stmt = store_query(s, e, sql, "titttt", ev->id[0] ? ev->id : id,
			   ev->at_ms ? ev->at_ms : clock_wall_ms(), ev->type, ev->actor,
			   ev->sandbox, ev->data_json ? ev->data_json : "{}");
	return stmt ? store_run(s, stmt, e) : -EIO;
}

int store_event_add(struct store *s, const struct store_event *ev, struct err *e)
{
	STORE_LOCKED(s);

	return store_event_put(s, ev, e);
}

static int read_event(sqlite3_stmt *stmt, struct store_event *ev, struct err *e)
{
	memset(ev, 0, sizeof(*ev));
	ev->seq = sqlite3_column_int64(stmt, 0);
	ev->at_ms = sqlite3_column_int64(stmt, 2);
	if (store_column_str(stmt, 1, ev->id, sizeof(ev->id), e) ||
	    store_column_str(stmt, 3, ev->type, sizeof(ev->type), e) ||
	    store_column_str(stmt, 4, ev->actor, sizeof(ev->actor), e) ||
	    store_column_str(stmt, 5, ev->sandbox, sizeof(ev->sandbox), e) ||
	    store_column_dup(stmt, 6, &ev->data_json, e))
		return -EIO;
	return 0;
}

int store_event_list(struct store *s, int64_t after, size_t limit, const char *sandbox_or_null,
		     struct store_event **out, size_t *n, struct err *e)
{
	static const char sql[] = "SELECT seq, id, at_ms, type, actor, sandbox, data_json "
				  "FROM events WHERE seq > ?1 AND (?2 IS NULL OR sandbox = ?2) "
				  "ORDER BY seq LIMIT ?3";
	struct store_event *evs = calloc(limit ? limit : 1, sizeof(*evs));
	STORE_LOCKED(s);
	_cleanup_stmt_ sqlite3_stmt *stmt = NULL;
	size_t used = 0;
	int r;

	if (!evs)
		return err_set(e, "store_failed", ENOMEM, "out of memory");
	stmt = store_query(s, e, sql, "iti", after, sandbox_or_null, (int64_t)limit);
	r = stmt ? 1 : -EIO;
	while (r == 1 && used < limit && (r = store_step(s, stmt, e)) == 1)
		if (read_event(stmt, &evs[used], e))
			r = -EIO;
		else
			used++;
	if (r < 0) {
		store_events_free(evs, used);
		return r;
	}
	*out = evs;
	*n = used;
	return 0;
}
