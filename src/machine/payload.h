/*
 * The payload disk: our own programs, on a small ext4 image made afresh at each start of the
 * machine. A new build therefore needs no new system image.
 */
#ifndef CLOCHE_MACHINE_PAYLOAD_H
#define CLOCHE_MACHINE_PAYLOAD_H

#include "base/sha256.h"

struct err;

/* Makes path from the programs found beside this one; replaces it at once. */
int payload_make(const char *path, struct err *e);

/*
 * A name for what payload_make() would take now: it changes when a program was built or installed
 * anew. "" when a program is missing.
 */
void payload_id(char hex[SHA256_HEX_LEN]);

#endif
