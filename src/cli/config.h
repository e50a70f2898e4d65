/*
 * Where the daemon is and with which key: CLOCHE_URL and CLOCHE_API_KEY, else
 * ~/.config/cloche/config.json ({"url":…,"apiKey":…}, mode 0600), else /etc/cloche/config.json.
 */
#ifndef CLOCHE_CLI_CONFIG_H
#define CLOCHE_CLI_CONFIG_H

struct err;

struct config {
	char *url;
	char *key;
};

/* url_flag (may be NULL) wins over all. An absent file is no error; the URL has a default. */
int config_load(const char *url_flag, struct config *out, struct err *e);

/* Writes the user's file, mode 0600, making its folder. */
int config_save(const struct config *c, struct err *e);

void config_free(struct config *c); /* frees the strings, wiping the key */

#endif
