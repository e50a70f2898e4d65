/* Lists: {"data":[…],"nextCursor":…}. A cursor is the number of the last row that was shown. */
#ifndef CLOCHE_API_PAGE_H
#define CLOCHE_API_PAGE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct err;
struct request;

#define PAGE_DEFAULT 100

struct page {
	json_t *data;
	int64_t last;
};

/* The request's cursor; *seq stays when there is none. "validation_failed". */
int page_cursor(struct request *r, int64_t *seq, struct err *e);

/* Takes over v; NULL is a failure. 0 or negative. */
int page_add(struct page *p, json_t *v, int64_t seq);

/*
 * Answers with the page, or releases it when rc is not 0 and returns rc. nextCursor is the last
 * row's number when there is more, else null.
 */
int page_answer(struct request *r, struct page *p, int rc, bool more, struct err *e);

#endif
