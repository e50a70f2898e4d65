/* Words of the kernel's command line. */
#ifndef CLOCHE_AGENT_CMDLINE_H
#define CLOCHE_AGENT_CMDLINE_H

#include <stdbool.h>
#include <stddef.h>

/* The value of the word that starts with prefix ("cloche.root="), if there is one and it fits. */
bool cmdline_word(const char *prefix, char *out, size_t n);
bool cmdline_find(const char *line, const char *prefix, char *out, size_t n);

#endif
