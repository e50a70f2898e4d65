/* The two programs that cloched is. Each returns main()'s exit status. */
#ifndef CLOCHE_CLOCHED_ROLES_H
#define CLOCHE_CLOCHED_ROLES_H

struct options;

/* Root: prepares the host, starts and keeps the api child, serves it. */
int role_broker(const struct options *o, char **argv);

/* Unprivileged: store, sandboxes, HTTP. Started by the broker alone. */
int role_api(const struct options *o);

#endif
