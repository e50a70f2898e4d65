/* Finding a command's descendants without cgroups. */
#ifndef CLOCHE_AGENT_KILL_TREE_H
#define CLOCHE_AGENT_KILL_TREE_H

#include <sys/types.h>

/*
 * Sends sig to every process that carries the mark of command id in its environment, is in the
 * session of pid, or descends from such a one; id NULL: any command's mark. Only processes below
 * the caller, which must be PID 1 or a subreaper. Repeats while SIGKILL
 * finds new ones. Returns how many were found (the last time). sig 0 only counts; zombies do not.
 */
int kill_tree(const char *id, pid_t pid, int sig);

#endif
