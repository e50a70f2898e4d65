/*
 * The container of a saved machine: a header with version, length and SHA-256, then sections, each
 * with a tag and an index. Sections hold plain structs of this x86-64 ABI; a layout that changes
 * gets a new STATE_VERSION, and files of other versions are refused.
 *
 * A state file may come from anywhere. Opening verifies length and checksum before anything in it
 * is looked at; what a section holds is for its owner to check.
 */
#ifndef CLOCHE_VMM_STATE_FILE_H
#define CLOCHE_VMM_STATE_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

struct err;

#define STATE_VERSION 1
#define STATE_BYTES_MAX (16u << 20)

enum state_tag {
	STATE_SHAPE = 1, /* sizes and devices */
	STATE_VCPU,
	STATE_VM, /* clock and IOAPIC */
	STATE_SERIAL,
	STATE_VIRTIO,
};

/* Begins a state in an empty buffer, adds sections, and completes the header. 0 or -ENOMEM. */
int state_begin(struct buf *b);
int state_add(struct buf *b, enum state_tag tag, uint32_t index, const void *p, size_t n);
void state_finish(struct buf *b);

/* A verified state; borrows the bytes it was opened on. */
struct state_view {
	const uint8_t *bytes;
	size_t len;
};

/* Error codes: state_invalid (truncated, altered, not a state), state_version. */
int state_open(const void *p, size_t n, struct state_view *out, struct err *e);

/* A section; error code state_invalid when it is missing or, with want != 0, of another length. */
int state_section(const struct state_view *s, enum state_tag tag, uint32_t index, size_t want,
		  const void **p, size_t *n, struct err *e);

#endif
