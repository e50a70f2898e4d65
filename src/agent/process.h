/*
 * Commands: started, watched, ended, remembered. A process is in the table from before its program
 * runs until it is forgotten, so even the shortest one can be attached to afterwards.
 */
#ifndef CLOCHE_AGENT_PROCESS_H
#define CLOCHE_AGENT_PROCESS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "agent/ring.h"
#include "base/buf.h"
#include "base/id.h"

struct agent;
struct err;
struct process;
struct watcher;

/* One of the command's two output streams. */
struct output {
	struct process *p;
	int fd;			 /* our end of the pipe, -1 once it ended */
	struct loop_source *src; /* NULL while held back for a slow watcher */
	struct ring ring;
	uint64_t final; /* settled: EXIT may follow once the bytes before this offset were sent */
	bool settled;	/* final is known */
};

struct input {
	int fd;			 /* -1: none, or closed */
	struct loop_source *src; /* set while bytes wait */
	struct buf pending;
	uint64_t accepted; /* bytes ever taken from the host */
	uint64_t written; /* of them, those given to the command (or thrown away after it closed) */
	bool wanted;	  /* the request asked for it */
	bool eof;	  /* close when pending is empty */
	bool lost;	  /* the command ended before it was given all that was accepted */
};

struct process {
	struct agent *a;
	struct process *next;
	char id[ID_LEN];
	pid_t pid;	     /* 0 once reaped */
	json_t *about;	     /* argv or command (shortened), cwd, user */
	char *program, *cwd; /* for the message when it does not start */
	bool background, tty;
	bool started; /* its program runs, or it failed to */
	int failed_fd;
	struct loop_source *failed_src;
	struct output out[2];
	struct input in;
	struct watcher *watchers;
	struct loop_source *timeout, *grace;
	bool timed_out, killed;
	bool gone; /* killed, and none of its descendants lives */
	bool exited, forgotten;
	int code, signal; /* as in EXIT: code -1 or signal 0 */
	int64_t started_ms, duration_ms;
	uint64_t started_ns;
};

/* Starts a command from a checked exec request. It is in the table on success. */
int process_start(struct agent *a, const json_t *request, struct process **out, struct err *e);

struct process *process_find(struct agent *a, const char *id, struct err *e);
struct process *process_find_pid(struct agent *a, pid_t pid);

/* The command's first process has ended with this wait status. */
void process_exited(struct process *p, int status);
/* Some child has ended: commands that were killed look whether all of theirs are gone. */
void process_check_killed(struct agent *a);

/* sig to the process group. process_ended when the first process has ended. */
int process_signal(struct process *p, int sig, struct err *e);
int process_resize(struct process *p, int rows, int cols, struct err *e);
/* SIGKILL to it and all its descendants. */
void process_kill(struct process *p);
/* Kills what runs and drops it from the table (when it has ended). */
void process_forget(struct process *p);

/* Drops an ended command that nobody watches; what it left in the background lives on. */
void process_drop(struct process *p);

/* Nothing more of the output is to come before EXIT, and where each stream stands then. */
bool process_settled(const struct process *p);
/* Frees p when it is forgotten, ended, and has lost its last watcher. */
void process_unwatched(struct process *p);
/* Lets the pipes be read again after a watcher took what held them back. */
void process_resume_output(struct process *p);

/* input.c. Adds input; the caller keeps within its window. stdin_closed when there is none. */
int process_input(struct process *p, const void *bytes, size_t n, struct err *e);
void process_input_eof(struct process *p);
void process_input_close(struct process *p);

/* {processId, pid, …}: the whole, or the short form for ps. */
json_t *process_json(const struct process *p, bool brief);
json_t *process_exit_json(const struct process *p);

/* output.c */
int output_open(struct process *p, int which, int fd, struct err *e);
void output_close(struct output *o);
void output_settle(struct output *o);

/* about.c: the description kept with a process. */
json_t *process_about(const json_t *request, const char *user);

/* command.c: argv and env of a request for spawn_start(), with their memory. */
struct user;
struct command {
	char **argv, **env;
};
int command_make(struct agent *a, const json_t *request, const struct user *u, const char *id,
		 struct command *c, struct err *e);
void command_free(struct command *c);

#endif
