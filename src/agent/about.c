/*
 * What is told about a process. argv is kept shortened: a listing of all processes must fit one
 * frame, and a command's text may be 128 KiB.
 */
#include <string.h>

#include "agent/agent.h"
#include "agent/process.h"
#include "base/json.h"

#define ABOUT_BYTES 4096
#define BRIEF_BYTES 160

/* The first max bytes of s at most, not cut within a character. */
static json_t *shorten(const char *s, size_t max)
{
	size_t n = strlen(s);
	json_t *v;

	if (n <= max)
		return json_string(s);
	for (n = max; n && ((unsigned char)s[n] & 0xc0) == 0x80; n--)
		;
	v = json_stringn(s, n);
	return v;
}

static json_t *shorten_list(const json_t *list, size_t max)
{
	json_t *out = json_array(), *item;
	size_t i;

	json_array_foreach ((json_t *)(uintptr_t)list, i, item) {
		const char *s = json_string_value(item);

		json_array_append_new(out, shorten(s, max));
		max -= strlen(s) + 1 < max ? strlen(s) + 1 : max;
		if (!max)
			break;
	}
	return out;
}

/* argv or command of `from`, at most max bytes of it, set in `to`. */
static void copy_words(json_t *to, const json_t *from, size_t max)
{
	const char *command = json_get_str(from, "command", NULL);

	if (command)
		json_object_set_new(to, "command", shorten(command, max));
	else
		json_object_set_new(to, "argv", shorten_list(json_object_get(from, "argv"), max));
}

json_t *process_about(const json_t *request, const char *user)
{
	const char *cwd = json_get_str(request, "cwd", NULL);
	json_t *o = json_object();

	copy_words(o, request, ABOUT_BYTES);
	json_object_set_new(o, "cwd", cwd ? json_string(cwd) : json_null());
	json_object_set_new(o, "user", json_string(user));
	return o;
}

json_t *process_exit_json(const struct process *p)
{
	return json_pack("{s:o,s:o,s:b,s:I}", "code",
			 p->signal ? json_null() : json_integer(p->code), "signal",
			 p->signal ? json_integer(p->signal) : json_null(), "timedOut",
			 p->timed_out, "durationMs", (json_int_t)p->duration_ms);
}

json_t *process_json(const struct process *p, bool brief)
{
	json_t *o =
		json_pack("{s:s,s:i,s:s,s:I,s:I,s:I,s:I,s:b}", "processId", p->id, "pid",
			  (int)p->pid, "state", p->exited ? "exited" : "running", "startedAtMs",
			  (json_int_t)p->started_ms, "stdoutBytes", (json_int_t)p->out[0].ring.end,
			  "stderrBytes", (json_int_t)p->out[1].ring.end, "stdinBytes",
			  (json_int_t)p->in.accepted, "background", p->background);

	copy_words(o, p->about, brief ? BRIEF_BYTES : ABOUT_BYTES);
	if (!brief)
		json_object_set(o, "cwd", json_object_get(p->about, "cwd"));
	json_object_set(o, "user", json_object_get(p->about, "user"));
	if (p->exited)
		json_object_set_new(o, "exit", process_exit_json(p));
	return o;
}
