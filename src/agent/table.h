/* The table of commands: finding, and making room by dropping the oldest that have ended. */
#ifndef CLOCHE_AGENT_TABLE_H
#define CLOCHE_AGENT_TABLE_H

#include <stdbool.h>
#include <stddef.h>

struct agent;
struct process;

void table_add(struct agent *a, struct process *p);
void table_remove(struct agent *a, struct process *p);

/* Whether `more` bytes of output may be kept; drops ended commands for it, the oldest first. */
bool table_make_room(struct agent *a, size_t more);
/* Keeps the number of ended commands within its limit. */
void table_trim(struct agent *a);

#endif
