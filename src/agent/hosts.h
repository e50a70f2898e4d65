/* The machine's name in /etc/hosts and /etc/hostname, so that sudo and others can resolve it. */
#ifndef CLOCHE_AGENT_HOSTS_H
#define CLOCHE_AGENT_HOSTS_H

/* Failures are logged: a read-only or full disk must not keep a sandbox from being adopted. */
void hosts_set_name(const char *name);

#endif
