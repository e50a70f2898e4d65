/*
 * The HTTP API of one daemon: its listener, keys, routes and answers. It runs on threads of its
 * own and calls the store and the sandbox manager, which must outlive it.
 */
#ifndef CLOCHE_API_API_H
#define CLOCHE_API_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct api;
struct err;
struct sandbox_manager;
struct store;

struct api_config {
	struct store *store;
	struct sandbox_manager *sandboxes;
	const char *address; /* numeric IPv4 or IPv6; NULL: 127.0.0.1 */
	uint16_t port;	     /* 0: any free one, see api_port() */
	/*
	 * Names beside localhost and loopback addresses that a Host header may carry. On a loopback
	 * address every other Host is refused (DNS rebinding); on another address an empty list
	 * means that any is taken.
	 */
	const char *const *hosts;
	size_t hosts_n;
	const char *version;	  /* shown by /healthz */
	unsigned connections_max; /* 0: 512 */
	/*
	 * Seconds for a request's head, for silence in its body, and between requests; ten times
	 * as many for a whole JSON body. 0: 60.
	 */
	unsigned idle_s;
};

/* Listens and answers until api_stop(). "address_in_use", "address_invalid", "system". */
int api_start(const struct api_config *c, struct api **out, struct err *e);
uint16_t api_port(const struct api *a);

/*
 * Ends every stream without its exit line (commands in sandboxes go on), waits for handlers that
 * are at work, and frees. NULL-safe.
 */
void api_stop(struct api *a);

/*
 * When the store has no key that is valid: makes an admin key and writes its secret to path (mode
 * 0600, atomically), for whoever may read the state folder. made tells whether it did.
 */
int api_first_key(struct store *s, const char *path, bool *made, struct err *e);

#endif
