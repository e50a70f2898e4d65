/*
 * Writes docs/errors.md from the catalogue, or with --check says whether it is current. A tool of
 * the build, not installed.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct row {
	const char *group; /* set on the row that begins a group */
	const char *code;
	int status;
	bool retryable;
	const char *message, *fix;
};

static const struct row rows[] = {
#define ERROR_GROUP(title) { title, NULL, 0, false, NULL, NULL },
#define ERROR(code, status, retryable, message, fix) \
	{ NULL, #code, status, retryable, message, fix },
#include "api/errors.def"
};

static int write_page(FILE *f)
{
	fputs("# Errors\n\n"
	      "<!-- Made from src/api/errors.def by `ninja -C build errors-page`. -->\n\n"
	      "Every error answer is\n\n"
	      "```json\n"
	      "{\"error\": {\"code\": \"…\", \"message\": \"…\", \"fix\": \"…\", \"details\": {},\n"
	      "           \"retryable\": false, \"requestId\": \"req_…\"}}\n"
	      "```\n\n"
	      "Programs decide by `code`, which never changes once it is published. The message\n"
	      "and the fix are for people and may say more than this page. With `retryable` the\n"
	      "same request may succeed later as it is; wait for the seconds of `Retry-After`.\n",
	      f);
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		const struct row *r = &rows[i];

		if (r->group)
			fprintf(f,
				"\n## %s\n\n| code | status | retryable | meaning | what to do |\n"
				"|---|---|---|---|---|\n",
				r->group);
		else
			fprintf(f, "| `%s` | %d | %s | %s | %s |\n", r->code, r->status,
				r->retryable ? "yes" : "no", r->message, r->fix);
	}
	return ferror(f) ? -1 : 0;
}

static int check_page(const char *path, const char *want, size_t n)
{
	char *have = malloc(n + 2);
	FILE *f = fopen(path, "re");
	size_t got = f && have ? fread(have, 1, n + 1, f) : 0;
	bool same = got == n && memcmp(have, want, n) == 0;

	if (f)
		fclose(f);
	free(have);
	if (!same)
		fprintf(stderr, "%s is not current: run ninja -C build errors-page\n", path);
	return same ? 0 : 1;
}

int main(int argc, char **argv)
{
	bool check = argc == 3 && strcmp(argv[1], "--check") == 0;
	char *text = NULL;
	size_t n = 0;
	FILE *memory, *f;
	int r;

	if (argc != 2 && !check) {
		fputs("usage: errors_page [--check] PATH\n", stderr);
		return 2;
	}
	memory = open_memstream(&text, &n);
	if (!memory || write_page(memory) < 0 || fclose(memory) != 0) {
		perror("errors_page");
		return 1;
	}
	if (check) {
		r = check_page(argv[2], text, n);
	} else {
		f = fopen(argv[1], "we");
		r = !f || fwrite(text, 1, n, f) != n || fclose(f) != 0;
		if (r)
			perror(argv[1]);
	}
	free(text);
	return r;
}
