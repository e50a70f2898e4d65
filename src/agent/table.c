/* A list, newest first: a few hundred entries at most. A watched command is never dropped. */
#include "agent/table.h"

#include <errno.h>
#include <string.h>

#include "agent/agent.h"
#include "agent/process.h"
#include "base/err.h"

void table_add(struct agent *a, struct process *p)
{
	p->next = a->processes;
	a->processes = p;
	a->n_running++;
}

void table_remove(struct agent *a, struct process *p)
{
	struct process **at = &a->processes;

	while (*at != p)
		at = &(*at)->next;
	*at = p->next;
	if (p->exited)
		a->n_ended--;
	else
		a->n_running--;
}

/* The oldest ended command that nobody watches. One whose pipes are still held open by a background
 * process comes last: closing them may end that process with SIGPIPE. */
static struct process *oldest_ended(struct agent *a)
{
	struct process *found = NULL, *held = NULL;

	for (struct process *p = a->processes; p; p = p->next) {
		if (!p->exited || p->watchers)
			continue;
		if (p->out[0].fd < 0 && p->out[1].fd < 0)
			found = p;
		else
			held = p;
	}
	return found ? found : held;
}

bool table_make_room(struct agent *a, size_t more)
{
	struct process *p;

	while (a->output_bytes + more > a->output_max && (p = oldest_ended(a)))
		process_drop(p);
	return a->output_bytes + more <= a->output_max;
}

void table_trim(struct agent *a)
{
	struct process *p;

	while (a->n_ended > AGENT_ENDED_MAX && (p = oldest_ended(a)))
		process_drop(p);
}

struct process *process_find_pid(struct agent *a, pid_t pid)
{
	for (struct process *p = a->processes; p; p = p->next)
		if (p->pid == pid)
			return p;
	return NULL;
}

struct process *process_find(struct agent *a, const char *id, struct err *e)
{
	for (struct process *p = a->processes; p; p = p->next)
		if (strcmp(p->id, id) == 0 && !p->forgotten)
			return p;
	err_set(e, "process_not_found", ESRCH, "there is no process %.40s", id);
	err_fix(e, "List the processes; the oldest ended ones are dropped with their output.");
	return NULL;
}
