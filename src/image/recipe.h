/*
 * A recipe says what an image is made of: NAME/recipe.json in the recipe folder, with the hook
 * scripts it names in the folder "hooks" beside. images/README.md describes the fields.
 */
#ifndef CLOCHE_IMAGE_RECIPE_H
#define CLOCHE_IMAGE_RECIPE_H

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

#include "base/json.h"

struct err;

struct recipe {
	json_t *doc; /* owns every string below */
	const char *name;
	const char *distribution, *release;
	const char *components;	    /* words: "main universe" */
	const char *kernel_package; /* NULL: the image has no kernel of its own */
	const json_t *packages, *hooks, *npm;
	uint32_t slack_mib; /* free room in the file system */
	uint32_t need_mib;  /* free disk space to build it */
	char dir[PATH_MAX]; /* recipe folder: dir/NAME/recipe.json, dir/hooks */
};

/* Loads dir/name/recipe.json. "unknown_recipe" lists the recipes there are. */
int recipe_load(const char *dir, const char *name, struct recipe *r, struct err *e);
void recipe_free(struct recipe *r);

/*
 * Finds the recipe folder: $CLOCHE_RECIPES, then ../share/cloche/images beside the program, then
 * the source tree that the program was built in.
 */
int recipe_find_dir(char dir[PATH_MAX], struct err *e);

#endif
