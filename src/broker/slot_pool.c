/* A stack of ready slots. Slots are named by a random id, so two brokers' pools cannot meet. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/id.h"
#include "broker/slot.h"

struct slot_pool {
	char *run_dir;
	unsigned size, n;
	struct slot *ready[];
};

int slot_pool_new(const char *run_dir, unsigned size, struct slot_pool **out, struct err *e)
{
	struct slot_pool *p = calloc(1, sizeof(*p) + size * sizeof(p->ready[0]));

	if (!p || !(p->run_dir = strdup(run_dir))) {
		free(p);
		return err_errno(e, ENOMEM, "slot pool");
	}
	p->size = size;
	*out = p;
	return 0;
}

void slot_pool_free(struct slot_pool *p)
{
	if (!p)
		return;
	while (p->n)
		slot_destroy(p->ready[--p->n]);
	free(p->run_dir);
	free(p);
}

static int make_one(struct slot_pool *p, struct slot **out, struct err *e)
{
	char id[ID_LEN];

	id_new("slt", id);
	return slot_make(p->run_dir, id, out, e);
}

int slot_pool_fill(struct slot_pool *p, unsigned most, struct err *e)
{
	for (unsigned i = 0; i < most && p->n < p->size; i++) {
		int r = make_one(p, &p->ready[p->n], e);

		if (r < 0)
			return r;
		p->n++;
	}
	return 0;
}

unsigned slot_pool_ready(const struct slot_pool *p)
{
	return p->n;
}

int slot_pool_take(struct slot_pool *p, struct slot **out, struct err *e)
{
	if (p->n == 0)
		return make_one(p, out, e);
	*out = p->ready[--p->n];
	return 0;
}
