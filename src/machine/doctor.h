/*
 * What this host offers for running Cloche, what is missing, and how to mend it.
 */
#ifndef CLOCHE_MACHINE_DOCTOR_H
#define CLOCHE_MACHINE_DOCTOR_H

#include <stdio.h>

#include "base/json.h"
#include "machine/paths.h"
#include "machine/probe.h"

enum doctor_verdict { DOCTOR_OK, DOCTOR_WARN, DOCTOR_FAIL };

#define DOCTOR_CHECKS_MAX 16

struct doctor_check {
	const char *name; /* "kvm", "cgroup", … */
	enum doctor_verdict verdict;
	char found[240]; /* what is there */
	char fix[240];	 /* what to do, "" when nothing */
};

struct doctor_report {
	struct probe probe;
	const char *mode; /* "native" or "machine": what `cloche up` will do */
	struct doctor_check checks[DOCTOR_CHECKS_MAX];
	size_t n;
	enum doctor_verdict worst;
};

/* Measures and looks; a second or two. port is the API's. */
void doctor_run(const struct cloche_paths *paths, uint16_t port, struct doctor_report *r);

/* The mode that fits a host: native needs root and a KVM that is fast. */
const char *doctor_mode(enum probe_kind kind, bool root);

json_t *doctor_json(const struct doctor_report *r);

/* For a terminal; colours when colour is set. */
void doctor_print(const struct doctor_report *r, FILE *f, bool colour);

#endif
