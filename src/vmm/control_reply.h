/* Bodies of the answers of the control protocol. No I/O. All return NULL when out of memory. */
#ifndef CLOCHE_VMM_CONTROL_REPLY_H
#define CLOCHE_VMM_CONTROL_REPLY_H

#include <jansson.h>
#include <stdint.h>

struct err;
struct machine;

/* {ok:true} and {ok:false, error:{code, message}}. The caller adds the id. */
json_t *control_reply_ok(void);
json_t *control_reply_error(const struct err *e);

/* What save says: the bytes of memory that were not zero. */
json_t *control_reply_saved(uint64_t memory_bytes);

/* What wait says of a machine that has ended. */
json_t *control_reply_ended(const struct machine *m);
json_t *control_reply_stats(struct machine *m);

/* The last serial output, as much as keeps the whole message within `max` bytes. */
json_t *control_reply_serial(struct machine *m, size_t max);

#endif
