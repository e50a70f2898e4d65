/* Metering ticks: appended, summed; the list, the bill and the caps read these same records. */
#include <errno.h>

#include "base/err.h"
#include "store/internal.h"

int store_usage_add(struct store *s, const char *sandbox, int64_t at_ms,
		    const struct store_usage *u, struct err *e)
{
	static const char sql[] =
		"INSERT INTO usage_ticks (sandbox, at_ms, cpu_ns, memory_mib_ms, cost_micros) "
		"VALUES (?, ?, ?, ?, ?)";
	STORE_LOCKED(s);
	_cleanup_stmt_ sqlite3_stmt *stmt = store_query(
		s, e, sql, "tiiii", sandbox, at_ms, u->cpu_ns, u->memory_mib_ms, u->cost_micros);

	return stmt ? store_run(s, stmt, e) : -EIO;
}

int store_usage_sum(struct store *s, const char *sandbox, int64_t from_ms, struct store_usage *out,
		    struct err *e)
{
	static const char sql[] =
		"SELECT coalesce(sum(cpu_ns), 0), coalesce(sum(memory_mib_ms), 0),"
		" coalesce(sum(cost_micros), 0) FROM usage_ticks"
		" WHERE sandbox = ? AND at_ms >= ?";
	STORE_LOCKED(s);
	_cleanup_stmt_ sqlite3_stmt *stmt = store_query(s, e, sql, "ti", sandbox, from_ms);
	int r = stmt ? store_step(s, stmt, e) : -EIO;

	if (r < 0)
		return r;
	out->cpu_ns = sqlite3_column_int64(stmt, 0);
	out->memory_mib_ms = sqlite3_column_int64(stmt, 1);
	out->cost_micros = sqlite3_column_int64(stmt, 2);
	return 0;
}
