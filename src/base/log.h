/*
 * Logging: one JSON object a line on stderr, {"time","level","program","msg",…fields}.
 * Thread-safe (one write(2) a line). Never log a secret, an environment value or file contents.
 */
#ifndef CLOCHE_BASE_LOG_H
#define CLOCHE_BASE_LOG_H

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };

struct err;

/* Names the program and the lowest level that is written. Call once, first thing in main(). */
void log_init(const char *program, enum log_level lowest);

/*
 * Logs msg with fields: pairs of `const char *key, const char *value`, ended by a NULL key. A NULL
 * value is written as JSON null.
 */
void log_event(enum log_level level, const char *msg, ...) __attribute__((sentinel));

/* Printf-style message without fields. */
void log_msg(enum log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Logs "what: e->msg" with the error's code as a field. */
void log_err(enum log_level level, const struct err *e, const char *what);

#define log_debug(...) log_msg(LOG_DEBUG, __VA_ARGS__)
#define log_info(...) log_msg(LOG_INFO, __VA_ARGS__)
#define log_warn(...) log_msg(LOG_WARN, __VA_ARGS__)
#define log_error(...) log_msg(LOG_ERROR, __VA_ARGS__)

#endif
