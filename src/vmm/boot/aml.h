/*
 * A small encoder of ACPI Machine Language: just the terms our DSDT needs. Scopes are opened and
 * closed; the package length of a scope is written when it closes. The first failure (no memory,
 * a scope too large, nesting too deep, unbalanced close) sticks and aml_finish() reports it, so
 * callers need no check in between.
 */
#ifndef CLOCHE_VMM_BOOT_AML_H
#define CLOCHE_VMM_BOOT_AML_H

#include <stdint.h>

#include "base/buf.h"

#define AML_DEPTH_MAX 8

struct aml {
	struct buf out;
	size_t open[AML_DEPTH_MAX]; /* offset of the length of each open scope */
	unsigned depth;
	int error; /* 0 or a negative errno */
};

/* Scope(path), Device(name): name and path are ACPI names, path may begin with a backslash. */
void aml_scope_open(struct aml *a, const char *path);
void aml_device_open(struct aml *a, const char *name);
void aml_close(struct aml *a);

/* Name(name, value). */
void aml_name_integer(struct aml *a, const char *name, uint64_t value);
void aml_name_string(struct aml *a, const char *name, const char *value);
void aml_name_eisa_id(struct aml *a, const char *name, const char *id); /* "PNP0501" */
void aml_name_package(struct aml *a, const char *name, const uint8_t *values, uint8_t n);

/* Name(_CRS, ResourceTemplate () {…}): open, add descriptors, close. */
void aml_resources_open(struct aml *a);
void aml_resource_io(struct aml *a, uint16_t port, uint8_t length);
void aml_resource_memory32(struct aml *a, uint32_t base, uint32_t length);
void aml_resource_interrupt(struct aml *a, uint32_t gsi); /* edge, active high, exclusive */
void aml_resources_close(struct aml *a);

/* 0 when everything was encoded and every scope closed, else a negative errno. */
int aml_finish(struct aml *a);
void aml_free(struct aml *a);

#endif
