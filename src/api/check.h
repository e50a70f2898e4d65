/* Checks of a request's fields that go beyond json_check(). All note problems on the request. */
#ifndef CLOCHE_API_CHECK_H
#define CLOCHE_API_CHECK_H

#include <stdbool.h>

struct err;
struct request;

/* Fills r->query from the query parameters, by the types of the route's query fields. */
void check_query(struct request *r);

/* Parses r->text into r->body and checks it against the route's fields. "json_malformed". */
int check_body(struct request *r, struct err *e);

/* Sandbox names: 1..63 of [A-Za-z0-9._-], the first a letter or digit, not like an id. */
void check_name(struct request *r, const char *field, const char *name);

/* A length of a lease in seconds, null or absent for never. */
void check_lease(struct request *r, const char *field);

/* An environment: names that a shell can use. */
void check_env(struct request *r, const char *field);

/* Metadata: keys of 1..64 bytes, values of at most 512. */
void check_metadata(struct request *r, const char *field);

/* An absolute path. */
void check_path(struct request *r, const char *field, const char *path);

/* A file mode in octal, as in "0644"; -1 when text is NULL or wrong (then noted). */
int check_mode(struct request *r, const char *field, const char *text);

#endif
