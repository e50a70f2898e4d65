/* Prints the times, in milliseconds, of making a slot and of taking one from the pool: two JSON
 * arrays. usage: slot_bench RUN_DIR N */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/err.h"
#include "broker/slot.h"

static double ms_since(uint64_t start)
{
	return (double)(clock_mono_ns() - start) / 1e6;
}

int main(int argc, char **argv)
{
	struct slot_pool *pool = NULL;
	struct slot *s = NULL;
	struct err e = { 0 };
	unsigned n = argc == 3 ? (unsigned)strtoul(argv[2], NULL, 10) : 0;

	if (!n || slot_prepare(argv[1], &e) < 0 || slot_pool_new(argv[1], n, &pool, &e) < 0) {
		fprintf(stderr, "usage: slot_bench RUN_DIR N (%s)\n", e.msg);
		return 2;
	}
	for (unsigned i = 0; i < n; i++) {
		uint64_t start = clock_mono_ns();

		if (slot_pool_fill(pool, 1, &e) < 0) {
			fprintf(stderr, "%s\n", e.msg);
			return 1;
		}
		printf("%s%.4f", i ? "," : "[", ms_since(start));
	}
	printf("]\n");
	for (unsigned i = 0; i < n; i++) {
		int fds[SLOT_SOCKETS];
		uint64_t start = clock_mono_ns();

		/* What a new sandbox waits for: a slot and the sockets that egress is given. */
		if (slot_pool_take(pool, &s, &e) < 0 || slot_listen(s, fds, &e) < 0) {
			fprintf(stderr, "%s\n", e.msg);
			return 1;
		}
		printf("%s%.4f", i ? "," : "[", ms_since(start));
		for (int k = 0; k < SLOT_SOCKETS; k++)
			close(fds[k]);
		slot_destroy(s);
	}
	printf("]\n");
	slot_pool_free(pool);
	return 0;
}
